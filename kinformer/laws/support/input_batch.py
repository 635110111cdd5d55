"""Input batches for the laws: rows of unequal length, with arbitrary entries at padding."""

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.pattern import Heads, Pattern

LABEL = 3  # consecutive tokens with the same label


@dataclass(frozen=True, eq=False)
class InputBatch:
    """The inputs of one call of a layer or model that a law tests.

    x: vectors [B T D] for a layer, or tokens [B T] for a model.
    pos: positions of the tokens, -1 at padding.
    only: pattern that limits the pairs that queries may read, if any (`ctx.only`).
    also: pattern of pairs that queries may read in addition, if any (`ctx.also`).
    source: vectors or tokens of a source for cross-attention, if any.
    source_pos: positions of the source.
    is_clean: True promises finite numbers at padding. No layer then writes zeros there before the part is called.
    """

    x: Tensor
    pos: Int[Tensor, "B T"]
    only: Pattern | None = None
    also: Pattern | None = None
    source: Tensor | None = None
    source_pos: Int[Tensor, "B S"] | None = None
    is_clean: bool = True

    @property
    def is_real(self) -> Tensor:
        """Mask [B T] of the real tokens: True except at padding."""
        return self.pos >= 0

    @property
    def size(self) -> tuple[int, int]:
        """Number of rows, and length of the rows in tokens with padding."""
        return self.pos.shape[0], self.pos.shape[1]

    def context(self) -> Context:
        """Return the context (positions and limits) of this batch for a layer.

        It promises everything that is true of the batch, such as rows without padding.
        """
        full = bool(self.is_real.all()) and (self.source_pos is None or bool((self.source_pos >= 0).all()))
        labels = {"segment": self.pos.clamp_min(0) // LABEL % 2}
        fields: dict[str, Any] = {"labels": labels, "is_clean": self.is_clean}
        return Context(self.pos, True, full, self.only, self.also, self.source, self.source_pos, **fields)

    def tensors(self) -> list[Tensor]:
        """Return the input tensors of the batch."""
        return [t for t in (self.x, self.pos, self.source, self.source_pos) if t is not None]

    def columns(self, lo: int, hi: int) -> "InputBatch":
        """Return a chunk: the tokens lo .. hi - 1 of every row, counted with padding.

        Only the chunk with lo = 0 has the source.
        """
        chunk = dataclasses.replace(self, x=self.x[:, lo:hi], pos=self.pos[:, lo:hi])
        return chunk if lo == 0 else dataclasses.replace(chunk, source=None, source_pos=None)

    def rows(self, rows: Sequence[int]) -> "InputBatch":
        """Return a batch of the rows with these indices, which may repeat."""
        at = torch.tensor(rows)
        source, source_pos = (None if tensor is None else tensor[at] for tensor in (self.source, self.source_pos))
        patterns = _rows(self.only, at), _rows(self.also, at)
        return InputBatch(self.x[at], self.pos[at], *patterns, source, source_pos, self.is_clean)

    def to(self, dtype: torch.dtype) -> "InputBatch":
        """Return the batch with its floating-point numbers in another precision."""

        def cast(t: Tensor) -> Tensor:
            return t.to(dtype) if t.is_floating_point() else t

        return dataclasses.replace(self, x=cast(self.x), source=None if self.source is None else cast(self.source))

    def narrow(self, pattern: Pattern) -> "InputBatch":
        """Return the batch with a further pattern that limits the pairs that queries may read."""
        return dataclasses.replace(self, only=pattern if self.only is None else self.only & pattern)


def positions(lengths: Sequence[int], lefts: Sequence[int], columns: int) -> Int[Tensor, "B T"]:
    """Return the positions of padded rows: 0, 1, 2, ... for the tokens, and -1 for padding on either side.

    lengths: number of tokens of each row.
    lefts: length of the padding before the tokens of each row.
    columns: length of all rows, padding included.
    """
    at = torch.arange(columns) - torch.tensor(lefts)[:, None]
    return torch.where((at >= 0) & (at < torch.tensor(lengths)[:, None]), at, -1)


def place_content(content: Tensor, pos: Int[Tensor, "B T"], garbage: Tensor | int) -> Tensor:
    """Return padded rows: entry n of each row stands where `pos` is n, and `garbage` stands at padding.

    content: the rows without padding, [B N] or [B N D].
    pos: the positions of the padded rows, -1 at padding.
    garbage: the entries at padding.
    """
    at = pos.clamp_min(0)
    if content.dim() == 2:
        return torch.where(pos >= 0, content.take_along_dim(at, 1), garbage)
    return torch.where((pos >= 0)[..., None], content.take_along_dim(at[..., None], 1), garbage)


def numbers(rows: int, columns: int, width: int, seed: int) -> Float[Tensor, "B T D"]:
    """Return normally distributed float64 vectors; with one seed, longer rows begin with the shorter ones.

    rows, columns, width: number of rows B, length of the rows T, and width of the vectors D.
    seed: seed of the numbers.
    """
    g = torch.Generator().manual_seed(seed)
    return torch.randn(columns, rows, width, generator=g, dtype=torch.float64).transpose(0, 1).contiguous()


def tokens(rows: int, columns: int, vocab: int, seed: int) -> Int[Tensor, "B T"]:
    """Return random tokens; with one seed, longer rows begin with the shorter ones.

    rows, columns: number of rows B and length of the rows T.
    vocab: size of the vocabulary.
    seed: seed of the tokens.
    """
    g = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (columns, rows), generator=g).T.contiguous()


def repeat_tokens(content: Tensor, seed: int) -> Tensor:
    """Replace about half of the tokens by copies of earlier tokens, in all rows except the first.

    Real texts repeat tokens, so a part that chooses among keys must handle equal ones. With one seed, a longer row
    begins with the shorter one.

    content: the rows of tokens or vectors, [B T ..].
    seed: seed of the copies.
    """
    rng, source = random.Random(seed), list[int]()
    for column in range(content.shape[1]):
        copies = column > 0 and rng.random() < 0.5
        source.append(source[rng.randrange(column)] if copies else column)
    return torch.cat([content[:1], content[1:, source]])


def equal_keys(k: Float[Tensor, "B G S K"], seed: int) -> Float[Tensor, "B G S K"]:
    """Replace about half of the keys by copies of earlier keys of the row, in all rows except the first.

    k: the keys.
    seed: seed of the copies.
    """
    return repeat_tokens(k.detach().transpose(1, 2), seed).transpose(1, 2).contiguous().requires_grad_()


def vary_rows(pattern: Pattern) -> Pattern:
    """Return a pattern whose batch rows differ: the tensors of each row are shifted by another amount.

    pattern: a pattern that holds tensors with one row for each row of the batch, such as `Document`.
    """
    return map_tensors(pattern, _shift_rows)


def map_tensors(pattern: Pattern, change: Callable[[Tensor], Tensor]) -> Pattern:
    """Return a pattern with a function applied to its batch tensors, and to the tensors of its operands.

    pattern: a pattern, or a combination of patterns. A batch tensor has one row for each row of the batch.
    change: the function from a tensor to a tensor.
    """
    if isinstance(pattern, Heads):
        return Heads(*(map_tensors(part, change) for part in pattern.patterns))
    changes: dict[str, Pattern | Tensor] = {}
    for name in (field.name for field in dataclasses.fields(pattern)):
        value = getattr(pattern, name)
        if isinstance(value, Tensor):
            changes[name] = change(value)
        elif isinstance(value, Pattern):
            changes[name] = map_tensors(value, change)
    return dataclasses.replace(pattern, **changes) if changes else pattern


def _shift_rows(table: Tensor) -> Tensor:
    """Shift each row 2 columns further than the previous row.

    A single number per row, such as a position, grows by 2 instead.
    """
    if table.shape[1] == 1 and table.dtype != torch.bool:
        return table + 2 * torch.arange(len(table))[:, None]
    return torch.stack([row.roll(2 * n, 0) for n, row in enumerate(table)])


def _rows(pattern: Pattern | None, at: Tensor) -> Pattern | None:
    return None if pattern is None else map_tensors(pattern, lambda tensor: tensor[at])
