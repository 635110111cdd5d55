"""The temporal range of a model: how many tokens back the earliest one stands that an output can depend on."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Layer
from kinformer.core.mechanism import NoState
from kinformer.core.memory import MemoryCost
from kinformer.core.model import Model, Writer
from kinformer.core.pattern import Pattern
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention

PAIRS = 1 << 24  # pairs of a query and a key that a pattern is asked about, at most
PLACES = 1 << 16  # positions at which the range is computed, at most
First = Callable[[int], int]  # the earliest position that a query position reads


@dataclass(frozen=True)
class TemporalRange:
    """How many tokens back the earliest one is that can change an output.

    least, most: over all places of a segment, or another period of the patterns, for the tokens that look furthest.
    exact: False where only bounds are known.
    """

    least: int
    most: int
    exact: bool = True


def temporal_range(model: Model) -> TemporalRange | None:
    """The range of a language model over all of its layers; None where it is the whole text, or where a part hides it.

    A layer hears the tokens that its pattern, or a compressed memory, reaches: the layers beneath heard what stands
    before these. So N layers with a memory of m tokens reach N m tokens before the segment, and with m_cm compressed
    states of c tokens each N (m + c m_cm).

    Source: Dai et al., 2019, arXiv:1901.02860, section 3.2; Rae et al., 2019, arXiv:1911.05507, section 3.1.
    """
    if not isinstance(model, Writer) or model.reads != "text" or not _says_what_it_reads(model):
        return None
    layers = _layers_in_order(model)
    patterns = [_heard_tokens(layer) for layer in layers]
    reaches = [math.inf if pattern is None else pattern.reach()[0] for pattern in patterns]
    if not layers or math.inf in reaches:
        return None
    total = int(sum(reaches))
    firsts = [
        _first_read(pattern, layer.sizes.heads)
        for pattern, layer in zip(patterns, layers, strict=True)
        if pattern is not None
    ]
    periods = math.lcm(*(period for _, period in firsts))
    if periods == 0 or periods > PLACES:
        return TemporalRange(total, total, exact=False)
    begin = -(-total // periods) * periods
    ranges = []
    for place in range(begin, begin + periods):
        earliest = place
        for first, _ in reversed(firsts):
            earliest = first(earliest)
        ranges.append(place - earliest)
    return TemporalRange(min(ranges), max(ranges), all(layer.memory is None or layer.memory.sharp for layer in layers))


def remembered_by_layer(model: Model) -> dict[str, MemoryCost]:
    """What each layer with a memory reads beside its own segment, by the layer's name in the model."""
    memories = {}
    for name, layer in model.named_modules():
        if isinstance(layer, Attention):
            part = layer.mechanism.memory_cost() if layer.memory is None else layer.memory.memory_cost()
            if part is not None:
                memories[name] = part
    return memories


def _says_what_it_reads(model: Model) -> bool:
    """True if every part with a state is attention with a pattern, so that the tokens it reads are known."""
    within = {id(part) for layer in model.modules() if isinstance(layer, Attention) for part in layer.modules()}
    for part in model.modules():
        if isinstance(part, Attention):
            if not part.cross and not isinstance(part.mechanism, KeyValueMechanism):
                return False
        elif isinstance(part, Layer) and id(part) not in within and not _has_layers(part):
            try:
                if leaves(part.start(1, 1)):
                    return False
            except NoState:
                return False
    return True


def _has_layers(layer: nn.Module) -> bool:
    return any(isinstance(part, Layer) for part in layer.modules() if part is not layer)


def _layers_in_order(model: Any) -> Sequence[Attention]:
    """The self-attention layers of a reading in the order in which they are called, repeated ones as often."""
    layers: list[Attention] = []
    mode = model.training
    with torch.no_grad(), _calls(model, layers.append):
        try:
            model.train()  # nobody leaves early
            model.logits(model.inputs(model.sample(1, 2, 0))[0])
        finally:
            model.train(mode)
    return layers


@contextmanager
def _calls(model: nn.Module, on_call: Callable[[Attention], None]) -> Iterator[None]:
    attention = [part for part in model.modules() if isinstance(part, Attention) and not part.cross]
    hooks = [part.register_forward_pre_hook(lambda part, _: on_call(part)) for part in attention]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _heard_tokens(layer: Attention) -> Pattern | None:
    """The tokens of which a query of a layer can hear something; None for what says no pattern."""
    if layer.memory is not None and not layer.memory.cached:
        return layer.memory.receptive_field
    return layer.mechanism.receptive_field if isinstance(layer.mechanism, KeyValueMechanism) else None


def _first_read(pattern: Pattern, heads: int) -> tuple[First, int]:
    """The earliest position that any head reads from each position, and its period; 0 where that is not known.

    What the earliest position heard counts only if no later one heard more: so 0 too where it moves back along a row.
    """
    back, period = int(pattern.reach()[0]), pattern.period()
    if period is None or period * (back + 1) * heads > PAIRS:
        return lambda q: q - back, 0
    begin = -(-back // period) * period
    q = torch.arange(begin, begin + period)[:, None]
    k = q - torch.arange(back, -1, -1)
    each = pattern(0, torch.arange(heads)[:, None, None], q, k)
    read = each.expand(heads, period, back + 1).any(0)
    away = torch.where(read.any(1), back - read.to(torch.uint8).argmax(1), 0)
    firsts = (q[:, 0] - away).tolist()
    if any(later < earlier for earlier, later in zip(firsts, [*firsts[1:], firsts[0] + period], strict=True)):
        return lambda q: q - back, 0
    distances = away.tolist()
    return lambda q: q - distances[q % period], period
