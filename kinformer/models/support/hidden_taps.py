"""Taps: return a hidden state of a language model by its name, together with the logits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.discover import modules
from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import Layer, Out, State
from kinformer.core.model import display_name
from kinformer.core.quote import quote
from kinformer.core.token_positions import context_of_tokens

LAST_FFN_INPUT = "last_ffn_input"
BLOCKS, PLACES = 64, 8  # fewest blocks to search, and number of sublayers to search in each block


class TapOutput(NamedTuple):
    """Result of a `Tap`: a hidden state of each token, with the model's output.

    states: hidden state of each token.
    out: output of the model: logits in `out.y`, and the next decoding state.
    """

    states: Float[Tensor, "B T D"]
    out: Out


class Tap:
    """Callable that returns one hidden state of a language model, such as the keys of a datastore.

    Call it with tokens [B T] (-1 is padding, at the ends) and a decoding state or None; it returns a `TapOutput`.
    `width` is the width of the hidden state, and `place` is its name in `ctx.taps`.

    model: a language model, such as LM.
    name: "last_ffn_input" for the input of the last feed-forward layer, which is after its norm. Or a name as in
        `ctx.taps`: "3" is the output of layer 3 of the stack, counted from 0, and "3.1.input" the input of its sublayer
        1.

    Errors: ValueError for a model that does not predict the next token, that has no feed-forward layer, or that has no
    hidden state of this name.
    """

    def __init__(self, model: Any, name: str = LAST_FFN_INPUT):
        if not getattr(model, "predicts_next", False) or model.reads != "text":
            raise ValueError(
                f"this {display_name(model)} does not predict the next token of a text; give a language model, like gpt"
            )
        self.model, self.name = model, name
        with evaluating(model):
            self.place = _last_feed_forward(model) if name == LAST_FFN_INPUT else name
            taps = _read(model, _two_tokens(model), None, (self.place,)).taps
        if self.place not in taps:
            raise ValueError(
                f"{display_name(model)} has no hidden state {quote(name)}; give {LAST_FFN_INPUT}, or a name such as "
                "0.1.input"
            )
        self.width: int = taps[self.place].shape[-1]

    def __call__(self, tokens: Int[Tensor, "B T"], state: State | None = None) -> TapOutput:
        out = _read(self.model, tokens, state, (self.place,))
        return TapOutput(out.taps[self.place], out)


def _read(model: Any, tokens: Int[Tensor, "B T"], state: State | None, taps: tuple[str, ...]) -> Out:
    return model.logits(tokens, state, context_of_tokens(tokens, state).replace(taps=taps))


def _two_tokens(model: nn.Module) -> Int[Tensor, "1 2"]:
    """Return two tokens, to test a model with."""
    return torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)


def _last_feed_forward(model: Any) -> str:
    """Return the name of the input of the last feed-forward layer, found by comparing all taps of one pass."""
    kinds = {module.__name__ for module in modules("feedforward").values()}
    layers = [part for part in model.modules() if isinstance(part, Layer) and type(part).__module__ in kinds]
    if not layers:
        raise ValueError(f"{display_name(model)} has no feed-forward layer; name another hidden state, such as 0.input")
    inputs: list[Tensor] = []
    with _record_inputs(layers, inputs.append):
        taps = _read(model, _two_tokens(model), None, tuple(_tap_names(model, len(layers)))).taps
    same = [name for name, state in taps.items() if state is inputs[-1]]
    same = same or [name for name, state in taps.items() if _is_among(state, inputs[-1])]
    if not same:
        raise ValueError(
            f"{display_name(model)} does not expose the input of its feed-forward layers; name another hidden state"
        )
    return same[-1]


def _is_among(states: Tensor, inputs: Tensor) -> bool:
    """Return True if the states are among a layer's inputs, which may include other nodes than the tokens."""
    return states.shape[-1] == inputs.shape[-1] and bool((states[0, :, None] == inputs[0]).all(-1).any(1).all())


@contextmanager
def _record_inputs(layers: list[Layer], on_input: Callable[[Tensor], None]) -> Iterator[None]:
    """Call `on_input` with the input of each layer whenever the layer is called."""
    handles = [layer.register_forward_pre_hook(lambda _, args: on_input(args[0])) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tap_names(model: nn.Module, count: int) -> Iterator[str]:
    """Yield candidate names of the inputs of sublayers, in blocks and in the sublayers of blocks."""
    lists = [len(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    for n in range(max(BLOCKS, *lists, count)):
        yield f"{n}.input"
        for i in range(PLACES):
            yield f"{n}.{i}.input"
            yield from (f"{n}.{i}.{j}.input" for j in range(PLACES // 2))
