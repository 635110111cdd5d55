"""Normed: a projection of normalised inputs; NormedKeys: normalised inputs for keys and values only."""

from jaxtyping import Float, Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_part
from kinformer.core.heads import Keys, Queries
from kinformer.core.projection import Projection


class Normed(Projection):
    """Projection of normalised inputs: queries of norm(x), keys and values of norm(source).

    Choose it for pre-norm layers with a memory of earlier layer inputs M, such as LayerNorm([SG(M), E]) in GTrXL. The
    memory stores inputs without the norm, and the norm is applied when they are read. So the current gain applies to
    old and new keys, and it also learns from keys of the memory. Give the block `nn.Identity()` as the norm of this
    sublayer. Additional projections that a mechanism needs get x without the norm.

    projection: projection of the normalised inputs.
    norm: norm of the projection's width.

    Errors: ValueError if an argument has the wrong kind.

    Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.1.
    """

    def __init__(self, projection: Projection, norm: nn.Module):
        super().__init__()
        self.inner = inner = check_part("projection", projection, Projection, "a projection, such as QKV(d, heads)")
        self.norm = check_part("norm", norm, nn.Module, "a norm, such as LayerNorm(d)")
        self.d, self.heads, self.key_heads = inner.d, inner.heads, inner.key_heads
        self.k_dim, self.v_dim, self.bias = inner.k_dim, inner.v_dim, inner.bias

    @property
    def value_heads(self) -> int:
        return self.inner.value_heads

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries:
        return self.inner.queries(self.norm(x), pos)

    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys:
        return self.inner.keys(self.norm(source), pos)

    def queries_and_keys(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> tuple[Queries, Keys]:
        return self.inner.queries_and_keys(self.norm(x), pos)

    def matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        return self.inner.matrix(name)


class NormedKeys(Normed):
    """Projection with queries of x without a norm, and keys and values of norm(source).

    The source has the inputs of keys: x itself, or a memory and x. Choose this class to load weights that were trained
    in this way, as in DI-engine's GTrXL. The paper normalises both, as `Normed` does.

    Source: DI-engine, ding/torch_utils/network/gtrxl.py.
    """

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries:
        return self.inner.queries(x, pos)

    def queries_and_keys(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> tuple[Queries, Keys]:
        return self.queries(x, pos), self.keys(x, pos)


def _example(kind: type[Normed] = Normed) -> Normed:
    return kind(kf.QKV(16, 2), kf.LayerNorm(16))


def _keys_alone() -> Normed:
    return _example(NormedKeys)


EXAMPLES = (_example, _keys_alone)
