"""Relative: a learned vector for each clipped distance, added to keys and to values."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, at, entry
from kinformer.core.layer import Context


class Relative(Bias):
    """Makes the score scale * q_i.(k_j + a_n) and the value v_j + b_n, n being j - i clipped to [-clip, clip].

    Choose it where nearness matters and far distances are all alike. The tables, a of width `head_dim` and b of width
    `value_dim` (head_dim unless given), have 2 clip + 1 rows and are shared by all heads. `values=False` leaves b out,
    as most later models do.

    Errors: ValueError for a negative clip. Source: Shaw et al., 2018, arXiv:1803.02155, section 3.2.
    """

    def __init__(self, head_dim: int, clip: int, *, value_dim: int | None = None, values: bool = True):
        super().__init__()
        if clip < 0:
            raise ValueError(f"clip={clip} is the furthest distance with a vector of its own, so it must be at least 0")
        self.clip = clip
        self.keys = _drawn(clip, head_dim)
        self.added = _drawn(clip, head_dim if value_dim is None else value_dim) if values else None

    def bind(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        q_pos: Int[Tensor, "B #H T"],
        k_pos: Int[Tensor, "B #H S"],
        *,
        scale: float,
        reach: tuple[float, float],
        ctx: Context | None,
        sides: Mapping[str, Tensor],
    ) -> ScoreFn:
        term = torch.einsum("bhtk,nk->bhtn", q, self.keys) * scale

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + entry(term, b, h, i, self._row(at(k_pos, b, h, j) - at(q_pos, b, h, i)))

        return score

    def values(
        self, q_pos: Int[Tensor, "B #H T"], k_pos: Int[Tensor, "B #H S"]
    ) -> tuple[Float[Tensor, "N V"], Int[Tensor, "B #H T S"]] | None:
        if self.added is None:
            return None
        return self.added, self._row(k_pos[..., None, :] - q_pos[..., :, None])

    def _row(self, ahead: Tensor) -> Tensor:
        return ahead.clamp(-self.clip, self.clip) + self.clip


def _drawn(clip: int, width: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * clip + 1, width)))


EXAMPLES = (lambda: Relative(8, 3), lambda: Relative(8, 2, values=False))
COMPILES = True
