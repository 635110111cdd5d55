"""Part: the tokens of a split, where its documents begin, and how many bytes each token stands for."""

from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from kinformer.lab.data.support.evaluation_sample import spread_order

STRETCH = 4096  # bytes of a lane; the missing context before it costs a model less than a thousandth of its score
SAMPLED, WINDOWS = 1024, 4  # bytes, and windows, of a stretch of a sample, at least
FEWEST, SHORTEST = 8, 512  # stretches that even a small sample has, unless they have fewer bytes than these
DOCUMENTS = 16  # stretches that a sample of long documents has at least


class SplitTokens(NamedTuple):
    """The tokens of a split, as they lie in memory or on a disk.

    begins: where its documents begin, 0 first; None where it is one text.
    widths: of how many bytes each token is; None where a token is a byte.
    """

    tokens: Shaped[Tensor, " N"]
    begins: Int[Tensor, " D"] | None = None
    widths: Int[Tensor, " N"] | None = None

    @classmethod
    def from_tokens(cls, text: "Tensor | SplitTokens") -> "SplitTokens":
        """A part, bare tokens or not."""
        return text if isinstance(text, SplitTokens) else cls(text)

    @property
    def unit(self) -> str:
        """What its tokens are called."""
        return "bytes" if self.widths is None and self.tokens.dtype == torch.uint8 else "tokens"

    @property
    def document_starts(self) -> Int[Tensor, " D"]:
        """Where its documents begin, one or more."""
        return torch.zeros(1, dtype=torch.long) if self.begins is None else self.begins

    def end(self, number: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Where some of its documents end."""
        firsts, last = self.document_starts, len(self.document_starts) - 1
        return torch.where(number < last, firsts[(number + 1).clamp_max(last)], len(self.tokens))

    @property
    def sizes(self) -> Int[Tensor, " D"]:
        """How many tokens each document has."""
        return torch.diff(self.document_starts, append=torch.tensor([len(self.tokens)]))

    def first_bytes(self, limit: int | None) -> "SplitTokens":
        """What lies in its first `limit` bytes."""
        if limit is None:
            return self
        count = limit
        if self.widths is not None:
            count = int((self.widths[: 8 * limit].cumsum(0) <= limit).sum())
        begins = None if self.begins is None else self.begins[: max(int(torch.searchsorted(self.begins, count)), 1)]
        return SplitTokens(self.tokens[:count], begins, None if self.widths is None else self.widths[:count])

    def spread(self, limit: int | None, length: int = 0) -> "SplitTokens":
        """A deterministic sample of at most `limit` bytes, spread over the text; each piece is read separately.

        A text is cut into stretches of 1,024 bytes, or of four windows of `length` tokens if that is more. A document
        is cut too if it is longer than a stretch and than a sixteenth of the limit. The sample takes evenly spaced
        stretches up to the limit and cuts the last one. A limit below 8,192 bytes takes shorter stretches.
        """
        if limit is None or limit >= self.bytes:
            return self
        return self._join(self._spread_parts(limit, length))

    def _spread_parts(self, limit: int, length: int) -> "list[SplitTokens]":
        firsts, sizes = self.document_starts, self.sizes
        counts = -(-sizes // self._stretch(limit, length))
        ends = counts.cumsum(0)
        chosen: dict[int, SplitTokens] = {}
        for number in spread_order(int(ends[-1])).tolist():
            document = int(torch.searchsorted(ends, number, right=True))
            count, size, first = int(counts[document]), int(sizes[document]), int(firsts[document])
            at = number - int(ends[document]) + count
            whole = self._cut(first + size * at // count, first + size * (at + 1) // count)
            chosen[number] = whole.first_bytes(limit)
            limit -= chosen[number].bytes
            if limit <= 0 or len(chosen[number].tokens) < len(whole.tokens):
                break
        return [part for _, part in sorted(chosen.items()) if len(part.tokens)]

    def _stretch(self, limit: int, length: int) -> int:
        """The largest number of tokens in a stretch of a sample."""
        width = self.bytes / len(self.tokens)
        size = max(SAMPLED, WINDOWS * length * width, limit // DOCUMENTS if len(self.document_starts) > 1 else 0)
        return max(round(min(size, max(limit // FEWEST, SHORTEST)) / width), 2)

    def _cut(self, begin: int, end: int) -> "SplitTokens":
        """Its tokens between two places, as one text."""
        return SplitTokens(self.tokens[begin:end], None, None if self.widths is None else self.widths[begin:end])

    def _join(self, parts: "list[SplitTokens]") -> "SplitTokens":
        """Pieces of it as documents."""
        sizes = torch.tensor([0, *(len(part.tokens) for part in parts[:-1])])
        widths = [part.widths for part in parts if part.widths is not None]
        tokens = torch.cat([part.tokens for part in parts]) if parts else self.tokens[:0]
        return SplitTokens(
            tokens, sizes.cumsum(0), None if self.widths is None else torch.cat([self.widths[:0], *widths])
        )

    @property
    def bytes(self) -> int:
        """How many bytes it is of."""
        return len(self.tokens) if self.widths is None else int(self.widths.sum())

    @property
    def bytes_per_token(self) -> float:
        """The mean width of the tokens that have one before them in their document."""
        if self.widths is None or len(self.tokens) <= len(self.document_starts):
            return 1.0
        count = len(self.tokens) - len(self.document_starts)
        return (int(self.widths.sum()) - int(self.widths[self.document_starts].sum())) / count
