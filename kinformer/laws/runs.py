"""Law runs: a plain call gives an `Out` (output of a layer) of the right shape with finite numbers.

If a part breaks this law, no other law is tested.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.collected_outputs import is_sent
from kinformer.core.layer import Context, Layer, Out
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.model import EvaluationSums, Model, Writer
from kinformer.core.position import Position
from kinformer.laws.support.comparisons import agree, agree_out
from kinformer.laws.support.findings import Broken, find_smallest
from kinformer.laws.support.input_batch import InputBatch
from kinformer.laws.support.subject import Subject, TrainingSubject

SAYS = "a plain call gives finite numbers of the right shape"
OVER = ("layer", "model")
LENGTH = 5


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Call a layer or model in eval mode, and yield a sentence for each wrong output of a part inside.

    subject: a layer or model with the part to test.

    The call has no decoding state, or the empty one of a layer without a state. Its rows are padded left and right.
    Layers pass named values to the layers above. A part must declare in `sends` the names that it passes on (in
    `Out.up`), and in `wants` the names that it uses (from `ctx.below`). For a model in training, the law tests its
    samples, its loss and its measures.
    """
    module = subject.build()
    if isinstance(subject, TrainingSubject):
        yield from find_smallest(_model, LENGTH, module, subject)
    else:
        yield from find_smallest(_call, LENGTH, subject, module)


def _call(length: int, subject: Subject, module: Any) -> None:
    batch = subject.ragged(length)
    with _watch(module):
        out = subject.call(module, batch)
    with _hide_unwanted(module) as hidden:
        without_hidden = subject.call(module, batch)
    if hidden:
        readers = "; ".join(f"{name}: {', '.join(names)}" for name, names in hidden.items())
        agree_out(
            without_hidden, out, f"a part reads a name of ctx.below that its `wants` lacks ({readers})", batch.pos
        )
    _check_out(out, type(module).__name__)
    has_no_state = isinstance(module, Layer) and type(module).start is Layer.start
    if has_no_state and module(batch.x, (), batch.context()).state is None:
        raise Broken(f"{type(module).__name__}.forward got a state and returns none; return Out(y, state)")
    if tuple(out.y.shape[:2]) != batch.size:
        raise Broken(f"an input of {list(batch.size)} tokens gives an output of shape {list(out.y.shape)}")
    _check_other_calls(subject, module, batch, out)
    numbers = out.y[batch.is_real]
    if not numbers.isfinite().all():
        wrong = int((~numbers.isfinite()).sum())
        raise Broken(
            f"{wrong} of {numbers.numel()} numbers of the output are NaN or infinite, in rows of {length} tokens"
        )


def _check_other_calls(subject: Subject, module: Any, batch: InputBatch, out: Out) -> None:
    """Check `logits(last=True)` and the taps of the first sublayer."""
    if isinstance(module, Writer) and batch.only is None and batch.also is None:
        source: dict[str, Any] = {} if batch.source is None else {"source": batch.source}
        last = module.logits(batch.x, last=True, **source).y
        agree(last, out.y[:, -1:], "logits(last=True) differ from the last column of all logits", bound=1e-12)
    layers = getattr(module, "layers", None)
    if subject.vocab or not isinstance(layers, nn.ModuleList) or not isinstance(layers[0], Layer):
        return
    first_layer_calls: list[tuple[Tensor, Tensor]] = []
    hook = layers[0].register_forward_hook(lambda part, inputs, out: first_layer_calls.append((inputs[0], out.y)))
    try:
        tapped = module(batch.x, None, batch.context().replace(taps=("0", "0.input")))
    finally:
        hook.remove()
    for name, want in zip(("0.input", "0"), first_layer_calls[0] if first_layer_calls else (), strict=False):
        if name in tapped.taps:
            agree(
                tapped.taps[name],
                want,
                f"the tap {name!r} differs from the {'out' if name == '0' else 'in'}put of sublayer 0",
            )


def _model(length: int, model: Model, subject: TrainingSubject) -> None:
    name, batch, batch_again = type(model).__name__, subject.ragged(length), subject.ragged(length)
    if not all(map(torch.equal, batch.tensors(), batch_again.tensors())):
        raise Broken(f"{name}.sample gives different rows for the same seed")
    loss, judged = model(batch.x), model.judge(batch.x)
    if not isinstance(judged, EvaluationSums) or next(iter(judged.totals), None) != model.metric.name:
        raise Broken(f"{name}.judge must return EvaluationSums, with its metric {model.metric.name!r} first in totals")
    if loss.total.shape or not loss.total.isfinite() or int(loss.count) < 1:
        raise Broken(
            f"the loss of {length} tokens is {loss.total.tolist()} over {int(loss.count)} targets, expected one finite "
            "number over at least 1 target"
        )
    for measure, (total, count) in judged.totals.items():
        if total.shape or count.shape or not total.isfinite():
            raise Broken(
                f"{name}.judge gives {measure!r} with sum {total.tolist()} and count {count.tolist()}, expected one "
                "finite number each"
            )
    if model.predicts_next:
        try:
            model.start(1, length)
        except NoState as error:
            raise Broken(f"the model learns to predict the next token, but has no state: {error}") from error


@contextmanager
def _watch(module: nn.Module) -> Iterator[None]:
    """Check the output of every part before another part uses it."""
    hooks = [part.register_forward_hook(_look) for part in module.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _hide_unwanted(module: nn.Module) -> Iterator[dict[str, list[str]]]:
    """Hide unwanted names of `below` from mechanisms and innermost layers; yield the hidden names."""
    hidden: dict[str, list[str]] = {}

    def hide(part: nn.Module, inputs: tuple) -> tuple:
        return tuple(_without_unwanted_names(x, part, hidden) if isinstance(x, Context) else x for x in inputs)

    inner = (part for part in module.modules() if isinstance(part, Mechanism) or _is_innermost(part))
    hooks = [part.register_forward_pre_hook(hide) for part in inner]
    try:
        yield hidden
    finally:
        for hook in hooks:
            hook.remove()


def _is_innermost(part: nn.Module) -> bool:
    return isinstance(part, Layer) and not any(
        isinstance(child, Layer | Mechanism) for child in list(part.modules())[1:]
    )


def _without_unwanted_names(ctx: Context, part: Any, hidden: dict[str, list[str]]) -> Context:
    wanted_names = [want.name for want in part.wants]
    unwanted = sorted(name for name in ctx.below if not is_sent(name, wanted_names) and name not in wanted_names)
    if unwanted:
        hidden[type(part).__name__] = unwanted
    return ctx.replace(below={name: value for name, value in ctx.below.items() if name not in unwanted})


def _look(part: nn.Module, inputs: tuple, out: Any) -> None:
    name = type(part).__name__
    if any(isinstance(x, Context) and x.remember for x in inputs):
        return  # the call only updates the state
    if isinstance(part, Layer):
        _check_out(out, name)
        _shape(out.y, inputs[0].shape, name, "y, the shape of x")
    elif isinstance(part, Mechanism):
        _mechanism(out, inputs[0].q, inputs[1], name)
    elif isinstance(part, Position):
        _shape(out, (*inputs[0].shape, out.shape[-1]), name, "its vectors")
    if isinstance(part, Layer | Mechanism):
        for sent in out.up:
            if not is_sent(sent, part.sends) and sent not in part.sends:
                raise Broken(f"{name} passes {sent!r} to the layers above, but its `sends` lacks this name")


def _mechanism(out: Any, q: Tensor, keys: Any, name: str) -> None:
    _check_out(out, name)
    if not isinstance(out.y, AttentionOutput):
        raise Broken(
            f"{name}.forward returns an Out of a {type(out.y).__name__}; return Out(AttentionOutput(y, lse), state)"
        )
    wide = out.y.y.shape[-1] if keys is None else keys.v.shape[-1]
    # talking heads have as many output heads as value heads
    heads = q.shape[1] if keys is None or out.y.y.shape[1] != keys.v.shape[1] else keys.v.shape[1]
    _shape(out.y.y, (q.shape[0], heads, q.shape[2], wide), name, "y")
    if out.y.lse is not None:
        _shape(out.y.lse, out.y.y.shape[:3], name, "lse")


def _check_out(out: Any, name: str) -> None:
    if not isinstance(out, Out):
        raise Broken(f"{name}.forward returns a {type(out).__name__}; return Out(y, state)")


def _shape(tensor: Tensor, shape: tuple[int, ...], name: str, quantity: str) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise Broken(f"{name}.forward gives {list(tensor.shape)}; it must give {list(shape)} for {quantity}")
