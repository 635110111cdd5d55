"""Normed: a projection that norms what it is told; NormedKeys: keys and values alone."""

from jaxtyping import Float, Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_part
from kinformer.core.heads import Keys, Queries
from kinformer.core.projection import Projection


class Normed(Projection):
    """Queries of norm(x), keys and values of norm(source): the norm stands behind the memory and not before it.

    Choose it for pre-norm layers with a memory, LayerNorm([SG(M), E]) in GTrXL: what is kept are layer inputs as they
    are, so after a step of training all of what a query reads is normed by the same gain, which learns from memories
    too. Give the block `nn.Identity()` where the norm of this sublayer would stand. What a mechanism asks of the
    layer's input beyond queries and keys (its extras) is projected from x as it is.

    projection: what is projected with.
    norm: of its width.

    Errors: ValueError for a projection that is none. Source: Parisotto et al., 2019, arXiv:1910.06764, section 3.1.
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
    """Queries of x as it is, keys and values of norm(source), as DI-engine's GTrXL has it.

    Choose it to read weights that were trained so; the paper norms both, as `Normed` does. Source: DI-engine,
    ding/torch_utils/network/gtrxl.py.
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
