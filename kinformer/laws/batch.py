"""Batch: what a law feeds to a part. Rows of unequal length, padded on either side, with garbage at the padding."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.pattern import And, Heads, Not, Or, Pattern

SOURCE = 7  # tokens of a source, for what reads one: another number than any length a law uses for x by itself


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of one call: x is numbers [B T D] or tokens [B T], padding is -1 in `pos`; own patterns, and a source."""

    x: Tensor
    pos: Int[Tensor, "B T"]
    only: Pattern | None = None
    also: Pattern | None = None
    source: Tensor | None = None
    source_pos: Int[Tensor, "B S"] | None = None

    @property
    def real(self) -> Tensor:
        """Which columns hold a token."""
        return self.pos >= 0

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.pos.shape[0], self.pos.shape[1]

    def context(self) -> Context:
        """What a layer is told of this batch."""
        return Context(self.pos, True, self.only, self.also, self.source, self.source_pos)

    def columns(self, lo: int, hi: int) -> "Batch":
        """A chunk of the batch. Only the first one brings the source."""
        chunk = dataclasses.replace(self, x=self.x[:, lo:hi], pos=self.pos[:, lo:hi])
        return chunk if lo == 0 else dataclasses.replace(chunk, source=None, source_pos=None)

    def rows(self, rows: Sequence[int]) -> "Batch":
        """The given rows, which may repeat."""
        at = torch.tensor(rows)
        return Batch(
            self.x[at],
            self.pos[at],
            _rows_of(self.only, at),
            _rows_of(self.also, at),
            None if self.source is None else self.source[at],
            None if self.source_pos is None else self.source_pos[at],
        )

    def to(self, dtype: torch.dtype) -> "Batch":
        """The same batch in another precision."""
        x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        source = self.source
        if source is not None and source.is_floating_point():
            source = source.to(dtype)
        return dataclasses.replace(self, x=x, source=source)

    def narrowed(self, pattern: Pattern) -> "Batch":
        """The same batch, which may read only what `pattern` allows too."""
        return dataclasses.replace(self, only=pattern if self.only is None else self.only & pattern)


def positions(lengths: Sequence[int], lefts: Sequence[int], columns: int) -> Int[Tensor, "B T"]:
    """Rows of -1s, then 0, 1, 2, ..., then -1s: row r has lengths[r] tokens after lefts[r] columns of padding."""
    at = torch.arange(columns) - torch.tensor(lefts)[:, None]
    return torch.where((at >= 0) & (at < torch.tensor(lengths)[:, None]), at, -1)


def placed(content: Tensor, pos: Int[Tensor, "B T"], garbage: Tensor | int) -> Tensor:
    """Row r's content n at the column where pos is n, and garbage at padding."""
    at = pos.clamp_min(0)
    if content.dim() == 2:
        return torch.where(pos >= 0, content.take_along_dim(at, 1), garbage)
    return torch.where((pos >= 0)[..., None], content.take_along_dim(at[..., None], 1), garbage)


def numbers(rows: int, columns: int, width: int, seed: int) -> Float[Tensor, "B T D"]:
    """Standard normal float64 numbers, the same for the same seed; longer rows begin as shorter ones do."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(columns, rows, width, generator=g, dtype=torch.float64).transpose(0, 1).contiguous()


def tokens(rows: int, columns: int, vocab: int, seed: int) -> Int[Tensor, "B T"]:
    """Random tokens, the same for the same seed; longer rows begin as shorter ones do."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (columns, rows), generator=g).T.contiguous()


def varied(pattern: Pattern) -> Pattern:
    """A pattern with tensors of the batch, the rows shifted against each other so that no two are alike."""
    return _over_tensors(pattern, lambda t: torch.stack([row.roll(2 * n, 0) for n, row in enumerate(t)]))


def holds_tensors(pattern: Pattern) -> bool:
    """Does this pattern hold tensors of a batch, so that it comes through a Context?"""
    return any(isinstance(getattr(pattern, field.name), Tensor) for field in dataclasses.fields(pattern))


def _rows_of(pattern: Pattern | None, at: Tensor) -> Pattern | None:
    return None if pattern is None else _over_tensors(pattern, lambda t: t[at])


def _over_tensors(pattern: Pattern, f: Callable[[Tensor], Tensor]) -> Pattern:
    if isinstance(pattern, And | Or):
        return type(pattern)(_over_tensors(pattern.left, f), _over_tensors(pattern.right, f))
    if isinstance(pattern, Not):
        return Not(_over_tensors(pattern.pattern, f))
    if isinstance(pattern, Heads):
        return Heads(*(_over_tensors(p, f) for p in pattern.patterns))
    mine = {field.name: getattr(pattern, field.name) for field in dataclasses.fields(pattern)}
    return dataclasses.replace(pattern, **{name: f(t) for name, t in mine.items() if isinstance(t, Tensor)})
