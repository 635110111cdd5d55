"""TreeLevel: tokens read the spans (runs of tokens) of one level of a binary tree."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least, check_flag
from kinformer.core.pattern import Index, Pattern
from kinformer.core.span_tree import end_of_spans_before, first_span_after


@dataclass(frozen=True)
class TreeLevel(Pattern):
    """One level of `Tree(k)` (BP-Transformer): tokens read spans of this level, both numbered from 0.

    A span of level m is a run of 2^m tokens. Choose it to compute a tree level by level: neighbouring tokens read runs
    of neighbouring spans, so the pairs lie in few blocks. The mechanism `TreeSoftmax` uses it to gather the spans that
    neighbouring tokens read.

    k: number of spans of the level on either side.
    level: level of the spans; level 0 is the tokens, and each token then reads itself too.
    causal: True reads only spans that end before the token.

    Source: Ye et al., 2019, arXiv:1911.04070, section 3.1.
    """

    k: int
    level: int = 0
    causal: bool = False

    def __post_init__(self) -> None:
        check_at_least("TreeLevel.k", self.k, 1)
        check_at_least("TreeLevel.level", self.level, 0)
        check_flag("TreeLevel.causal", self.causal)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        token, x = torch.as_tensor(q), torch.as_tensor(k)
        (lo, hi), (lo2, hi2) = self._spans_before(token), self._spans_after(token)
        return ((lo <= x) & (x < hi)) | ((lo2 <= x) & (x < hi2))

    def _spans_before(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Return begin and end of the spans before a token that it reads; on level 0 also itself."""
        return 2 * end_of_spans_before(token, self.k, self.level + 1), end_of_spans_before(
            token, self.k, self.level
        ) + (self.level == 0)

    def _spans_after(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Return begin and end of the spans behind a token that it reads."""
        start = first_span_after(token, self.k, self.level)
        return start, start if self.causal else 2 * first_span_after(token, self.k, self.level + 1)

    def hull(self, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shortest run of spans that has all spans read by the tokens first..last.

        The result is the first span of the run and the span after its last.
        """
        begin, end = self._ends(first), self._ends(last)
        return begin[0][0], end[-1][1]

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        first, last, lo, hi = (torch.as_tensor(end) for end in (q_lo, q_hi, k_lo, k_hi))
        any_pair = every_pair = torch.zeros_like(first + last + lo + hi, dtype=torch.bool)
        # on each side a token reads a run of spans, and the run moves on with the token
        for begins, ends in zip(self._ends(first), self._ends(last), strict=True):
            any_pair = any_pair | (torch.maximum(begins[0], lo) < torch.minimum(ends[1], hi + 1))
            every_pair = every_pair | ((ends[0] <= lo) & (hi < begins[1]))
        return any_pair, every_pair

    def _ends(self, token: Tensor) -> list[tuple[Tensor, Tensor]]:
        if self.level == 0:  # both sides and the token between them are one run
            (lo, middle), (_, hi) = self._spans_before(token), self._spans_after(token)
            return [(lo, middle if self.causal else hi)]
        return [self._spans_before(token), self._spans_after(token)] if not self.causal else [self._spans_before(token)]


EXAMPLES = (TreeLevel(1), TreeLevel(2, 1), TreeLevel(3, 2, causal=True), TreeLevel(2, 0, causal=True))
