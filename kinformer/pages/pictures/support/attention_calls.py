"""Functions that run an attention layer once and record the calls of its mechanisms, for pictures."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.heads import Keys, Queries
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism
from kinformer.core.memory import Memory
from kinformer.core.pattern import Pattern, pair_mask
from kinformer.core.patterns.causal import Causal
from kinformer.lab.cost.by_content import has_tags
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.shared_qk import SharedQK

TOKENS = 8


class MechanismCall(NamedTuple):
    """Recorded call of an attention mechanism with keys and values.

    name: name of the mechanism inside its layer.
    mechanism: the mechanism.
    queries, keys, ctx: arguments of the call; ctx is the context: positions and further inputs of the tokens.
    """

    name: str
    mechanism: KeyValueMechanism
    queries: Queries
    keys: Keys
    ctx: Context

    @property
    def heads(self) -> range:
        """The attention heads of the layer that this call computes, by index."""
        return range(self.queries.head, self.queries.head + self.queries.q.shape[1])

    @property
    def pattern(self) -> Pattern:
        """The attention pattern of this call: the keys that each query may read."""
        return self.mechanism.batch_pattern(self.ctx) if self.keys.own else self.mechanism.pattern

    @property
    def is_self_attention(self) -> bool:
        """Whether the queries and keys of this call are the same tokens of one sequence."""
        return self.keys.own and self.queries.pos.shape == self.keys.pos.shape


def attentions(example: Any) -> dict[str, Attention]:
    """Return the attention layers of an example by name, such as "layer 0".

    A single layer has the name "".

    example: a module; a mechanism or a memory is first put into a small attention layer. Other examples give {}.
    """
    if isinstance(example, Mechanism):
        shared = any(has_tags(module) for module in example.modules())
        return {"": Attention((SharedQK if shared else QKV)(16, 2), example)}
    if isinstance(example, Memory):
        return {"": Attention(QKV(16, 2), Softmax(Causal() & example.reads), memory=example)}
    if not isinstance(example, nn.Module):
        return {}
    layers: dict[str, Attention] = {}
    for name, module in example.named_modules():
        if isinstance(module, Attention):
            place = place_of(name) + " across" * module.cross
            layers[place if place not in layers else f"{place}, {name}"] = module
    return {"": next(iter(layers.values()))} if len(layers) == 1 else layers


def place_of(name: str) -> str:
    """Return the readable name of a module: "body.layers.3.layers.0" is "layer 3".

    name: name of the module inside the model.
    """
    words = name.split(".")
    number = next((word for word in words if word.isdigit()), None)
    side = next((f"{word} " for word in words if word in ("encoder", "decoder")), "")
    return name if number is None else f"{side}layer {number}"


def join_names(places: list[str]) -> str:
    """Join names of layers: "layer 0", "layer 1" and "layer 2" become "layers 0-2".

    places: names of layers; "" for an unnamed one, which is left out.
    """
    places = [place for place in places if place]
    heads = {place.rpartition(" ")[0] for place in places}
    numbers = [place.rpartition(" ")[2] for place in places]
    if len(places) < 2 or len(heads) > 1 or not all(number.isdigit() for number in numbers):
        return ", ".join(places)
    first, last = int(numbers[0]), int(numbers[-1])
    run = [str(n) for n in range(first, last + 1)] == numbers and len(numbers) > 2
    return f"{next(iter(heads))}s {f'{first}-{last}' if run else ', '.join(numbers)}"


def clustered_tokens(rows: int, d: int, kinds: int = 5) -> Tensor:
    """Return random tokens [1, T, d] that are noisy copies of a few vectors.

    Tokens of one kind are similar, so mechanisms that choose keys by content have clear choices.

    rows: number of tokens T.
    d: width.
    kinds: number of different vectors.
    """
    centre = torch.randn(kinds, d)
    return (centre[torch.randint(kinds, (rows,))] + 0.2 * torch.randn(rows, d))[None]


def calls(layer: Attention, x: Tensor, ctx: Context | None = None) -> list[MechanismCall]:
    """Run an attention layer on x, and return the recorded calls of its mechanisms with keys and values.

    layer: the attention layer.
    x: input [B, T, D]; cross-attention also reads it as its source.
    ctx: context of the call; None for unpadded rows that begin at position 0.
    """
    mechanism_calls: list[MechanismCall] = []
    inside = [
        (name, mechanism)
        for name, mechanism in layer.mechanism.named_modules()
        if isinstance(mechanism, KeyValueMechanism)
    ]
    was = layer.training
    layer.eval()
    with ExitStack() as hooks:
        for name, mechanism in inside:

            def note(module: Any, inputs: Any, name: str = name) -> None:
                queries, keys, _, context = inputs
                mechanism_calls.append(MechanismCall(name, module, queries, keys, context))

            hooks.callback(mechanism.register_forward_pre_hook(note).remove)
        ctx = Context.of_sequence(x) if ctx is None else ctx
        if layer.cross:
            ctx = ctx.replace(source=x, source_pos=positions(x))
        try:
            layer(x, None, ctx)
        except ValueError:
            pass  # the layer needs an input that is missing here, but its mechanism was already called
    layer.train(was)
    return mechanism_calls


def call_of(layer: Attention, size: int) -> MechanismCall:
    """Run an attention layer on clustered random tokens, and return the call of its only mechanism.

    layer: an attention layer with exactly one key-value mechanism.
    size: number of tokens.
    """
    (call,) = calls(layer, clustered_tokens(size, layer.d))
    return call


def first_head(call: MechanismCall) -> Float[Tensor, "T S"]:
    """Return the absolute attention weights of the first head in a recorded call.

    call: the call of the mechanism.
    """
    return read_weights(call)[0].detach().abs()


def mask_of(pattern: Pattern, size: int, heads: range = range(1)) -> Bool[Tensor, "H T T"]:
    """Return the mask of an attention pattern over positions 0 to size - 1; True for an allowed pair.

    pattern: the pattern.
    size: number of positions.
    heads: heads to compute.
    """
    at = torch.arange(size)[None, None]
    return pair_mask(pattern, at, at, heads)[0].expand(len(heads), size, size)


def inputs_of(module: nn.Module, run: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the positional arguments of the first call of a module while a function runs.

    module: the module to watch.
    run: function that calls the module.
    """
    calls: list[tuple[Any, ...]] = []
    with module.register_forward_pre_hook(lambda module, inputs: calls.append(inputs)):
        run()
    return calls[0]


def one_hot_weights(mechanism: Mechanism, run: Callable[[], Any]) -> Float[Tensor, "T S"]:
    """Measure the absolute attention weights of head 0 of a mechanism that takes values of any width.

    Each key gets its own one-hot vector as its value, so the output of a query holds its weights.

    mechanism: the mechanism.
    run: function that calls the mechanism once.
    """
    queries, keys, _, ctx = inputs_of(mechanism, run)
    eye = torch.eye(keys.pos.shape[-1]).expand(1, keys.v.shape[1], -1, -1)
    return mechanism(queries, keys._replace(v=eye), None, ctx).y.y[0, 0].abs()


def read_weights(call: MechanismCall, **changes: Tensor) -> Float[Tensor, "H T S"]:
    """Return the attention weights of each head, measured with one-hot values.

    The mechanism may add vectors to the values, so their width is kept. A few keys are therefore measured at a time,
    and the output for zero values is subtracted.

    call: the call of the mechanism.
    changes: fields of the queries to replace; with q = 0 the weights show only the bias.
    """
    keys, width = call.keys, call.keys.v.shape[-1]
    queries = call.queries._replace(**changes)  # type: ignore[arg-type]
    count = keys.pos.shape[-1]
    eye = torch.eye(count, count + -count % width)  # [S, a multiple of the width]

    def read(v: Float[Tensor, "S V"]) -> Float[Tensor, "H T V"]:
        return call.mechanism(queries, keys._replace(v=v.expand_as(keys.v)), None, call.ctx).y.y[0]

    alone = read(torch.zeros(count, width))
    return torch.cat([read(values) - alone for values in eye.split(width, 1)], -1)[..., :count]


def positions(x: Tensor) -> Int[Tensor, "B T"]:
    """Return positions 0 to T - 1 for every row.

    x: tensor [B, T, ...].
    """
    return torch.arange(x.shape[1]).expand(len(x), -1)


def group_equal_layers(example: Any, elsewhere: set[nn.Module]) -> Iterator[tuple[list[str], list[MechanismCall]]]:
    """Yield groups of attention layers with equal patterns, which one picture shows together.

    A group is the names of its layers and the calls of the mechanisms in one of them. Layers with a memory are left
    out, because other files draw them.

    example: a module with attention layers inside.
    elsewhere: further layers to leave out, because they have their own pictures.
    """
    groups: dict[Any, tuple[list[str], list[MechanismCall]]] = {}
    for place, layer in attentions(example).items():
        if layer.memory is not None or layer in elsewhere:
            continue
        inside = calls(layer, torch.randn(1, TOKENS, layer.d))
        key = tuple((call.name, type(call.mechanism), call.heads, repr(call.pattern), layer.cross) for call in inside)
        groups.setdefault(key, ([], inside))[0].append(place)
    yield from groups.values()
