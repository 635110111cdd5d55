"""OwnSegment: ETC's hard masks: pairs in some directions (global, long) must share a segment."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import check_at_least, check_option, check_position_table
from kinformer.core.pattern import Index, Pattern
from kinformer.core.patterns.document import same_id
from kinformer.core.quote import quote
from kinformer.nn.patterns.pieces import PIECES, cuts


@dataclass(frozen=True, eq=False, repr=False)
class OwnSegment(Pattern):
    """ETC's hard masks: pairs in the named directions must share a segment; other pairs are allowed.

    Global tokens stand for segments, such as sentences, of the long tokens, which are the text. Choose it for global
    tokens that should read only their own sentence. Pass it as `Context(only=OwnSegment(...))`. `GlobalTokens(layer, n,
    hard=("g2l",))` makes it from the label "segment".

    ids: segment of each absolute position [B P]; positions beyond P belong to no segment.
    n: number of global tokens, at positions 0 .. n - 1.
    pieces: directions that are limited, from query to key: "g2l" from global to long tokens, "l2g" from long to global,
        "l2l" between long, "g2g" between global tokens.

    Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.3 (hard g2l masks); l2g too in the authors' code.
    """

    ids: Int[Tensor, "B P"]
    n: int
    pieces: tuple[str, ...] = ("g2l",)

    def __post_init__(self) -> None:
        check_position_table("OwnSegment.ids", self.ids)
        check_at_least("OwnSegment.n", self.n, 0)
        pieces_of("OwnSegment.pieces", self.pieces)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        q, k = torch.as_tensor(q), torch.as_tensor(k)
        last = self.ids.shape[1] - 1
        same_segment = self.ids[b, q.clamp(max=last)] == self.ids[b, k.clamp(max=last)]
        allowed = same_segment & (q <= last) & (k <= last)
        for name in PIECES:
            if name not in self.pieces:
                allowed = allowed | (((q < self.n) == (name[0] == "g")) & ((k < self.n) == (name[2] == "g")))
        return allowed

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        any_pair = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) < 0
        every_pair = ~any_pair
        for name, inside, ends in cuts(self.n, q_lo, q_hi, k_lo, k_hi):
            any_here, all_here = same_id(self.ids, ends, self.n) if name in self.pieces else (inside, inside)
            any_pair, every_pair = any_pair | (inside & any_here), every_pair & (all_here | ~inside)
        return any_pair, every_pair


def pieces_of(name: str, pieces: tuple[str, ...]) -> tuple[str, ...]:
    """Return `pieces`, or raise ValueError if it is not a tuple of "g2g", "g2l", "l2g" and "l2l".

    A piece is a direction between global (g) and long (l) tokens.

    name: name of the argument, for the message.
    """
    if not isinstance(pieces, tuple):
        raise ValueError(f"{name}={quote(pieces)} must be a tuple of {' or '.join(map(repr, PIECES))}")
    for piece in pieces:
        check_option(name, piece, PIECES)
    return pieces


_IDS = torch.tensor([[0, 1, 2] + [0] * 4 + [1] * 3 + [2] * 54] * 8)
EXAMPLES = (OwnSegment(_IDS, 3), OwnSegment(_IDS, 3, ("l2g", "l2l")))
