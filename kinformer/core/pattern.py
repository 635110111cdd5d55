"""Pattern: the set of keys that each query may attend to, as a predicate that composes with & | ~."""

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
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layout import Dense, Layout

Index = int | Tensor  # a batch row, head or position; tensors broadcast against each other


@dataclass(frozen=True, eq=False, repr=False)
class Pattern(KeywordHints, ABC):
    """Base class: the set of keys that each query may attend to, as a predicate over absolute positions.

    Choose a pattern from `kinformer.nn.patterns`, or write a subclass with one method: `__call__`. Every other method
    has a default that is correct for any pattern. An override gives a tighter bound, which saves time.

    A pattern is a frozen dataclass of numbers and tuples. It is hashable, and `core.pattern_parser.parse` turns its
    repr into the pattern again. Its methods get only positions >= 0, because `attend` excludes padding.
    """

    @abstractmethod
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Bool[Tensor, "..."]:
        """Return True if query position q may read key position k in row b and head h; all four broadcast."""

    @property
    def expression(self) -> "Pattern":
        """The same set, written as simpler patterns joined by & | ~, or the pattern itself.

        `kinformer.attend.pattern_parts.parts` uses it to split a pattern into parts that are fast to compute.
        """
        return self

    @property
    def layout(self) -> Layout:
        """A set of pairs that is cheap to compute and contains every pair of this pattern (`core.layout`)."""
        return Dense()

    def reach(self) -> tuple[float, float]:
        """Return the largest distances of a key behind and ahead of its query, in positions."""
        return math.inf, math.inf

    def live(self, k: Int[Tensor, "B C"], now: Int[Tensor, "B 1"]) -> Bool[Tensor, "B C"]:
        """Return True for each key position k that a query at position `now` or later may still read."""
        return torch.ones_like(k, dtype=torch.bool)

    def capacity(self, length: int) -> int:
        """Return an upper bound of the slots that a cache needs for rows of `length` tokens."""
        return length

    def period(self) -> int | None:
        """Return the least known period n >= 1 of the pattern; None if none is known.

        The pattern allows (q + n, k + n) if and only if it allows (q, k).
        """
        return None

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        """Return two flags for a block of pairs: the queries q_lo .. q_hi and the keys k_lo .. k_hi.

        The ends are included. The first flag is False only if the pattern allows no pair of the block, in any row and
        head. The second is True only if it allows every pair, in all rows and heads. The ends broadcast: pass tensors
        for many blocks at once.
        """
        any_pair = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) >= 0
        return any_pair, ~any_pair

    def of_head(self, h: int) -> "Pattern":
        """Return the pattern of head h, as a pattern that is the same for all heads.

        Reach, layout and capacity of the result describe only that head, so they may be smaller.
        """
        inside = {name: part.of_head(h) for name, part in self._children().items() if isinstance(part, Pattern)}
        return self._replace_children(inside) if inside else self

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that this pattern and its inner patterns hold, by field names ("right.ids").

        Custom operators, checkpointing and wrappers of models use it, because they must pass each tensor separately.
        """
        tensors: dict[str, Tensor] = {}
        for name, part in self._children().items():
            inner = {"": part} if isinstance(part, Tensor) else part.tensors()
            tensors |= {f"{name}.{key}" if key else name: tensor for key, tensor in inner.items()}
        return tensors

    def _children(self) -> dict[str, "Pattern | Tensor"]:
        # this method runs in every read, and dataclasses.fields would build a tuple each time
        values = ((name, getattr(self, name)) for name in type(self).__dataclass_fields__)
        return {name: value for name, value in values if isinstance(value, (Pattern, Tensor))}

    def _replace_children(self, inside: Mapping[str, object]) -> "Pattern":
        return dataclasses.replace(self, **inside)

    def matrix(self, length: int, *, b: int = 0, h: int = 0) -> Bool[Tensor, "L L"]:
        """Return the pattern over positions 0..length-1 as a mask [query, key]."""
        at = torch.arange(length)
        return torch.as_tensor(self(b, h, at[:, None], at[None, :])).expand(length, length)

    def show(self, length: int = 24, *, h: int = 0) -> str:
        """Return a drawing for a terminal: one line per query, one character per key."""
        return "\n".join("".join("█" if read else "·" for read in row) for row in self.matrix(length, h=h).tolist())

    def __repr__(self) -> str:
        # for patterns that hold tensors of the batch (eq=False, repr=False); other patterns print their numbers
        return f"{type(self).__name__}(...)"

    def __and__(self, other: "Pattern") -> "Pattern":
        return And(self, other)

    def __or__(self, other: "Pattern") -> "Pattern":
        return Or(self, other)

    def __rand__(self, other: Any) -> Any:
        return _refuse_class(other, "&", self)

    def __ror__(self, other: Any) -> Any:
        return _refuse_class(other, "|", self)

    def __invert__(self) -> "Pattern":
        return Not(self)

    def __bool__(self) -> NoReturn:
        # without this error `Causal() and Band(3)` would be Band(3), which reads ahead
        raise TypeError(
            "a pattern is neither true nor false; combine patterns with &, | and ~ instead of and, or and not"
        )


def _refuse_class(other: Any, sign: str, pattern: Pattern) -> Any:
    """Raise TypeError if a pattern's class stands left of a pattern; else return NotImplemented."""
    if isinstance(other, type) and issubclass(other, Pattern):
        raise TypeError(f"{other.__name__} is a class; write {other.__name__}(...) {sign} {pattern!r}")
    return NotImplemented


def check_pattern(name: str, value: Pattern) -> Pattern:
    """Return `value` if it is a Pattern, such as Causal() & Band(64).

    name: the parameter's name in the message.
    value: the object to check.

    Errors: ValueError if `value` is not a Pattern.
    """
    advice = ""
    if isinstance(value, Tensor):
        advice = "; PairMask(mask) makes one of a mask of pairs; a mask of padding goes to Context.of_sequence(x, mask)"
    elif isinstance(value, str):
        advice = ", without quotes, because only members take a text"
    return check_part(name, value, Pattern, f"a pattern, such as Causal() & Band(64){advice}")


class _Joined(Pattern):
    """A pattern of one or more inner patterns; its properties follow from theirs."""

    _join: ClassVar[Any] = operator.or_  # joins two masks of allowed pairs
    _every: ClassVar[Any] = operator.and_  # joins two masks of surely allowed pairs
    _end: ClassVar[Any] = max  # joins the reaches
    _slots: ClassVar[Any] = sum  # joins the numbers of keys that the parts keep

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
    """Base class of patterns that are only a name for an expression of other patterns.

    A subclass writes `expression`; everything else follows from it.
    """

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
            check_pattern(f"an operand of {self.sign}", operand)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return self._join(self.left(b, h, q, k), self.right(b, h, q, k))

    def __repr__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


@dataclass(frozen=True, repr=False)
class And(_Pair):
    """The pairs of query and key that two patterns both allow, written `left & right`."""

    sign, _join, _every, _end, _slots = "&", operator.and_, operator.and_, min, min


@dataclass(frozen=True, repr=False)
class Or(_Pair):
    """The pairs of query and key that one or both of two patterns allow, written `left | right`."""

    sign, _every = "|", operator.or_


@dataclass(frozen=True, repr=False)
class Not(Pattern):
    """The pairs of query and key that a pattern does not allow, written `~pattern`.

    `reach`, `live` and `capacity` keep their defaults, because no tighter bounds are known.

    pattern: the pattern to negate.
    """

    pattern: Pattern

    def __post_init__(self) -> None:
        check_pattern("the operand of ~", self.pattern)

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
    """A pattern for each head: head h uses patterns[h mod n], where n is the number of patterns.

    For example `Heads(Causal() & Band(4), Causal())`.

    by_head: one pattern per head, or a few that the heads take in turn.
    patterns: the same as a tuple, used if `by_head` is empty.

    Errors: ValueError if there is no pattern.
    """

    patterns: tuple[Pattern, ...]

    def __init__(self, *by_head: Pattern, patterns: tuple[Pattern, ...] = ()):
        patterns = by_head or patterns  # wrappers that rebuild dataclasses pass `patterns` by name
        if not patterns:
            raise ValueError("Heads got no pattern; give one for each head, or fewer that the heads use in turn")
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
    """Return `(pattern | also) & only`: a layer's pattern in a batch with its own limits and additions.

    pattern: the layer's pattern.
    only: the limits of the batch; None for no limit.
    also: the additional pairs of the batch; None for no addition.
    """
    pattern = pattern if also is None else pattern | also
    return pattern if only is None else pattern & only


def pair_mask(
    pattern: Pattern,
    q_pos: Int[Tensor, "B #H T"],
    k_pos: Int[Tensor, "B #H S"],
    heads: range,
    rows: Int[Tensor, " B"] | None = None,
) -> Bool[Tensor, "#B #H T S"]:
    """Return the mask of the pairs that a pattern allows; it is False at padding (position -1).

    Dimensions of rows and heads have size 1 if all rows or heads have the same mask.

    pattern: the pattern.
    q_pos, k_pos: positions of queries and keys, [B #H T] and [B #H S].
    heads: the indices of the heads in the layer.
    rows: the index in the batch of each row, for patterns that hold tensors of the batch; None for 0 .. B - 1.
    """
    # one row expanded over the batch is evaluated once; patterns that differ by row bring their own batch dimension
    alike = q_pos.stride(0) == 0 and k_pos.stride(0) == 0 and len(q_pos) > 0
    q, k = (pos[:1] if alike else pos for pos in (q_pos, k_pos))
    q, k = q[..., :, None], k[..., None, :]
    b = torch.arange(len(q_pos), device=q.device) if rows is None else rows
    h = torch.arange(heads.start, heads.stop, device=q.device)
    inside = pattern(b[:, None, None, None], h[:, None, None], q.clamp_min(0), k.clamp_min(0))
    return inside & (q >= 0) & (k >= 0)
