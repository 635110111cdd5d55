"""ETCLabels: a learned vector for each relation of two tokens, by distance or by segment."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, at, entry
from kinformer.core.layer import Context


class ETCLabels(Bias):
    """Makes the score scale * q_i.(k_j + a_n), n being the label of how j stands to i.

    Between two tokens of a text, and between two global ones, which are the first `n` positions, the label is j - i
    clipped to [-clip, clip], 2 clip + 1 labels for each; between a global token and a text's, whether both are of one
    segment, read from `ctx.below["segment"]` [B T], each direction with labels of its own. `order=True` tells other
    segments before from those after. Each head has its own vectors. Without segments all tokens are of one.

    Errors: ValueError for a negative clip, and for segments of other tokens than the queries and keys. Source: Ainslie
    et al., 2020, arXiv:2004.08483, section 3.1.
    """

    def __init__(self, heads: int, head_dim: int, n: int, clip: int, *, order: bool = False):
        super().__init__()
        if clip < 0:
            raise ValueError(f"clip={clip} is the furthest distance with a label of its own, so it must be at least 0")
        self.n, self.clip, self.others = n, clip, 2 if order else 1
        labels = 2 * (2 * clip + 1) + 2 * (1 + self.others)
        self.keys = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, labels, head_dim)))

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
        segment = segments_of(ctx, q, k, type(self).__name__)
        term = torch.einsum("bhtk,hnk->bhtn", q, self.keys) * scale

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            ahead = torch.zeros_like(b) if segment is None else segment[b, j] - segment[b, i]
            return s + entry(term, b, h, i, self.label(at(q_pos, b, h, i), at(k_pos, b, h, j), ahead))

        return score

    def label(self, q: Int[Tensor, "..."], k: Int[Tensor, "..."], ahead: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The label of positions q and k, whose segment is so many ahead of that of q.

        Long to long, global to global, long to global, global to long.
        """
        distances = 2 * self.clip + 1
        near = (k - q).clamp(-self.clip, self.clip) + self.clip
        related = torch.where(ahead == 0, 0, torch.where(ahead > 0, self.others, 1))
        wide_q, wide_k = q < self.n, k < self.n
        same = near + distances * wide_q
        across = 2 * distances + (1 + self.others) * wide_q + related
        return torch.where(wide_q == wide_k, same, across)


def segments_of(
    ctx: Context | None, q: Float[Tensor, "B H T K"], k: Float[Tensor, "B G S K"], name: str
) -> Int[Tensor, "B T"] | None:
    """The segments of queries and keys that are one sequence, None where none are named; ValueError for another's."""
    segment = None if ctx is None else ctx.below.get("segment")
    if segment is not None and (segment.shape[1], segment.shape[1]) != (q.shape[2], k.shape[2]):
        raise ValueError(
            f"{name} got segments of {segment.shape[1]} tokens for {q.shape[2]} queries and {k.shape[2]} keys; "
            "it serves a whole sequence that reads itself"
        )
    return segment


EXAMPLES = (lambda: ETCLabels(2, 8, 2, 3), lambda: ETCLabels(2, 8, 0, 2, order=True))
COMPILES = True
