"""Relative: a learned vector for each clipped distance, added to keys and to values."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.bias import Bias, Distances, ScoreFn, at, entry
from kinformer.core.checks import at_least
from kinformer.core.request import Request


class Relative(Bias):
    """Makes the score scale * q_i.(k_j + a_n) and the value v_j + b_n, n being j - i clipped to [-clip, clip].

    Choose it where nearness matters and far distances are all alike. The tables a and b have 2 clip + 1 rows and are
    shared by all heads.

    head_dim: the width of a query, and of a.
    clip: the furthest distance with a vector of its own, in positions.
    value_dim: the width of a value, and of b; head_dim unless given.
    values: False leaves b out, as most later models do.

    Errors: ValueError for a negative clip. Source: Shaw et al., 2018, arXiv:1803.02155, section 3.2.
    """

    def __init__(self, head_dim: int, clip: int, *, value_dim: int | None = None, values: bool = True):
        super().__init__()
        self.clip = at_least("clip", clip, 0)
        self.keys = _drawn(clip, at_least("head_dim", head_dim, 1))
        self.added = _drawn(clip, head_dim if value_dim is None else value_dim) if values else None

    def bind(self, piece: Request) -> ScoreFn:
        q_pos, k_pos = piece.queries.pos, piece.keys.pos
        term = torch.einsum("bhtk,nk->bhtn", piece.queries.q, self.keys) * piece.scale  # [B H T K] [N K]

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + entry(term, b, h, i, self._row(at(k_pos, b, h, j) - at(q_pos, b, h, i)))

        return score

    def values(
        self, q_pos: Int[Tensor, "B #H T"], k_pos: Int[Tensor, "B #H S"]
    ) -> tuple[Float[Tensor, "N V"], Int[Tensor, "B #H T S"]] | None:
        if self.added is None:
            return None
        return self.added, self._row(k_pos[..., None, :] - q_pos[..., :, None])

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        q, row = request.queries.q, self._row(-far)
        added = None if self.added is None else self.added[row]
        return Distances(q, self.keys[row][None], q * request.scale, added)

    def _row(self, ahead: Tensor) -> Tensor:
        return ahead.clamp(-self.clip, self.clip) + self.clip


def _drawn(clip: int, width: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * clip + 1, width)))


EXAMPLES = (lambda: Relative(8, 3), lambda: Relative(8, 2, values=False))
