"""Part: the tokens of a split, where its documents begin, and how many bytes each token stands for."""

from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

GOLDEN = (5**0.5 - 1) / 2
STRETCH = 4096  # bytes; what stands before its begin is worth less than a thousandth of it to a model that reads on


class Part(NamedTuple):
    """The tokens of a split, as they lie in memory or on a disk.

    begins: where its documents begin, 0 first; None where it is one text.
    widths: of how many bytes each token is; None where a token is a byte.
    """

    tokens: Shaped[Tensor, " N"]
    begins: Int[Tensor, " D"] | None = None
    widths: Int[Tensor, " N"] | None = None

    @classmethod
    def of(cls, text: "Tensor | Part") -> "Part":
        """A part, bare tokens or not."""
        return text if isinstance(text, Part) else cls(text)

    @property
    def unit(self) -> str:
        """What its tokens are called."""
        return "bytes" if self.widths is None and self.tokens.dtype == torch.uint8 else "tokens"

    @property
    def firsts(self) -> Int[Tensor, " D"]:
        """Where its documents begin, one or more."""
        return torch.zeros(1, dtype=torch.long) if self.begins is None else self.begins

    def end(self, number: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Where some of its documents end."""
        firsts, last = self.firsts, len(self.firsts) - 1
        return torch.where(number < last, firsts[(number + 1).clamp_max(last)], len(self.tokens))

    @property
    def sizes(self) -> Int[Tensor, " D"]:
        """How many tokens each document has."""
        return torch.diff(self.firsts, append=torch.tensor([len(self.tokens)]))

    def first(self, limit: int | None) -> "Part":
        """What lies in its first `limit` bytes."""
        if limit is None:
            return self
        count = limit
        if self.widths is not None:
            count = int((self.widths[: 8 * limit].cumsum(0) <= limit).sum())
        begins = None if self.begins is None else self.begins[: max(int(torch.searchsorted(self.begins, count)), 1)]
        return Part(self.tokens[:count], begins, None if self.widths is None else self.widths[:count])

    def stretches(self, limit: int | None) -> int:
        """Of how many stretches so many bytes of one text are: as many of STRETCH as they hold, or 1."""
        return 1 if limit is None or limit >= self.bytes else max(limit // STRETCH, 1)

    def spread(self, limit: int | None) -> "Part":
        """So many bytes from all over it: of documents some, each from its begin and in order; of one text stretches.

        Which documents depends on how many there are alone, and more bytes have the documents of fewer and others: the
        fractional parts of the multiples of the golden ratio, by which they are taken, lie evenly. The last is cut.
        Stretches of one text begin evenly and are read each by itself; fewer than two of STRETCH are its first bytes.
        """
        if limit is None or limit >= self.bytes:
            return self
        if len(self.firsts) > 1:
            return self._joined(self._documents(limit))
        count = self.stretches(limit)
        if count == 1:
            return self.first(limit)
        at = [len(self.tokens) * n // count for n in range(count + 1)]
        shares = pairwise(limit * n // count for n in range(count + 1))
        return self._joined([self._cut(*ends).first(b - a) for ends, (a, b) in zip(pairwise(at), shares, strict=True)])

    def _documents(self, limit: int) -> "list[Part]":
        firsts = self.firsts
        taken: dict[int, Part] = {}
        for one in (torch.arange(len(firsts)).double() * GOLDEN % 1).argsort().tolist():
            whole = self._cut(int(firsts[one]), int(self.end(torch.tensor([one]))))
            taken[one] = whole.first(limit)
            limit -= taken[one].bytes
            if limit <= 0 or len(taken[one].tokens) < len(whole.tokens):
                break
        return [part for _, part in sorted(taken.items()) if len(part.tokens)]

    def _cut(self, begin: int, end: int) -> "Part":
        """Its tokens between two places, as one text."""
        return Part(self.tokens[begin:end], None, None if self.widths is None else self.widths[begin:end])

    def _joined(self, parts: "list[Part]") -> "Part":
        """Pieces of it as documents."""
        sizes = torch.tensor([0, *(len(part.tokens) for part in parts[:-1])])
        widths = [part.widths for part in parts if part.widths is not None]
        tokens = torch.cat([part.tokens for part in parts]) if parts else self.tokens[:0]
        return Part(tokens, sizes.cumsum(0), None if self.widths is None else torch.cat([self.widths[:0], *widths]))

    @property
    def bytes(self) -> int:
        """How many bytes it is of."""
        return len(self.tokens) if self.widths is None else int(self.widths.sum())

    @property
    def bytes_per_token(self) -> float:
        """The mean width of the tokens that have one before them in their document."""
        if self.widths is None or len(self.tokens) <= len(self.firsts):
            return 1.0
        count = len(self.tokens) - len(self.firsts)
        return (int(self.widths.sum()) - int(self.widths[self.firsts].sum())) / count
