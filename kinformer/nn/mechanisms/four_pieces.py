"""FourPieces: global-local attention (ETC) with separate keys and values for each of the four pieces."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.bias import Bias
from kinformer.core.checks import check_at_least
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.core.layer import Context, Out
from kinformer.core.pattern import Pattern
from kinformer.nn.mechanisms.global_softmax import GlobalSoftmax, GlobalSoftmaxState, split_extras
from kinformer.nn.patterns.rows import Rows


class FourPieces(GlobalSoftmax):
    """ETC's attention with projections for each pair of query and key type, global or long.

    Choose it if global and long tokens represent very different things. Choose `GlobalSoftmax(pattern, Rows(n), bias)`
    if only the type of the query should select the projections; the authors' code calls that share_kv_projections. This
    class has two matrices for queries, four for keys and four for values. Global queries read global and long keys (g2g
    and g2l) in one softmax; long queries read l2g and l2l in another. The layer's own projections make the long queries
    and the keys and values of l2l, long keys for long queries.

    pattern: keys that a long token reads, such as `Band(64) | Tokens(n)`; global tokens read all keys.
    n: number of global tokens, which are the first n tokens.
    bias: bias that changes the scores, such as `ETCLabels` (relative positions of ETC).
    copied: False initialises all matrices independently, as the authors' code does; True copies the layer's own.
    settings: scale, dropout and impl, as in `GlobalSoftmax`.

    Errors: as in `GlobalSoftmax`.

    Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.2.
    """

    def __init__(self, pattern: Pattern, n: int, bias: Bias | None = None, *, copied: bool = False, **settings: Any):
        super().__init__(pattern, Rows(check_at_least("n", n, 0)), bias, copied=copied, **settings)
        self.n = n

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        k, v = self._extra_projection(sizes.k_dim, "k"), self._extra_projection(sizes.v_dim, "v")
        return {**super().key_extras(sizes), "l2g_k": k, "l2g_v": v, "g2g_k": k, "g2g_v": v}

    def wants_lazy_extras(self, sizes: HeadSizes, ctx: Context) -> bool:
        return False  # a global query reads keys of two matrices, so the lazy form does not apply

    def forward(
        self, queries: Queries, keys: Keys | None, state: GlobalSoftmaxState | None, ctx: Context
    ) -> Out[AttentionOutput]:
        return super().forward(queries, None if keys is None else self._by_piece(keys), state, ctx)

    def _by_piece(self, keys: Keys) -> Keys:
        """Put the keys for long readers (l2g, l2l) into k and v, and those for global readers into the extras."""
        keys, (l2g_k, l2g_v, g2g_k, g2g_v) = split_extras(keys, "l2g_k", "l2g_v", "g2g_k", "g2g_v")
        first = (keys.pos < self.n)[..., None]  # [B 1 S 1]

        def select(of_global: Tensor, of_long: Tensor) -> Tensor:
            return of_global.where(first, of_long)

        wide = {"global_k": select(g2g_k, keys.extras["global_k"]), "global_v": select(g2g_v, keys.extras["global_v"])}
        return keys._replace(k=select(l2g_k, keys.k), v=select(l2g_v, keys.v), extras={**keys.extras, **wide})


def _example() -> FourPieces:
    return FourPieces(kf.Band(2) | kf.Tokens(2), 2)


EXAMPLES = (_example,)
