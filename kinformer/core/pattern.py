"""Pattern: which positions may read which. A predicate over absolute positions, composed with & | ~."""

import dataclasses
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, NoReturn

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.core.checks import check_part
from kinformer.core.layout import Dense, Layout

Index = int | Tensor  # a batch row, head or position; tensors broadcast against each other


@dataclass(frozen=True, eq=False, repr=False)
class Pattern(ABC):
    """S_i, the set of keys that query i may read, as a predicate over absolute positions.

    A frozen dataclass of numbers and tuples, so it hashes, and prints as the expression that makes it again
    (`core.pattern_parser.parse`). `__call__` is the only method that must be written; every other one has a default
    that is true of any pattern, and an override only makes it sharper. Positions are always >= 0 here: padding is
    excluded by `attend`. Choose one from `kinformer.nn.patterns`, or write a file with one method.
    """

    @abstractmethod
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """May query position q read key position k, in batch row b and head h? All four broadcast."""

    @property
    def expression(self) -> "Pattern":
        """The same set written with & | ~ of simpler patterns, where there is such a form: `parts` reads it."""
        return self

    @property
    def layout(self) -> Layout:
        """A set of pairs that is cheap to read and holds all of this one."""
        return Dense()

    def reach(self) -> tuple[float, float]:
        """How far back and how far ahead of its query a key can be, in positions."""
        return math.inf, math.inf

    def live(self, k: Int[Tensor, "B C"], now: Int[Tensor, "B 1"]) -> Bool[Tensor, "B C"]:
        """May any query at position `now` or later still read key k?"""
        return torch.ones_like(k, dtype=torch.bool)

    def capacity(self, length: int) -> int:
        """An upper bound of the slots that a cache needs for rows of `length` tokens."""
        return length

    def period(self) -> int | None:
        """The least known n >= 1 by which a query and a key may both be moved: (q + n, k + n) is read where (q, k) is.

        None where none is known.
        """
        return None

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        """For the block of pairs q_lo..q_hi x k_lo..k_hi, ends included, of all rows and heads.

        May any be allowed, and is every one surely allowed. The ends broadcast: a tensor of each for many blocks.
        """
        any_pair = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) >= 0
        return any_pair, ~any_pair

    def of_head(self, h: int) -> "Pattern":
        """The set that head h reads, as a pattern of all heads: what it says of itself is as sharp as for that head."""
        inside = {name: part.of_head(h) for name, part in self._children().items() if isinstance(part, Pattern)}
        return self._replace_children(inside) if inside else self

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the batch that this pattern and those in it hold, by place ("right.ids").

        For code that must hand them over one by one: custom operators, checkpointing, wrappers.
        """
        tensors: dict[str, Tensor] = {}
        for name, part in self._children().items():
            inner = {"": part} if isinstance(part, Tensor) else part.tensors()
            tensors |= {f"{name}.{key}" if key else name: tensor for key, tensor in inner.items()}
        return tensors

    def _children(self) -> dict[str, "Pattern | Tensor"]:
        # asked in every read: building the tuple of fields takes longer than looking at them
        values = ((name, getattr(self, name)) for name in type(self).__dataclass_fields__)
        return {name: value for name, value in values if isinstance(value, (Pattern, Tensor))}

    def _replace_children(self, inside: Mapping[str, object]) -> "Pattern":
        return dataclasses.replace(self, **inside)

    def matrix(self, length: int, *, b: int = 0, h: int = 0) -> Bool[Tensor, "L L"]:
        """The pattern over positions 0..length-1 as a mask, queries down, keys across."""
        at = torch.arange(length)
        return torch.as_tensor(self(b, h, at[:, None], at[None, :])).expand(length, length)

    def show(self, length: int = 24, *, h: int = 0) -> str:
        """A drawing for a terminal: one line a query, one character a key."""
        return "\n".join("".join("█" if read else "·" for read in row) for row in self.matrix(length, h=h).tolist())

    def __repr__(self) -> str:
        # for patterns with tensors of the batch (eq=False, repr=False); others print their numbers
        return f"{type(self).__name__}(...)"

    def __and__(self, other: "Pattern") -> "Pattern":
        return And(self, other)

    def __or__(self, other: "Pattern") -> "Pattern":
        return Or(self, other)

    def __invert__(self) -> "Pattern":
        return Not(self)

    def __bool__(self) -> NoReturn:
        # else `Causal() and Band(3)` would be Band(3), which reads ahead
        raise TypeError("a pattern is neither true nor false; join patterns by &, | and ~ instead of and, or and not")


def check_pattern(name: str, value: Pattern) -> Pattern:
    """A Pattern: which keys may be read."""
    return check_part(name, value, Pattern, "a pattern, such as Causal() & Band(64)")


class _Joined(Pattern):
    """Patterns joined pair by pair, or one: what is known of them all tells what is known of the whole."""

    _join: ClassVar[Any] = operator.or_  # of two masks: what may be read
    _every: ClassVar[Any] = operator.and_  # and what surely is
    _end: ClassVar[Any] = max  # of how far each reaches
    _slots: ClassVar[Any] = sum  # of how many keys each keeps

    def _parts(self) -> list[Pattern]:
        return list(self._children().values())  # type: ignore[arg-type]

    def reach(self) -> tuple[float, float]:
        backs, aheads = zip(*(part.reach() for part in self._parts()), strict=True)
        return self._end(backs), self._end(aheads)

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return reduce(self._join, (part.live(k, now) for part in self._parts()))

    def capacity(self, length: int) -> int:
        return min(length, self._slots(part.capacity(length) for part in self._parts()))

    def period(self) -> int | None:
        return math.lcm(*(part.period() or 0 for part in self._parts())) or None

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        any_pair, every = zip(*(part.cover(q_lo, q_hi, k_lo, k_hi) for part in self._parts()), strict=True)
        return reduce(self._join, any_pair), reduce(self._every, every)


@dataclass(frozen=True, eq=False, repr=False)
class Spelled(_Joined):
    """A pattern that is only a name for an expression: write `expression`, and everything else follows from it."""

    @property
    @abstractmethod
    def expression(self) -> Pattern: ...

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return self.expression(b, h, q, k)

    @property
    def layout(self) -> Layout:
        return self.expression.layout

    def _parts(self) -> list[Pattern]:
        return [self.expression]


@dataclass(frozen=True, repr=False)
class _Pair(_Joined):
    """Two patterns, joined by `sign`."""

    left: Pattern
    right: Pattern
    sign: ClassVar[str]

    def __post_init__(self) -> None:
        for operand in (self.left, self.right):
            check_pattern(f"what stands beside {self.sign}", operand)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return self._join(self.left(b, h, q, k), self.right(b, h, q, k))

    def __repr__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


@dataclass(frozen=True, repr=False)
class And(_Pair):
    """Pairs that both patterns allow."""

    sign, _join, _every, _end, _slots = "&", operator.and_, operator.and_, min, min


@dataclass(frozen=True, repr=False)
class Or(_Pair):
    """Pairs that either pattern allows."""

    sign, _every = "|", operator.or_


@dataclass(frozen=True, repr=False)
class Not(Pattern):
    """Pairs that a pattern does not allow. Nothing sharper than the defaults is known of reach, live and capacity."""

    pattern: Pattern

    def __post_init__(self) -> None:
        check_pattern("what stands beside ~", self.pattern)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return ~torch.as_tensor(self.pattern(b, h, q, k))

    def __repr__(self) -> str:
        return f"~{self.pattern}"

    def period(self) -> int | None:
        return self.pattern.period()

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        any_pair, every = self.pattern.cover(q_lo, q_hi, k_lo, k_hi)
        return ~every, ~any_pair


@dataclass(frozen=True, init=False, repr=False)
class Heads(_Joined):
    """A pattern for each head: head h reads under patterns[h mod n]. `Heads(Causal() & Band(4), Causal())`."""

    patterns: tuple[Pattern, ...]

    def __init__(self, *by_head: Pattern, patterns: tuple[Pattern, ...] = ()):
        patterns = by_head or patterns  # by name where a wrapper rebuilds dataclasses
        if not patterns:
            raise ValueError("Heads got no pattern; give one for each head, or a few that the heads take in turn")
        for n, pattern in enumerate(patterns):
            check_pattern(f"pattern {n} of Heads", pattern)
        object.__setattr__(self, "patterns", patterns)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        turn = h % len(self.patterns)
        return reduce(operator.or_, (pattern(b, h, q, k) & (turn == n) for n, pattern in enumerate(self.patterns)))

    def __repr__(self) -> str:
        return f"Heads({', '.join(map(repr, self.patterns))})"

    def _children(self) -> dict[str, Pattern | Tensor]:
        return {str(n): pattern for n, pattern in enumerate(self.patterns)}

    def _replace_children(self, inside: Mapping[str, object]) -> Pattern:
        return Heads(*{**self._children(), **inside}.values())  # type: ignore[arg-type]

    def of_head(self, h: int) -> Pattern:
        return self.patterns[h % len(self.patterns)].of_head(h)


def narrow_pattern(pattern: Pattern, only: Pattern | None, also: Pattern | None) -> Pattern:
    """`(pattern | also) & only`: the set that a batch with limits and additions of its own reads."""
    pattern = pattern if also is None else pattern | also
    return pattern if only is None else pattern & only


def pair_mask(
    pattern: Pattern,
    q_pos: Int[Tensor, "B #H T"],
    k_pos: Int[Tensor, "B #H S"],
    heads: range,
    rows: Int[Tensor, " B"] | None = None,
) -> Bool[Tensor, "#B #H T S"]:
    """A pattern as a mask over positions; padding (-1) neither reads nor is read.

    Rows and heads that are masked alike share one mask. `rows` names the batch row of each row, its own unless given.
    """
    # positions of one row, expanded, are looked at once; patterns that tell rows apart bring their own dimension
    alike = q_pos.stride(0) == 0 and k_pos.stride(0) == 0 and len(q_pos) > 0
    q, k = (pos[:1] if alike else pos for pos in (q_pos, k_pos))
    q, k = q[..., :, None], k[..., None, :]
    b = torch.arange(len(q_pos), device=q.device) if rows is None else rows
    h = torch.arange(heads.start, heads.stop, device=q.device)
    inside = pattern(b[:, None, None, None], h[:, None, None], q.clamp_min(0), k.clamp_min(0))
    return inside & (q >= 0) & (k >= 0)
