"""ETCLabels: a learned vector for each relation of two tokens: their distance, or same segment or not."""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, at, check_bias_heads, entry
from kinformer.core.checks import check_at_least
from kinformer.core.request import Request
from kinformer.nn.biases.token_labels import labels_of


class ETCLabels(Bias):
    """Learned key vectors for the relation of two tokens: clipped distance, or whether segments agree.

    score_ij = scale * q_i.(k_j + a_n), with n the label (number of the relation) of the pair (i, j)

    Choose it for attention between global tokens, which stand for segments, and local tokens, as in ETC. Each head has
    its own vectors.

    The label of two local tokens is j - i, clipped to [-clip, clip]. The label of two global tokens is made in the same
    way, with vectors of their own. These are 2 clip + 1 labels for each of the two groups. The label of a global and a
    local token tells whether both are in the same segment. The labels for a global query and for a local query differ.
    `Context(labels={"segment": ...})` gives the segments, and a cache keeps them. Without segments all tokens are in
    one segment.

    heads: number of heads of the layer.
    head_dim: width of a query.
    n: number of global tokens, at positions 0 .. n - 1.
    clip: largest distance with its own label, in positions.
    order: if True, a key in an earlier segment has another label than a key in a later segment.

    Errors: ValueError if `clip` is negative, if the layer has a different number of heads, or if only queries or only
    keys have segments. Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.1.
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
        """Return the label of each pair of a query position and a key position.

        Labels are numbered in groups: local query and local key, both global, local query and global key, global query
        and local key.

        q: query positions.
        k: key positions.
        ahead: number of the key's segment minus number of the query's segment.
        """
        distances = 2 * self.clip + 1
        near = (k - q).clamp(-self.clip, self.clip) + self.clip
        related = torch.where(ahead == 0, 0, torch.where(ahead > 0, self.others, 1))
        wide_q, wide_k = q < self.n, k < self.n
        same = near + distances * wide_q
        across = 2 * distances + (1 + self.others) * wide_q + related
        return torch.where(wide_q == wide_k, same, across)


EXAMPLES = (lambda: ETCLabels(2, 8, 2, 3), lambda: ETCLabels(2, 8, 0, 2, order=True))
