"""The conversion `pattern`: other keys for each query, such as a window with attention sinks."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.convert.support.changed_model import (
    attention_layers,
    earlier_conversions,
    has_keyword,
    kept_layers,
    record_change,
    with_keywords,
)
from kinformer.core.conversion import Conversion, Promise
from kinformer.core.discover import members
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.keywords import check_keywords
from kinformer.core.model import Model, display_name
from kinformer.core.pattern import Pattern, pair_mask
from kinformer.core.pattern_parser import parse

HORIZON = 16_384  # longest row at which two patterns are compared
BLOCK = 512  # queries, counted once for each head, that are compared at once


@dataclass(frozen=True)
class PatternConversion(Conversion):
    """Give every attention layer another pattern: the keys that each query may read. No weight changes.

    Choose it to read long texts in less time, or to decode with a cache of fixed size. Keep the first tokens readable:
    trained models put unneeded attention on them (attention sinks, Xiao et al., 2023, arXiv:2309.17453), and a window
    without them fails. `kf.convert(model, "Causal() & (Band(251) | Tokens(4))")` is the same as this recipe with the
    pattern as its option. Rotary models fail if they read the first tokens from farther away than in training: choose
    the conversion `window` for such texts.

    pattern: expression for the keys of each query. For a model that predicts the next token, keys after the query are
        left out of it.
    keep: numbers of the layers, from 1 at the bottom, that keep their pattern; or how many, chosen by measurement.
    """

    pattern: str = "Causal()"
    keep: int | tuple[int, ...] = ()

    def resolve(self, model: Model) -> Conversion:
        check_single_text(model, "another pattern")
        if model.predicts_next and parse(self.pattern).reach()[1] > 0:
            return replace(self, pattern=f"Causal() & ({self.pattern})")
        return self

    def restructure(self, model: Model) -> Model:
        new = self.patterns(model)
        if has_keyword(model, "pattern"):
            texts = self._keyword(model, len(new))
            try:
                check_keywords(members()[display_name(model)], {"pattern": texts})
            except TypeError:
                pass  # this member has one pattern for all layers
            else:
                return with_keywords(model, pattern=texts)
        for (_, layer), pattern in zip(attention_layers(model), new, strict=True):
            layer.mechanism.pattern = pattern  # type: ignore[assignment]
        return record_change(model, self)

    def _keyword(self, model: Model, count: int) -> str | tuple[str, ...]:
        """Return the value of the keyword `pattern` for this number of layers."""
        record: Any = model.member
        old = record.keywords["pattern"]
        old = old if isinstance(old, tuple) else (old,) * count
        keep = kept_layers(self.keep, count)
        texts = tuple(old[n] if n + 1 in keep else self.pattern for n in range(count))
        return texts[0] if len(set(texts)) == 1 else texts

    def promise(self, model: Model) -> Promise:
        old = [_pattern_of(model, name, layer.mechanism) for name, layer in attention_layers(model)]
        pairs = {(a, b) for a, b in zip(old, self.patterns(model), strict=True) if a != b}
        if not pairs:
            return Promise(torch.inf, "the patterns stay as they are")
        horizon = min(model.longest or HORIZON, HORIZON)
        heads = attention_layers(model)[0][1].sizes.heads
        length = min(_equal_length(a, b, heads, horizon) for a, b in pairs)
        return Promise(length, f"the new pattern reads the same pairs in rows of up to {length:,} tokens")

    def patterns(self, model: Model) -> list[Pattern]:
        """Return the new pattern of each attention layer."""
        layers, new = attention_layers(model), parse(self.pattern)
        keep = kept_layers(self.keep, len(layers))
        old = [_pattern_of(model, name, layer.mechanism) for name, layer in layers]
        return [pattern if number in keep else new for number, pattern in enumerate(old, 1)]


def check_single_text(model: Model, part: str) -> None:
    """Raise ValueError for a model that reads pairs of texts.

    model: the model.
    part: the part that the conversion gives the model, for the message.
    """
    if model.reads == "pairs":
        raise ValueError(
            f"cannot give this {display_name(model)} {part}: it reads pairs of texts, and its encoder needs another "
            "pattern than its decoder. Convert a model with a single text"
        )


def _pattern_of(model: Model, name: str, mechanism: object) -> Pattern:
    """Return the pattern of a mechanism that has one of its own, so that another one can take its place."""
    # a mechanism that computes its pattern has it as a property, which its attributes do not hold
    if not isinstance(mechanism, KeyValueMechanism) or "pattern" not in vars(mechanism):
        raise ValueError(
            f"cannot give {name} of this {display_name(model)} another pattern: {type(mechanism).__name__} chooses its "
            f"keys itself. Convert a model with Softmax attention.{earlier_conversions(model)}"
        )
    return mechanism.pattern


def _equal_length(old: Pattern, new: Pattern, heads: int, horizon: int) -> int:
    """Return the length of the longest rows, up to `horizon`, in which two patterns allow the same pairs.

    Each step adds the positions of a block to all positions before it, so no step needs more than BLOCK x L memory.
    """
    size, ahead = max(1, BLOCK // heads), max(old.reach()[1], new.reach()[1])
    for first in range(0, horizon, size):
        added, rows = torch.arange(first, min(first + size, horizon)), torch.arange(min(first + size, horizon))
        equal = _first_difference(old, new, heads, added, rows)
        if ahead > 0:  # queries before the block may read its keys
            equal = min(equal, _first_difference(old, new, heads, rows[:first], added))
        if equal < horizon:
            return int(equal)
    return horizon


def _first_difference(
    old: Pattern, new: Pattern, heads: int, queries: Int[Tensor, " T"], keys: Int[Tensor, " S"]
) -> float:
    """Return the length of the longest rows in which two patterns allow the same of these pairs; inf if all are."""
    old_mask, new_mask = (
        pair_mask(pattern, queries[None, None], keys[None, None], range(heads)) for pattern in (old, new)
    )
    differs = (old_mask != new_mask).any(1)[0]  # [T S]
    if not differs.any():
        return torch.inf
    # of each query with a difference the first key decides, because a pair needs the later one of its two positions
    has_one, first_key = differs.any(1), keys[differs.int().argmax(1)]
    return int(torch.maximum(queries, first_key)[has_one].amin())
