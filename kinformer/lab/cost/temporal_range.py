"""Temporal range of a model: the distance to the earliest token that can change an output."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.memory import MemoryCost
from kinformer.core.model import Model, Writer
from kinformer.core.pattern import Pattern
from kinformer.lab.cost.called_layers import called_layers, has_other_state
from kinformer.nn.attention import Attention

PAIRS = 1 << 24  # most pairs of query and key for which a pattern is evaluated
PLACES = 1 << 16  # most positions at which the range is computed
First = Callable[[int], int]  # the earliest position that a query position reads


@dataclass(frozen=True)
class TemporalRange:
    """The number of tokens from an output back to the earliest token that can change it, over all layers.

    least, most: smallest and largest range of the outputs at all positions of a segment, or of another length with
        which the attention patterns repeat.
    exact: False if only bounds are known.
    """

    least: int
    most: int
    exact: bool = True


def temporal_range(model: Model) -> TemporalRange | None:
    """Return the temporal range of a language model over all its layers.

    None if it is the whole text or unknown.

    A layer attends to tokens within its pattern or compressed memory, and the layers below have attended to tokens
    before these. N layers with a memory of m tokens therefore reach N m tokens before the segment. With m_cm compressed
    states of c tokens each, they reach N (m + c m_cm) tokens.

    model: the model.

    Source: Dai et al., 2019, arXiv:1901.02860, section 3.2; Rae et al., 2019, arXiv:1911.05507, section 3.1.
    """
    if not isinstance(model, Writer) or model.reads != "text" or not _says_what_it_reads(model):
        return None
    layers = [call.layer for call in called_layers(model, 3)]
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
    """Return the memory of earlier segments that each layer attends to, by the name of the layer.

    model: the model.
    """
    memories = {}
    for name, layer in model.named_modules():
        if isinstance(layer, Attention):
            part = layer.mechanism.memory_cost() if layer.memory is None else layer.memory.memory_cost()
            if part is not None:
                memories[name] = part
    return memories


def _says_what_it_reads(model: Model) -> bool:
    """True if every part with a state is attention with a pattern, so that the tokens it reads are known."""
    layers = [part for part in model.modules() if isinstance(part, Attention) and not part.cross]
    return all(isinstance(layer.mechanism, KeyValueMechanism) for layer in layers) and not has_other_state(model)


def _heard_tokens(layer: Attention) -> Pattern | None:
    """Return the pattern of tokens that can influence a query of a layer, or None if it has no such pattern."""
    if layer.memory is not None and not layer.memory.cached:
        return layer.memory.receptive_field
    return layer.mechanism.receptive_field if isinstance(layer.mechanism, KeyValueMechanism) else None


def _first_read(pattern: Pattern, heads: int) -> tuple[First, int]:
    """Return the earliest position that any head reads from each position, and its period.

    The period is 0 if it is unknown. It is also 0 if the earliest position moves back along a row: then a later
    position may have read more than the earliest one.
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
