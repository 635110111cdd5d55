"""ByStream: separate projections for global tokens and for all other tokens."""

from jaxtyping import Float, Int
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_at_least, check_part
from kinformer.core.heads import Keys, Queries
from kinformer.core.projection import Projection

SIZES = ("d", "heads", "key_heads", "value_heads", "k_dim", "v_dim", "bias")


class ByStream(Projection):
    """Projection that uses `wide` for the first n positions and `long` for all others.

    The first n positions are global tokens; the others are the tokens of a text ("long"). Choose it if global tokens
    need other queries, keys and values than the text. The projection of a key depends on the key's own group, so all
    queries read the same key. Both projections are computed for all tokens.

    n: number of global tokens, at positions 0 .. n - 1.
    wide, long: projections for global tokens and for all others.

    Errors: ValueError if heads or widths differ.

    Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.2 (separate projections for global and long tokens).

    Differences: in the authors' code, the group of the query determines the projection of its keys. For that form, use
    `GlobalSoftmax(pattern, Rows(n), copied=False)` or `FourPieces` with one `QKV`.
    """

    def __init__(self, n: int, wide: Projection, long: Projection):
        super().__init__()
        for name, part in (("wide", wide), ("long", long)):
            check_part(name, part, Projection, "a projection, such as QKV(d, heads)")
        for name in SIZES:
            wide_size, long_size = getattr(wide, name), getattr(long, name)
            if wide_size != long_size:
                raise ValueError(
                    f"the two projections of ByStream have {name}={wide_size} and {name}={long_size}. Make them equal"
                )
        self.n, self.wide, self.long = check_at_least("n", n, 0), wide, long
        self.d, self.heads, self.key_heads = long.d, long.heads, long.key_heads
        self.k_dim, self.v_dim, self.bias = long.k_dim, long.v_dim, long.bias

    @property
    def value_heads(self) -> int:
        return self.long.value_heads

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries:
        return self._queries(self.wide.queries(x, pos), self.long.queries(x, pos), pos)

    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys:
        return self._keys(self.wide.keys(source, pos), self.long.keys(source, pos), pos)

    def queries_and_keys(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> tuple[Queries, Keys]:
        wide, long = self.wide.queries_and_keys(x, pos), self.long.queries_and_keys(x, pos)
        return self._queries(wide[0], long[0], pos), self._keys(wide[1], long[1], pos)

    def matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        raise ValueError(
            f"ByStream has two matrices for {name!r}, for global and for other tokens, so it cannot be used with this "
            "mechanism. Use QKV"
        )

    def _queries(self, wide: Queries, long: Queries, pos: Tensor) -> Queries:
        return long._replace(q=self._by_position(wide.q, long.q, pos))

    def _keys(self, wide: Keys, long: Keys, pos: Tensor) -> Keys:
        return long._replace(k=self._by_position(wide.k, long.k, pos), v=self._by_position(wide.v, long.v, pos))

    def _by_position(self, wide: Tensor, long: Tensor, pos: Tensor) -> Tensor:
        return wide.where((pos < self.n)[:, None, :, None], long)


def _example() -> ByStream:
    return ByStream(2, kf.QKV(16, 2), kf.QKV(16, 2))


EXAMPLES = (_example,)
