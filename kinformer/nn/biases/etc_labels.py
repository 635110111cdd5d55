"""ETCLabels: a learned vector for each relation of two tokens, by distance or by segment."""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, at, check_bias_heads, entry
from kinformer.core.checks import check_at_least
from kinformer.core.request import Request
from kinformer.nn.biases.token_labels import labels_of


class ETCLabels(Bias):
    """Makes the score scale * q_i.(k_j + a_n), n being the label of how j stands to i.

    Between two tokens of a text, and between two global ones, the label is j - i clipped to [-clip, clip], 2 clip + 1
    labels for each. Between a global token and a text's it says whether both are of one segment, each direction with
    labels of its own; `Context(labels={"segment": ..})` names the segments, and a cache keeps them. Each head has its
    own vectors. Without segments all tokens are of one.

    heads, head_dim: those of the layer.
    n: how many tokens are global: the first ones.
    clip: the furthest distance with a label of its own, in positions.
    order: True tells other segments before from those after.

    Errors: ValueError for a negative clip, and where only queries or only keys have segments. Source: Ainslie et al.,
    2020, arXiv:2004.08483, section 3.1.
    """

    def __init__(self, heads: int, head_dim: int, n: int, clip: int, *, order: bool = False):
        super().__init__()
        self.n, self.clip, self.others = check_at_least("n", n, 0), check_at_least("clip", clip, 0), 2 if order else 1
        labels = 2 * (2 * clip + 1) + 2 * (1 + self.others)
        self.keys = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, labels, head_dim)))

    def bind(self, piece: Request) -> ScoreFn:
        check_bias_heads(f"an ETCLabels of {len(self.keys)} heads", len(self.keys), piece)
        segments = labels_of(piece, "segment", "ETCLabels")
        q, q_pos, k_pos = piece.queries.q, piece.queries.pos, piece.keys.pos
        term = torch.einsum("bhtk,hnk->bhtn", q, self.keys.to(q.dtype)) * piece.scale  # [B H T K] [H N K]

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            ahead = torch.zeros_like(b) if segments is None else segments[1][b, j] - segments[0][b, i]
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


EXAMPLES = (lambda: ETCLabels(2, 8, 2, 3), lambda: ETCLabels(2, 8, 0, 2, order=True))
