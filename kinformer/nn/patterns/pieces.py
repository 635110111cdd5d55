"""Pieces: ETC's masks, one pattern for each direction between global and long tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.pattern import Index, Pattern, check_pattern
from kinformer.core.patterns.full import Full
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.tokens import Tokens

PIECES = ("g2g", "g2l", "l2g", "l2l")  # from reader to key: g is global, l is long


@dataclass(frozen=True)
class Pieces(Pattern):
    """ETC's four masks: one pattern for each direction between global tokens and long tokens.

    Global tokens stand at positions 0 .. n - 1, and the long tokens of a text follow them. In the pattern of each
    direction, called a piece, global tokens have positions from 0 and long tokens have positions from 0. So long tokens
    keep their positions in the text. Choose it if the directions need different limits. As the limit of a batch, write
    `Context(only=Pieces(n, l2l=Document(ids), g2l=...))`. `GlobalTokens` and `GlobalNodes`, which put tokens before a
    text, use it as it is.

    n: number of global tokens.
    g2g, g2l, l2g, l2l: pattern of each direction from query to key, with g for global and l for long; by default all
        pairs.

    Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.2.

    Differences: the paper adds -10000 to the scores of other pairs. Here those pairs are not read, so a token that may
    read nothing reads zero, not the mean of all tokens.
    """

    n: int
    g2g: Pattern = Full()
    g2l: Pattern = Full()
    l2g: Pattern = Full()
    l2l: Pattern = Full()

    def __post_init__(self) -> None:
        check_at_least("Pieces.n", self.n, 0)
        for name in PIECES:
            check_pattern(f"Pieces.{name}", getattr(self, name))

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        q, k = torch.as_tensor(q), torch.as_tensor(k)
        wide_q, wide_k = q < self.n, k < self.n
        ends = {True: (q, k), False: ((q - self.n).clamp_min(0), (k - self.n).clamp_min(0))}
        allowed = (wide_q & ~wide_q) & (wide_k & ~wide_k)
        for name in PIECES:
            wide = name[0] == "g", name[2] == "g"
            inside = (wide_q == wide[0]) & (wide_k == wide[1])
            allowed = allowed | (inside & getattr(self, name)(b, h, ends[wide[0]][0], ends[wide[1]][1]))
        return allowed

    def reach(self) -> tuple[float, float]:
        sides = [self.l2l.reach()]
        if self.n:  # global tokens stand at positions 0 .. n - 1, before all long tokens
            (back, ahead), (back2, ahead2), (back3, ahead3) = (p.reach() for p in (self.g2g, self.g2l, self.l2g))
            sides += [(min(back, self.n - 1), min(ahead, self.n - 1)), (min(back2 - self.n, -1), ahead2 + self.n)]
            sides += [(back3 + self.n, min(ahead3 - self.n, -1))]
        backs, aheads = zip(*sides, strict=True)
        return max(backs), max(aheads)

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        any_pair = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) < 0
        every_pair = ~any_pair
        for name, inside, ends in cuts(self.n, q_lo, q_hi, k_lo, k_hi):
            q, k = (self.n if end == "l" else 0 for end in (name[0], name[2]))
            any_here, all_here = getattr(self, name).cover(ends[0] - q, ends[1] - q, ends[2] - k, ends[3] - k)
            any_pair, every_pair = any_pair | (inside & any_here), every_pair & (all_here | ~inside)
        return any_pair, every_pair


def cuts(n: int, *ends: Index) -> Iterator[tuple[str, Tensor, list[Tensor]]]:
    """Yield for blocks of pairs the name of each piece, whether they have pairs in it, and which.

    A piece is a direction between global and long tokens, such as "g2l". The pairs are given by the first and last
    positions of their queries and keys.

    n: number of global tokens.
    ends: first and last positions of the blocks: q_lo, q_hi, k_lo, k_hi.
    """
    at = torch.as_tensor(sum(ends)) * 0
    q_lo, q_hi, k_lo, k_hi = (end + at for end in ends)

    def cut(lo: Tensor, hi: Tensor, wide: bool) -> tuple[Tensor, Tensor, Tensor]:
        if wide:
            return lo < n, lo.clamp_max(max(n - 1, 0)), hi.clamp_max(max(n - 1, 0))
        return hi >= n, lo.clamp_min(n), hi.clamp_min(n)

    for name in PIECES:
        (some_q, *q), (some_k, *k) = cut(q_lo, q_hi, name[0] == "g"), cut(k_lo, k_hi, name[2] == "g")
        yield name, some_q & some_k, [*q, *k]


EXAMPLES = (Pieces(2, g2l=Band(1, 3), l2g=Tokens(1), l2l=Band(2)), Pieces(3, g2l=Band(0, 1), l2l=Band(2)))
