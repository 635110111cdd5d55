"""The attention layers of an example, and what each of their mechanisms reads, seen by running them once."""

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
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.probsparse import ProbSparse
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.nn.mechanisms.sac import EdgeAttention
from kinformer.nn.mechanisms.sac_published import EdgePairAttention
from kinformer.nn.mechanisms.sinkhorn import Sinkhorn
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.topk import BestOfRow, TopK
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.shared_qk import SharedQK

TOKENS = 8


class MechanismCall(NamedTuple):
    """What a mechanism with a cache of keys was handed."""

    name: str
    mechanism: KeyValueMechanism
    queries: Queries
    keys: Keys
    ctx: Context

    @property
    def heads(self) -> range:
        """The layer's heads that it reads for."""
        return range(self.queries.head, self.queries.head + self.queries.q.shape[1])

    @property
    def pattern(self) -> Pattern:
        """The set of keys that its queries may read in this call."""
        return self.mechanism.batch_pattern(self.ctx) if self.keys.own else self.mechanism.pattern

    @property
    def is_self_attention(self) -> bool:
        """Does the sequence read itself, token by token?"""
        return self.keys.own and self.queries.pos.shape == self.keys.pos.shape


def attentions(example: Any) -> dict[str, Attention]:
    """The attention layers in an example by where they are; a mechanism, bias or memory is put into one of its own."""
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


def has_tags(module: nn.Module) -> bool:
    """Does a mechanism choose by content, by numbers that it gives to keys?"""
    return isinstance(module, KeyValueMechanism) and type(module).tags is not Mechanism.tags


def by_content(module: nn.Module) -> bool:
    """Does a mechanism choose its keys by content, so that its pattern says little of what it reads?"""
    chosen = isinstance(module, EdgeAttention | EdgePairAttention | Clustered | ProbSparse | Retrieval | Sinkhorn)
    return chosen or has_tags(module) or best_of(module) is not None


def best_of(module: nn.Module) -> int | None:
    """How many keys a query reads of those that score best; None where it reads others too."""
    if isinstance(module, Explicit) and isinstance(module.before, BestOfRow):
        return module.before.k
    return module.k if isinstance(module, TopK) else None


def place_of(name: str) -> str:
    """Where a module is, as a reader counts: "body.layers.3.layers.0" is "layer 3"."""
    words = name.split(".")
    number = next((word for word in words if word.isdigit()), None)
    side = next((f"{word} " for word in words if word in ("encoder", "decoder")), "")
    return name if number is None else f"{side}layer {number}"


def join_names(places: list[str]) -> str:
    """Names of layers in one: "layer 0, layer 1, layer 2" is "layers 0-2"; "" for a layer by itself."""
    places = [place for place in places if place]
    heads = {place.rpartition(" ")[0] for place in places}
    numbers = [place.rpartition(" ")[2] for place in places]
    if len(places) < 2 or len(heads) > 1 or not all(number.isdigit() for number in numbers):
        return ", ".join(places)
    first, last = int(numbers[0]), int(numbers[-1])
    run = [str(n) for n in range(first, last + 1)] == numbers and len(numbers) > 2
    return f"{next(iter(heads))}s {f'{first}-{last}' if run else ', '.join(numbers)}"


def clustered_tokens(rows: int, d: int, kinds: int = 5) -> Tensor:
    """Tokens [1 T d] that are copies of a few, so that what chooses by content has something to choose."""
    centre = torch.randn(kinds, d)
    return (centre[torch.randint(kinds, (rows,))] + 0.2 * torch.randn(rows, d))[None]


def calls(layer: Attention, x: Tensor, ctx: Context | None = None) -> list[MechanismCall]:
    """What each mechanism with a cache of keys was handed while a layer read x."""
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
            pass  # it wants what nobody sends here, after it was handed what is looked at
    layer.train(was)
    return mechanism_calls


def call_of(layer: Attention, size: int) -> MechanismCall:
    """The call of a layer's only mechanism on tokens of a few kinds."""
    (call,) = calls(layer, clustered_tokens(size, layer.d))
    return call


def first_head(call: MechanismCall) -> Float[Tensor, "T S"]:
    """How much each query of the first head takes of each key, unsigned."""
    return read_weights(call)[0].detach().abs()


def mask_of(pattern: Pattern, size: int, heads: range = range(1)) -> Bool[Tensor, "H T T"]:
    """A pattern over positions 0 .. size - 1."""
    at = torch.arange(size)[None, None]
    return pair_mask(pattern, at, at, heads)[0].expand(len(heads), size, size)


def inputs_of(module: nn.Module, run: Callable[[], Any]) -> tuple[Any, ...]:
    """The positional arguments of the first call of a module while something runs."""
    calls: list[tuple[Any, ...]] = []
    with module.register_forward_pre_hook(lambda module, inputs: calls.append(inputs)):
        run()
    return calls[0]


def one_hot_weights(mechanism: Mechanism, run: Callable[[], Any]) -> Float[Tensor, "T S"]:
    """As `first_head`, for a mechanism that takes values of any width: each value is a vector of its own."""
    queries, keys, _, ctx = inputs_of(mechanism, run)
    eye = torch.eye(keys.pos.shape[-1]).expand(1, keys.v.shape[1], -1, -1)
    return mechanism(queries, keys._replace(v=eye), None, ctx).y.y[0, 0].abs()


def read_weights(call: MechanismCall, **changes: Tensor) -> Float[Tensor, "H T S"]:
    """How much each query takes of each key: every value is a vector of its own, so the answer tells.

    Values keep their width, because a mechanism may add values of its own. So a few keys are probed at a time, and the
    output for zero values is subtracted. `changes` replace fields of the queries: with q = 0 the weights show only the
    bias.
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
    """0 .. T - 1 in every row."""
    return torch.arange(x.shape[1]).expand(len(x), -1)


def group_equal_layers(example: Any, elsewhere: set[nn.Module]) -> Iterator[tuple[list[str], list[MechanismCall]]]:
    """Layers that read alike, and what their mechanisms read, the pieces of a layer in order.

    Those with a memory, and those `elsewhere`, have pictures of their own.
    """
    groups: dict[Any, tuple[list[str], list[MechanismCall]]] = {}
    for place, layer in attentions(example).items():
        if layer.memory is not None or layer in elsewhere:
            continue
        inside = calls(layer, torch.randn(1, TOKENS, layer.d))
        key = tuple((call.name, type(call.mechanism), call.heads, repr(call.pattern), layer.cross) for call in inside)
        groups.setdefault(key, ([], inside))[0].append(place)
    yield from groups.values()
