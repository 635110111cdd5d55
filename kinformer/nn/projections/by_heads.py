"""ByHeads: different projections to queries, keys and values for different heads."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_part
from kinformer.core.heads import Keys, Queries
from kinformer.core.projection import Projection

SIZES = ("d", "heads", "key_heads", "value_heads", "k_dim", "v_dim", "bias")


class ByHeads(Projection):
    """Projection that concatenates the heads of several projections of equal size, in order.

        ByHeads(QKV(d, 2, head_dim=w), SharedQK(d, 2, head_dim=w))

    Choose it with the mechanism `SplitHeads`, which gives groups of heads different mechanisms, if these need different
    kinds of queries and keys. In the Routing Transformer, routing heads use their queries as keys, and local heads do
    not.

    parts: projections, one for each group of neighbouring heads; all have the same numbers of heads and the same
        widths.

    Errors: ValueError if heads or widths differ.

    Source: Roy et al., 2020, arXiv:2003.05997, section 4.1 and algorithm 1.
    """

    def __init__(self, *parts: Projection):
        super().__init__()
        if not parts:
            raise ValueError("ByHeads got no projection. Pass one for each group of heads")
        for part in parts:
            check_part("a part of ByHeads", part, Projection, "a projection, such as QKV(d, heads, head_dim=w)")
            for name in SIZES:
                expected, other = getattr(parts[0], name), getattr(part, name)
                if expected != other:
                    raise ValueError(
                        f"the projections of ByHeads have {name}={expected} and {name}={other}. Make them equal"
                    )
        self.parts, first = nn.ModuleList(parts), parts[0]
        self.d, self.k_dim, self.v_dim, self.bias = first.d, first.k_dim, first.v_dim, first.bias
        self.heads, self.key_heads = first.heads * len(parts), first.key_heads * len(parts)
        self._value_heads = first.value_heads * len(parts)

    @property
    def value_heads(self) -> int:
        return self._value_heads

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries:
        return _join_queries([part.queries(x, pos) for part in self._parts()])

    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys:
        return _join_keys([part.keys(source, pos) for part in self._parts()])

    def queries_and_keys(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> tuple[Queries, Keys]:
        queries, keys = zip(*(part.queries_and_keys(x, pos) for part in self._parts()), strict=True)
        return _join_queries(queries), _join_keys(keys)

    def matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        weights, biases = zip(*(part.matrix(name) for part in self._parts()), strict=True)
        return torch.cat(weights), torch.cat(biases) if self.bias else None

    def _parts(self) -> Sequence[Projection]:
        return list(self.parts)


def _join_queries(parts: Sequence[Queries]) -> Queries:
    return parts[0]._replace(q=torch.cat([part.q for part in parts], 1))


def _join_keys(parts: Sequence[Keys]) -> Keys:
    k, v = (torch.cat([getattr(part, name) for part in parts], 1) for name in ("k", "v"))
    return parts[0]._replace(k=k, v=v)


def _example() -> ByHeads:
    return ByHeads(kf.QKV(16, 2, head_dim=4), kf.SharedQK(16, 2, head_dim=4, unit=False))


EXAMPLES = (_example,)
