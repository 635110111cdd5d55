"""SplitTokens: the tokens of a split, the starts of its documents, and the bytes of each token."""

from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from kinformer.lab.data.support.evaluation_sample import spread_order

STRETCH = 4096  # bytes of a lane; the missing context before it costs a model less than a thousandth of its score
SAMPLED, WINDOWS = 1024, 4  # minimum bytes and windows in a stretch of a sample
FEWEST, SHORTEST = 8, 512  # minimum stretches of a small sample, unless they have fewer bytes than these
DOCUMENTS = 16  # minimum stretches of a sample of long documents


class SplitTokens(NamedTuple):
    """The tokens of a split, in memory or mapped from a disk.

    tokens: the tokens.
    begins: index of the first token of each document; None for a single text.
    widths: number of bytes of each token; None if each token is a byte.
    """

    tokens: Shaped[Tensor, " N"]
    begins: Int[Tensor, " D"] | None = None
    widths: Int[Tensor, " N"] | None = None

    @classmethod
    def from_tokens(cls, text: "Tensor | SplitTokens") -> "SplitTokens":
        """Return the text as `SplitTokens`; plain tokens become a single text."""
        return text if isinstance(text, SplitTokens) else cls(text)

    @property
    def unit(self) -> str:
        """Unit of the tokens: "bytes" or "tokens"."""
        return "bytes" if self.widths is None and self.tokens.dtype == torch.uint8 else "tokens"

    @property
    def document_starts(self) -> Int[Tensor, " D"]:
        """Index of the first token of each document; 0 for a single text."""
        return torch.zeros(1, dtype=torch.long) if self.begins is None else self.begins

    def end(self, number: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Return the index after the last token of each document; `number` counts documents from 0."""
        firsts, last = self.document_starts, len(self.document_starts) - 1
        return torch.where(number < last, firsts[(number + 1).clamp_max(last)], len(self.tokens))

    @property
    def sizes(self) -> Int[Tensor, " D"]:
        """Number of tokens in each document."""
        return torch.diff(self.document_starts, append=torch.tensor([len(self.tokens)]))

    def first_bytes(self, limit: int | None) -> "SplitTokens":
        """Return the tokens in the first `limit` bytes; None returns all."""
        if limit is None:
            return self
        count = limit
        if self.widths is not None:
            count = int((self.widths[: 8 * limit].cumsum(0) <= limit).sum())
        begins = None if self.begins is None else self.begins[: max(int(torch.searchsorted(self.begins, count)), 1)]
        return SplitTokens(self.tokens[:count], begins, None if self.widths is None else self.widths[:count])

    def spread(self, limit: int | None, length: int = 0) -> "SplitTokens":
        """Return a sample of at most `limit` bytes, evenly spread over the text and always the same.

        Each piece of the sample is one document of the result. A text is cut into stretches of 1,024 bytes, or of four
        windows of `length` tokens if they are longer. A document is cut too if it is longer than a stretch and than a
        sixteenth of the limit. The sample takes evenly spaced stretches up to the limit and cuts the last one. If the
        limit is less than eight stretches, they are an eighth of it, but at least 512 bytes.

        limit: maximum number of bytes; None takes all.
        length: tokens that a model reads at once.
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
        """Return the maximum number of tokens in a stretch of a sample."""
        width = self.bytes / len(self.tokens)
        size = max(SAMPLED, WINDOWS * length * width, limit // DOCUMENTS if len(self.document_starts) > 1 else 0)
        return max(round(min(size, max(limit // FEWEST, SHORTEST)) / width), 2)

    def _cut(self, begin: int, end: int) -> "SplitTokens":
        """Return the tokens between two positions as one text."""
        return SplitTokens(self.tokens[begin:end], None, None if self.widths is None else self.widths[begin:end])

    def _join(self, parts: "list[SplitTokens]") -> "SplitTokens":
        """Join pieces of the text; each becomes a document."""
        sizes = torch.tensor([0, *(len(part.tokens) for part in parts[:-1])])
        widths = [part.widths for part in parts if part.widths is not None]
        tokens = torch.cat([part.tokens for part in parts]) if parts else self.tokens[:0]
        return SplitTokens(
            tokens, sizes.cumsum(0), None if self.widths is None else torch.cat([self.widths[:0], *widths])
        )

    @property
    def bytes(self) -> int:
        """Number of bytes."""
        return len(self.tokens) if self.widths is None else int(self.widths.sum())

    @property
    def bytes_per_token(self) -> float:
        """Mean number of bytes of the tokens after the first token of each document."""
        if self.widths is None or len(self.tokens) <= len(self.document_starts):
            return 1.0
        count = len(self.tokens) - len(self.document_starts)
        return (int(self.widths.sum()) - int(self.widths[self.document_starts].sum())) / count
