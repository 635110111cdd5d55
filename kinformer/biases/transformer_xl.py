"""TransformerXL: sinusoids of the distance, and two learned vectors that stand in for the query."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, at, entry
from kinformer.core.layer import Context
from kinformer.core.scores import shared


class TransformerXL(Bias):
    """Makes the score scale * [(q_i + u).k_j + (q_i + v).(W R_{i-j})], of distances alone and of any length.

    Choose it where a layer reads a memory, whose absolute positions would say nothing. R_n is the sinusoid of n, of
    width `d` (heads * head_dim unless given): all sines, then all cosines. W, u and v are learned, u and v in each
    head's own space; hand the u and v of one layer to the others, and all share them as the paper's model does.
    Distances have a sign, so it serves encoders too.

    Errors: ValueError for an odd d. Source: Dai et al., 2019, arXiv:1901.02860, section 3.3.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        d: int | None = None,
        *,
        u: nn.Parameter | None = None,
        v: nn.Parameter | None = None,
    ):
        super().__init__()
        self.heads, self.d = heads, heads * head_dim if d is None else d
        if self.d % 2:
            raise ValueError(f"sinusoids come in pairs of sine and cosine, and d={self.d} is odd; give an even d")
        self.position = nn.Linear(self.d, heads * head_dim, bias=False)
        self.u = _drawn(heads, head_dim) if u is None else u
        self.v = _drawn(heads, head_dim) if v is None else v

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
        least, most = distances(q_pos, k_pos, reach)
        table = self.position(sinusoids(torch.arange(least, most + 1, device=q.device), self.d, q.dtype))
        keys = shared(k, self.heads // k.shape[1])
        content = torch.einsum("hk,bhsk->bhs", self.u, keys) * scale
        position = torch.einsum("bhtk,nhk->bhtn", q + self.v[:, None], table.unflatten(-1, (self.heads, -1))) * scale

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = at(q_pos, b, h, i) - at(k_pos, b, h, j)
            return s + content[b, h, j] + entry(position, b, h, i, distance.clamp(least, most) - least)

        return score


def distances(
    q_pos: Int[Tensor, "B #H T"], k_pos: Int[Tensor, "B #H S"], reach: tuple[float, float]
) -> tuple[int, int]:
    """The least and the most that a query is after its key: the reach's ends, or where it has none, the positions'."""
    back, ahead = reach
    least = -ahead if ahead < math.inf else -_furthest(k_pos, q_pos)
    most = back if back < math.inf else _furthest(q_pos, k_pos)
    return int(least), max(int(least), int(most))


def _furthest(late: Tensor, early: Tensor) -> int:
    late, early = late[late >= 0], early[early >= 0]
    return int(late.max() - early.min()) if late.numel() and early.numel() else 0


def sinusoids(n: Int[Tensor, " N"], d: int, dtype: torch.dtype) -> Float[Tensor, "N D"]:
    """[sin(n w_0), .., cos(n w_0), ..] with w_m = 10000^(-2m/d)."""
    exact = torch.promote_types(dtype, torch.float32)  # the angles of far distances need more digits than bfloat16 has
    angle = n[:, None].to(exact) * 10000 ** (-torch.arange(0, d, 2, dtype=exact, device=n.device) / d)
    return torch.cat([angle.sin(), angle.cos()], -1).to(dtype)


def _drawn(heads: int, head_dim: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(heads, head_dim) * 0.02)


EXAMPLES = (lambda: TransformerXL(2, 8), lambda: TransformerXL(2, 8, 12))
