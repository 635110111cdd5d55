"""TreeEdges: a learned vector for each type of edge in a tree of spans (runs of tokens)."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, at, entry
from kinformer.core.checks import check_at_least, check_flag
from kinformer.core.request import Request
from kinformer.core.span_tree import Node, edge, node


class TreeEdges(Bias):
    """Learned key vectors for each type of edge in a tree of spans (runs of tokens).

    score_ij = scale * q_i.(k_j + a_n), with n the type of the edge from node j to node i

    Choose it with the pattern `Tree(k)`. A span is a run of 2^m tokens, where m is its level. The type of an edge to a
    token gives the level of the span, whether it is before or after the token, and its rank by distance in that level.
    The type therefore also tells how far away the span is. All heads share the vectors.

    head_dim: width of a query, and of a row of a.
    k: same number as in the pattern `Tree(k)`.
    clip: largest level with its own types; higher levels have the types of this level.
    causal: if True, leave out the vectors for spans after a token. This keeps k + 1 of 2 k + 1 rows for each level.

    Source: Ye et al., 2019, arXiv:1911.04070, section 3.2 (relative positions on trees), types as the authors' code
    numbers them.
    """

    def __init__(self, head_dim: int, k: int, clip: int = 6, *, causal: bool = False):
        super().__init__()
        self.k, self.clip, self.causal = (
            check_at_least("k", k, 1),
            check_at_least("clip", clip, 0),
            check_flag("causal", causal),
        )
        self.types = (2 * k + 1) * (clip + 1)
        # the whole table is drawn, so that the bound of the uniform numbers does not depend on causal
        every = nn.init.xavier_uniform_(torch.empty(self.types, check_at_least("head_dim", head_dim, 1)))
        self.keys = nn.Parameter(self._rows(every))
        self.register_load_state_dict_pre_hook(_upgrade)

    def row(self, kind: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Return the index in the table of vectors for each type of edge."""
        if not self.causal:
            return kind
        # in each level, type 0 and the odd types stand for spans before a token
        step = 2 * self.k + 1
        return kind // step * (self.k + 1) + (kind % step + 1) // 2

    def _rows(self, whole: Float[Tensor, "N K"]) -> Float[Tensor, "R K"]:
        """Select the rows that queries can read from a table with one row for each type."""
        by_level = whole.unflatten(0, (-1, 2 * self.k + 1))
        return torch.cat([by_level[:, :1], by_level[:, 1::2]], 1).flatten(0, 1) if self.causal else whole

    def upgrade(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Drop table rows of edges that no query can read, from the tensors of an older checkpoint.

        Earlier versions saved one row for each type.
        """
        name = f"{prefix}keys"
        if name in tensors and tensors[name].dim() == 2 and len(tensors[name]) == self.types:
            tensors[name] = self._rows(tensors[name])

    def bind(self, piece: Request) -> ScoreFn:
        q = piece.queries.q
        query_nodes, key_nodes = (self._nodes(piece, pos) for pos in (piece.queries.pos, piece.keys.pos))
        row = torch.zeros((), dtype=torch.long, device=piece.queries.pos.device)
        term = torch.einsum("bhtk,nk->bhtn", q, self.keys.to(q.dtype)) * piece.scale  # [B H T K] [N K]

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            q, k = (
                Node(*(at(x, b if len(x) > 1 else row, h, n) for x in of))
                for of, n in ((query_nodes, i), (key_nodes, j))
            )
            return s + entry(term, b, h, i, self.row(edge(q, k, self.k, self.clip)))

        return score

    def _nodes(self, piece: Request, pos: Int[Tensor, "B #H N"]) -> Node:
        """Return the nodes at these positions, computed once per forward; rows that are alike give one row."""
        distinct = pos[:1] if pos.stride(0) == 0 else pos
        return piece.memo.get(lambda: node(distinct.clamp_min(0)), "nodes", pos)


def _upgrade(bias: nn.Module, tensors: dict[str, Tensor], prefix: str, *_: Any) -> None:
    assert isinstance(bias, TreeEdges)
    bias.upgrade(tensors, prefix)


EXAMPLES = (lambda: TreeEdges(8, 2, 3), lambda: TreeEdges(8, 1, 0))
