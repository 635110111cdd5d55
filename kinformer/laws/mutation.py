"""Law mutation: a forward pass changes no buffer, parameter, input or returned mapping."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.layer import Context, Out
from kinformer.laws.support.findings import Broken, findings
from kinformer.laws.support.subject import ROWS, Subject, TrainingSubject

SAYS = "a call changes nothing except the state that it receives"
OVER = ("layer", "model")
LENGTH = 9
MAPPINGS = ("aux", "up", "stats", "taps")
Versions = list[tuple[str, Tensor, int]]  # description of a tensor, the tensor, and its version when it was passed


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Run forward and backward, and yield a sentence for each tensor or mapping that is overwritten.

    subject: a layer or model with the part to test.

    A call may overwrite only the decoding state that it receives. The law tests eval and train mode, with and without a
    state. It compares buffers, parameters, inputs, and the mappings of every `Out` (the output of a layer).
    """
    shared = [Out._field_defaults[name] for name in MAPPINGS]
    try:
        yield from findings(_check, subject, subject.build())
        if any(shared):
            yield "forward writes to the empty mapping that every Out shares; pass a mapping of its own to Out"
    finally:
        for mapping in shared:
            mapping.clear()  # other judgements must not be affected


def _check(subject: Any, module: nn.Module) -> None:
    before = {name: tensor.detach().clone() for name, tensor in _numbers(module).items()}
    for training in (False, True):
        module.train(training)
        for state in subject.states(module, ROWS, LENGTH):
            _forward(subject, module, state)
            for name, tensor in _numbers(module).items():
                if name not in before or not torch.equal(tensor, before[name]):
                    mode = "train" if training else "eval"
                    raise Broken(
                        f"forward in {mode} mode changes {name}; make such a change once per training step, in "
                        "after_step"
                    )


def _numbers(module: nn.Module) -> dict[str, Tensor]:
    """Return every parameter, buffer and tensor attribute by name."""
    named = [*module.named_parameters(), *module.named_buffers()]
    plain = [
        (f"{place}.{name}", value)
        for place, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    ]
    return dict(named + plain)


def _forward(subject: Any, module: Any, state: Any) -> None:
    batch = subject.ragged(LENGTH)
    originals = [t.clone() for t in batch.tensors()]
    outs: list[tuple[Out, dict[str, dict[str, Tensor]]]] = []
    versions: Versions = []

    def note(part: nn.Module, inputs: tuple, out: Any) -> None:
        if isinstance(out, Out):
            outs.append((out, {name: dict(getattr(out, name)) for name in MAPPINGS}))
            for name in MAPPINGS:
                versions.extend(_versions(f"the {name} of {type(part).__name__}", getattr(out, name)))

    def guard(part: nn.Module, inputs: tuple) -> tuple:
        for value in inputs:
            if isinstance(value, Context):
                for name in ("below", "labels"):
                    versions.extend(_versions(f"ctx.{name}", getattr(value, name)))
        return tuple(_guard(value) if isinstance(value, Context) else value for value in inputs)

    hooks = [part.register_forward_hook(note) for part in module.modules()]
    hooks += [part.register_forward_pre_hook(guard) for part in module.modules()]
    try:
        out = subject.call(module, batch, state)
    except TypeError as error:
        if "mappingproxy" in str(error):
            raise Broken(f"forward writes to ctx.below or ctx.labels: {error}") from error
        raise
    finally:
        for hook in hooks:
            hook.remove()
    _check_stats(out, module.training)
    if out.y.requires_grad:
        out.y.sum().backward()
        module.zero_grad()
    for returned, mappings in outs:
        for name, entries in mappings.items():
            now = getattr(returned, name)
            if now.keys() != entries.keys() or any(now[key] is not entries[key] for key in entries):
                raise Broken(f"the mapping {name} of an Out changes after forward returned it: {sorted(now)}")
    for label, tensor, version in versions:
        if tensor._version != version:
            raise Broken(f"forward writes to a tensor that other layers use: {label}")
    if not all(map(torch.equal, originals, batch.tensors())):
        raise Broken("forward writes to its inputs")


def _versions(where: str, entries: Mapping[str, Any]) -> Versions:
    """Return every tensor in the entries of a mapping with its current version."""
    named = {name: (value,) if isinstance(value, Tensor) else value for name, value in entries.items()}
    parts = ((name, part) for name, value in named.items() for part in value if isinstance(part, Tensor))
    return [(f"{name!r} in {where}", tensor, tensor._version) for name, tensor in parts]


def _check_stats(out: Out, training: bool) -> None:
    if out.stats and not training:
        raise Broken(f"eval mode returns stats {sorted(out.stats)}, which after_step needs only in train mode")
    attached = sorted(name for name, value in out.stats.items() if value.requires_grad)
    if attached:
        raise Broken(f"stats {attached} have a gradient; detach them")


def _guard(ctx: Context) -> Context:
    return ctx.replace(below=MappingProxyType(dict(ctx.below)), labels=MappingProxyType(dict(ctx.labels)))
