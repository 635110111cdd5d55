"""Relative: a learned vector for each clipped distance, added to keys and to values."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32
from kinformer.core.bias import Bias, Distances, ScoreFn, ValueTable, at, check_bias_heads, entry
from kinformer.core.checks import check_at_least
from kinformer.core.request import Request


class Relative(Bias):
    """Learned vectors for each clipped distance, added to keys and to values.

    score_ij = scale * q_i.(k_j + a_n), value_ij = v_j + b_n, with n = j - i clipped to [-clip, clip]

    Choose it if near distances matter and all distances from `clip` on may share one vector. The tables a and b have
    one row for each distance that a query can read, at most 2 clip + 1. All heads share the tables, as in the paper's
    section 3.3. If `heads` is given, each head has its own tables, as in the paper's base model.

    head_dim: width of a query, and of a row of a.
    clip: largest distance with its own vector, in positions.
    value_dim: width of a value, and of a row of b; `head_dim` by default.
    values: if False, leave out b, as most later models do.
    heads: number of heads of the layer, to give each head its own tables; None for tables that all heads share.
    reach: largest distances of keys before and after a query, as returned by the layer's `pattern.reach()`. The tables
        have no rows for distances beyond it, so a causal layer has tables of clip + 1 rows.

    Errors: ValueError if `clip` is negative, or if the layer has a different number of heads than the tables.

    Source: Shaw et al., 2018, arXiv:1803.02155, section 3.2.
    """

    def __init__(
        self,
        head_dim: int,
        clip: int,
        *,
        value_dim: int | None = None,
        values: bool = True,
        heads: int | None = None,
        reach: tuple[float, float] = (math.inf, math.inf),
    ):
        super().__init__()
        self.clip, self.heads = (
            check_at_least("clip", clip, 0),
            None if heads is None else check_at_least("heads", heads, 1),
        )
        self.back = int(min(clip, max(reach[0], -clip)))
        self.ahead = int(max(-self.back, min(clip, reach[1])))
        self.keys = self._make_table(check_at_least("head_dim", head_dim, 1))
        self.added = self._make_table(head_dim if value_dim is None else value_dim) if values else None
        self.register_load_state_dict_pre_hook(_upgrade)

    def bind(self, piece: Request) -> ScoreFn:
        self._refuse_others(piece)
        q_pos, k_pos = piece.queries.pos, piece.keys.pos
        term = piece.queries.q @ self.keys.mT.to(piece.queries.q.dtype) * piece.scale  # [B H T K] [(H) N K]

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + entry(term, b, h, i, self._row(at(k_pos, b, h, j) - at(q_pos, b, h, i)))

        return score

    def values(self, q_pos: Int[Tensor, "B #H T"], k_pos: Int[Tensor, "B #H S"]) -> ValueTable | None:
        if self.added is None:
            return None
        row = self._row(k_pos[..., None, :] - q_pos[..., :, None])
        if self.heads is None:
            return self.added, row
        # the tables of all heads are joined: head h begins at row h N
        begins = torch.arange(self.heads, device=row.device)[:, None, None] * self.added.shape[1]
        return self.added.flatten(0, 1), row + begins

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        self._refuse_others(request)
        q, row = request.queries.q, self._row(-far)
        values = None if self.added is None else _table_rows(self.added, row)
        return Distances(q, _table_rows(self.keys, row), q * request.scale, values)

    def _refuse_others(self, piece: Request) -> None:
        if self.heads is not None:
            check_bias_heads(f"a Relative of {self.heads} heads", self.heads, piece)

    def _row(self, ahead: Tensor) -> Tensor:
        return ahead.clamp(-self.back, self.ahead) + self.back

    def _rows(self, whole: Float[Tensor, "*H M D"]) -> Float[Tensor, "*H N D"]:
        """Select the rows that queries can read from tables with one row for each distance from -clip to clip."""
        return whole[..., self.clip - self.back : self.clip + self.ahead + 1, :]

    def _make_table(self, width: int) -> nn.Parameter:
        # the whole table is drawn, so that the bound of the uniform numbers depends only on clip
        tables = [nn.init.xavier_uniform_(torch.empty(2 * self.clip + 1, width)) for _ in range(self.heads or 1)]
        return nn.Parameter(self._rows(tables[0] if self.heads is None else torch.stack(tables)).clone())

    def upgrade(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Drop table rows for distances that no query can read, from the tensors of an older checkpoint.

        Earlier versions saved all 2 clip + 1 rows.
        """
        for name in (f"{prefix}keys", f"{prefix}added"):
            if name in tensors and tensors[name].dim() > 1 and tensors[name].shape[-2] == 2 * self.clip + 1:
                tensors[name] = self._rows(tensors[name]).clone()


def _table_rows(table: Float[Tensor, "*H M D"], row: Int[Tensor, " N"]) -> Float[Tensor, "#H N D"]:
    """Return the given rows of the shared table, or of each head's table."""
    # the gradients of distances that share a row are summed in float32: a bfloat16 sum of thousands stops growing
    return at_least_float32(table if table.dim() == 3 else table[None])[:, row].to(table.dtype)


def _upgrade(bias: nn.Module, tensors: dict[str, Tensor], prefix: str, *_: Any) -> None:
    assert isinstance(bias, Relative)
    bias.upgrade(tensors, prefix)


EXAMPLES = (
    lambda: Relative(8, 3),
    lambda: Relative(8, 2, values=False),
    lambda: Relative(8, 3, heads=2),
    lambda: Relative(8, 3, reach=(math.inf, 0)),
)
