"""Models as users of transformers call them: with `input_ids`, and with the outputs of transformers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import make_dataclass
from functools import cache, partial, singledispatch
from threading import get_ident
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32
from kinformer.core.did_you_mean import check_known_keywords
from kinformer.core.layer import Out
from kinformer.core.model import CALL_KEYWORDS, display_name
from kinformer.core.residual_block import ResidualBlock
from kinformer.core.token_positions import context_of_tokens
from kinformer.core.vocabulary import check_below
from kinformer.core.warn import warn
from kinformer.decoding.prompt_rows import prompt_rows
from kinformer.lab.look import attention_maps
from kinformer.models.classifier import Classifier
from kinformer.models.mlm import MLM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.models.support.text_model import TextModel
from kinformer.nn.attention import Attention
from kinformer.nn.patterns.marked import Marked


class Inputs(NamedTuple):
    """The keywords of a call, with -1 at padding of the rows.

    rows: token ids.
    kinds: segment type of each token; None without.
    marked: True at global tokens; None without.
    labels: targets; None without.
    target: input of the decoder; None without.
    state: decoding state to continue from; None without.
    keeps_state: whether the output gets the next decoding state.
    shows_states, shows_attentions: whether the output gets the hidden states, and the attention weights.
    """

    rows: Int[Tensor, "B T"]
    kinds: Int[Tensor, "B T"] | None
    marked: Bool[Tensor, "B T"] | None
    labels: Int[Tensor, "B ..."] | None
    target: Int[Tensor, "B N"] | None
    state: Any
    keeps_state: bool
    shows_states: bool
    shows_attentions: bool


def call(model: nn.Module, first: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the output of transformers for a call of a model with keywords such as `input_ids`.

    The output is a CausalLMOutputWithPast, MaskedLMOutput, Seq2SeqLMOutput or SequenceClassifierOutput, or for a model
    whose weights have no head a BaseModelOutput. Each has `last_hidden_state`: the output of the body, or of the
    decoder. The loss is the cross-entropy, without auxiliary losses of the body.

    model: a model of text.
    first: arguments without a name: input_ids and attention_mask, or none.
    keywords: the keywords of the call:
        input_ids: token ids [B T].
        attention_mask: 0 at padding, which may stand at the ends of a row only.
        token_type_ids: segment type of each token [B T]; without effect on models without segment types.
        global_attention_mask: 1 at tokens that read and are read by all tokens [B T], for a masked model.
        labels: targets; -100 marks tokens without a loss, and padding has none. A language model takes the tokens
            themselves, a masked model the original tokens, and a classifier the class of each row [B].
        decoder_input_ids, decoder_attention_mask: decoder input; by default `model.begin` followed by the labels.
        past_key_values: decoding state of an earlier output.
        use_cache: True returns the decoding state in `past_key_values`.
        output_hidden_states: True returns the input of each block and the output of the body. If the blocks read other
            rows than the tokens, it returns the input and the output of the body.
        output_attentions: True returns the attention weights of each layer [B H T T], computed apart in eval mode and
            without gradients. None stands for a layer without weights between tokens, and a warning says why.
        return_dict: False returns a tuple.

    Errors: TypeError for an unknown keyword, and for a model that reads no text; ValueError for ids, masks and labels
    of other shapes; ImportError without the package transformers.
    """
    check_known_keywords(type(model).__name__, keywords, CALL_KEYWORDS)
    if len(first) > 2:
        raise TypeError(
            f"{display_name(model)} got {len(first)} arguments without a name, expected input_ids and "
            "attention_mask. Name the others"
        )
    named = dict(zip(("input_ids", "attention_mask"), first, strict=False))
    if twice := named.keys() & keywords.keys():
        raise TypeError(f"{display_name(model)} got {min(twice)} twice: without a name and as a keyword")
    arguments = dict.fromkeys(CALL_KEYWORDS) | named | dict(keywords)
    rows, target = _rows(model, arguments, ""), _rows(model, arguments, "decoder_")
    if rows is None:
        raise ValueError(f"{display_name(model)} got no input_ids. Give token ids [B, T]")
    kinds, labels = (_on_device(model, arguments[name]) for name in ("token_type_ids", "labels"))
    if kinds is not None and kinds.shape != rows.shape:
        raise ValueError(f"token_type_ids have shape {list(kinds.shape)}, but the tokens have {list(rows.shape)}")
    past = arguments["past_key_values"]
    flags = (bool(arguments[name]) for name in ("use_cache", "output_hidden_states", "output_attentions"))
    marked = _marked_positions(model, rows, arguments["global_attention_mask"])
    out = _call(model, Inputs(rows, kinds, marked, labels, target, past, *flags))
    return out if arguments["return_dict"] in (None, True) else out.to_tuple()


def _rows(model: nn.Module, arguments: Mapping[str, Any], side: str) -> Int[Tensor, "B T"] | None:
    """Return the token ids of one side with -1 at padding; None if there are none."""
    ids, mask = arguments[f"{side}input_ids"], arguments[f"{side}attention_mask"]
    if ids is None:
        return None
    if mask is not None and arguments["past_key_values"] is not None and isinstance(ids, Tensor):
        mask = torch.as_tensor(mask)[..., -ids.shape[-1] :]  # the mask also covers the tokens read before
    rows = prompt_rows(ids if mask is None else {"input_ids": ids, "attention_mask": mask}, model)
    return _on_device(model, rows)


def _marked_positions(model: nn.Module, rows: Int[Tensor, "B T"], mask: Any) -> Bool[Tensor, "B T"] | None:
    """Return True at the positions of global tokens, which count from 0 at the first real token of a row."""
    if mask is None:
        return None
    if not isinstance(model, MLM):
        raise ValueError(f"global_attention_mask needs a masked model such as longformer, got {display_name(model)}")
    columns = _on_device(model, mask)
    if columns is None or columns.shape != rows.shape:
        raise ValueError(f"global_attention_mask must have the shape of the tokens, {list(rows.shape)}")
    places = (rows >= 0).cumsum(1) - 1
    marks = ((columns != 0) & (rows >= 0)).to(rows.dtype)
    return torch.zeros_like(rows).scatter_reduce(1, places.clamp_min(0), marks, "amax") > 0


def _on_device(model: nn.Module, values: Any) -> Tensor | None:
    return None if values is None else torch.as_tensor(values, device=next(model.parameters()).device)


# Kinds of models ------------------------------------------------------------------------------------------------------


@singledispatch
def _call(model: Any, inputs: Inputs) -> Any:
    reads = getattr(model, "reads", "other inputs")
    raise TypeError(
        f"{display_name(model)} got input_ids, but it reads {reads}, not one text. Call model(batch) with a batch of "
        f"{reads}"
    )


@_call.register
def _(model: TextModel, inputs: Inputs) -> Any:
    state = model.start(*inputs.rows.shape) if inputs.keeps_state and inputs.state is None else inputs.state
    with _recording(model, "body", inputs) as recording:
        out = model.logits(inputs.rows, state)
    real, loss = inputs.rows >= 0, None
    if inputs.labels is not None:
        labels = _checked(inputs.labels, inputs.rows)
        loss = _loss(out.y[:, :-1], labels[:, 1:], real[:, :-1] & real[:, 1:])
    return _output(
        "CausalLMOutputWithPast",
        loss=loss,
        logits=out.y,
        past_key_values=out.state if inputs.keeps_state else None,
        hidden_states=recording.states(inputs),
        attentions=_attentions(model, inputs, lambda n: model.logits(_alone(inputs.rows, n)), {"": real})[""],
        last_hidden_state=recording.last,
    )


@_call.register
def _(model: MLM, inputs: Inputs) -> Any:
    if model.headless and inputs.labels is not None:
        raise ValueError("there is no loss: the weights of this model have no head. Leave labels out")

    def read(rows: Int[Tensor, "B T"], kinds: Int[Tensor, "B T"] | None, marked: Bool[Tensor, "B T"] | None) -> Out:
        ctx = context_of_tokens(rows)
        ctx = ctx if kinds is None else ctx.replace(labels={"segment": kinds})
        ctx = ctx if marked is None else ctx.replace(also=Marked(marked))
        return (model.hidden if model.headless else model.logits)(rows, ctx=ctx)

    def read_alone(n: int) -> Out:
        kinds = None if inputs.kinds is None else _alone(inputs.rows, n, inputs.kinds)
        return read(_alone(inputs.rows, n), kinds, None if inputs.marked is None else inputs.marked[n : n + 1])

    with _recording(model, "body", inputs) as recording:
        out = read(inputs.rows, inputs.kinds, inputs.marked)
    real = inputs.rows >= 0
    states = {
        "last_hidden_state": recording.last,
        "hidden_states": recording.states(inputs),
        "attentions": _attentions(model, inputs, read_alone, {"": real})[""],
    }
    if model.headless:
        return _output("BaseModelOutput", **states)
    loss = None if inputs.labels is None else _loss(out.y, _checked(inputs.labels, inputs.rows), real)
    return _output("MaskedLMOutput", loss=loss, logits=out.y, **states)


@_call.register
def _(model: Seq2Seq, inputs: Inputs) -> Any:
    target, labels = inputs.target, inputs.labels
    if target is None and labels is None:
        raise ValueError(
            f"{display_name(model)} got no target. Give labels, or decoder_input_ids that begin with model.begin"
        )
    if target is None:
        assert labels is not None
        after = (labels >= 0).flip(1).cumsum(1).flip(1) == 0  # padding; earlier labels without a loss are read
        written = labels.masked_fill(labels < 0, model.begin).masked_fill(after, -1)
        target = F.pad(written[:, :-1], (1, 0), value=model.begin)
    state = model.start(*target.shape) if inputs.keeps_state and inputs.state is None else inputs.state
    source = inputs.rows if inputs.state is None else None
    with _recording(model, "encoder", inputs) as encoded, _recording(model, "decoder", inputs) as decoded:
        out = model.logits(target, state, source=source)
    maps = _attentions(
        model,
        inputs,
        lambda n: model.logits(_alone(target, n), source=_alone(inputs.rows, n)),
        {"encoder": inputs.rows >= 0, "decoder": target >= 0},
    )
    return _output(
        "Seq2SeqLMOutput",
        loss=None if labels is None else _loss(out.y, _checked(labels, target), target >= 0),
        logits=out.y,
        past_key_values=out.state if inputs.keeps_state else None,
        decoder_hidden_states=decoded.states(inputs),
        encoder_hidden_states=encoded.states(inputs),
        decoder_attentions=maps["decoder"],
        encoder_attentions=maps["encoder"],
        encoder_last_hidden_state=encoded.last,
        last_hidden_state=decoded.last,
    )


@_call.register
def _(model: Classifier, inputs: Inputs) -> Any:
    if inputs.kinds is not None and bool(inputs.kinds.any()):
        raise ValueError("a classifier reads one text without segment types. Leave token_type_ids out")
    with _recording(model, "body", inputs) as recording:
        out = model.read(inputs.rows)
    labels = None if inputs.labels is None else inputs.labels.flatten()
    if labels is not None and (labels.is_floating_point() or labels.shape != inputs.rows.shape[:1]):
        raise ValueError(
            f"labels have {labels.dtype} and shape {list(labels.shape)}, expected the class of each row as an integer "
            f"[{len(inputs.rows)}]"
        )
    if labels is not None:
        check_below(labels, out.y.shape[-1], "class", "make classes larger")
    real = model.pooling.rows(inputs.rows, mark=model.vocab) >= 0  # with a class token, if there is one
    return _output(
        "SequenceClassifierOutput",
        loss=None if labels is None else F.cross_entropy(at_least_float32(out.y), labels.long()),
        logits=out.y,
        hidden_states=recording.states(inputs),
        attentions=_attentions(model, inputs, lambda n: model.read(_alone(inputs.rows, n)), {"": real})[""],
        last_hidden_state=recording.last,
    )


def _checked(labels: Tensor, rows: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Return labels if there is one for each token of the rows."""
    if labels.shape != rows.shape:
        raise ValueError(f"labels have shape {list(labels.shape)}, but the tokens have {list(rows.shape)}")
    return labels


def _loss(y: Float[Tensor, "B T V"], labels: Int[Tensor, "B T"], real: Bool[Tensor, "B T"]) -> Tensor:
    """Return the mean cross-entropy of the labels that are token ids, at real tokens."""
    targets = labels.masked_fill((labels < 0) | ~real, -1)
    check_below(targets, y.shape[-1], "label", "give token ids, and -100 for no loss")
    return F.cross_entropy(at_least_float32(y).flatten(0, 1), targets.flatten().long(), ignore_index=-1)


@cache
def _output_class(name: str) -> Any:
    """Return an output class of transformers with the further field `last_hidden_state`."""
    try:
        from transformers import modeling_outputs
    except ImportError as error:
        raise ImportError(
            "the output of a call with input_ids needs the package transformers, which is not installed: run `pip "
            "install '.[hf]'` in kinformer's folder. Without it, call model.logits(tokens).y, with -1 at padding"
        ) from error
    base = getattr(modeling_outputs, name)
    return make_dataclass(
        name, [("last_hidden_state", Tensor | None, None)], bases=(base,), namespace={"__module__": __name__}
    )


def _output(name: str, **values: Any) -> Any:
    return _output_class(name)(**values)


# Hidden states and attention weights ----------------------------------------------------------------------------------


class _Recording(NamedTuple):
    """The inputs of a body, of its blocks, and its output, in the order of the calls."""

    inputs: list[Tensor]
    blocks: list[Tensor]
    outputs: list[Tensor]

    @property
    def last(self) -> Tensor | None:
        return self.outputs[-1] if self.outputs else None

    def states(self, inputs: Inputs) -> tuple[Tensor, ...] | None:
        """Return the hidden states, if they are asked for."""
        if not inputs.shows_states or not self.outputs:
            return None
        shape = self.outputs[-1].shape
        whole = bool(self.blocks) and all(state.shape == shape for state in self.blocks)
        return (*(self.blocks if whole else self.inputs[-1:]), self.outputs[-1])


@contextmanager
def _recording(model: nn.Module, name: str, inputs: Inputs) -> Iterator[_Recording]:
    """Record the hidden states of the body of this name; a wrapper of a model has it further inside.

    The calls of other threads are not recorded.
    """
    thread = get_ident()
    places = (part for path, part in model.named_modules() if path.rpartition(".")[2] == name)
    body, recording = next(places, None), _Recording([], [], [])
    layers = getattr(body, "layers", ()) if inputs.shows_states else ()
    # a norm of the body's input is no block
    blocks = [layer for layer in layers if isinstance(layer, ResidualBlock)] or layers

    def record(states: list[Tensor], state: Tensor) -> None:
        if get_ident() == thread:
            states.append(state)

    hooks = [
        part.register_forward_pre_hook(lambda _, args, states=states: record(states, args[0]))
        for parts, states in (((body,) if body is not None else (), recording.inputs), (blocks, recording.blocks))
        for part in parts
    ]
    if body is not None:
        hooks.append(body.register_forward_hook(lambda module, args, out: record(recording.outputs, out.y)))
    try:
        yield recording
    finally:
        for hook in hooks:
            hook.remove()


def _attentions(
    model: Any, inputs: Inputs, read: Callable[[int], Any], real: Mapping[str, Bool[Tensor, "B T"]]
) -> dict[str, tuple[Tensor | None, ...] | None]:
    """Return the attention weights of each layer by its side, in the order of the layers; None without a request.

    read: function that reads the row of a number alone, without padding.
    real: True at the tokens that the layers of a side read, by the first part of their names, or "" for all layers.
    """
    if not inputs.shows_attentions:
        return dict.fromkeys(real)
    if inputs.state is not None:
        raise ValueError("output_attentions needs the whole row. Leave past_key_values out")
    rows: list[dict[str, Tensor]] = []
    absent: dict[str, str] = {}
    for n in range(len(inputs.rows)):
        lengths = {side: int(mask[n].sum()) for side, mask in real.items()}
        if min(lengths.values()) == 0:
            rows.append({})
            continue
        _, maps, missing = attention_maps(model, partial(read, n), lengths)
        rows.append(maps)
        absent |= {name: reason for name, reason in missing.items() if not model.get_submodule(name).cross}
    layers: dict[str, list[Tensor | None]] = {side: [] for side in real}
    for name, part in model.named_modules():
        if not isinstance(part, Attention) or part.cross:
            continue
        first = name.partition(".")[0]
        side = first if first in real else ""
        if name in absent:
            layers[side].append(None)
        else:
            none = torch.zeros(part.sizes.heads, 0, 0)
            spread = [_spread(maps.get(name, none), mask) for maps, mask in zip(rows, real[side], strict=True)]
            layers[side].append(torch.stack(spread))
    if absent:
        name, reason = next(iter(absent.items()))
        warn(f"{len(absent)} of {len(absent) + max(map(len, rows))} attention layers have no weights; {name}: {reason}")
    return {side: tuple(each) for side, each in layers.items()}


def _spread(weights: Float[Tensor, "H n n"], real: Bool[Tensor, " T"]) -> Float[Tensor, "H T T"]:
    """Return the weights between the tokens of a row with padding, which has weight 0."""
    at = real.nonzero()[:, 0].cpu()
    whole = weights.new_zeros(len(weights), len(real), len(real))
    if weights.shape[1]:
        whole[:, at[:, None], at] = weights
    return whole.to(real.device)


def _alone(rows: Int[Tensor, "B T"], n: int, values: Tensor | None = None) -> Int[Tensor, "1 _"]:
    """Return row n without its padding, or the values at its tokens."""
    return (rows if values is None else values)[n : n + 1, rows[n] >= 0]
