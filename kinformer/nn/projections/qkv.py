"""QKV: linear queries, keys and values, with optional grouped or multi-query attention."""

from collections.abc import Callable

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import (
    check_at_least,
    check_flag,
    check_multiple,
    check_option,
    check_optional_part,
    resolve_head_dim,
)
from kinformer.core.heads import Keys, Queries
from kinformer.core.position import Rotation
from kinformer.core.projection import Projection, by_head


class QKV(Projection):
    """Linear projection to queries, keys and values, with the three matrices stacked in `qkv`.

    The original Transformer uses it. With fewer key heads than query heads it gives grouped or multi-query attention.
    If head_dim is at least the row length, heads can represent any attention matrix (Bhojanapalli et al.).

    d: width of the input.
    heads: number of query heads.
    key_heads: number of key and value heads, each shared by heads / key_heads query heads; `heads` by default. With one
        it is multi-query attention: the cache is smaller by a factor of `heads`, and the quality falls a little.
    value_heads: number of value heads, if it differs from the number of key heads, as in talking heads.
    head_dim: width of a query and a key; d / heads by default.
    v_dim: width of a value; head_dim by default.
    rotation: rotation of queries and keys by their position.
    bias: whether the matrices have biases.
    norm: class of norms of each head's queries and keys before the rotation, such as `RMSNorm`; none by default. With
        them, scores cannot grow without limit, which keeps the training of large models stable. Qwen3 has them.

    Errors: ValueError if sizes do not divide.

    Source: Vaswani et al., 2017, arXiv:1706.03762; multi-query: Shazeer, 2019, arXiv:1911.02150; groups: Ainslie et
    al., 2023, arXiv:2305.13245; free head_dim: Bhojanapalli et al., 2020, arXiv:2002.07028; norms: Dehghani et al.,
    2023, arXiv:2302.05442.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        *,
        key_heads: int | None = None,
        value_heads: int | None = None,
        head_dim: int | None = None,
        v_dim: int | None = None,
        rotation: Rotation | None = None,
        bias: bool = True,
        norm: Callable[[int], nn.Module] | None = None,
    ):
        super().__init__()
        self.d, self.heads = check_at_least("d", d, 1), check_at_least("heads", heads, 1)
        self.key_heads = heads if key_heads is None else key_heads
        check_multiple("heads", heads, "key_heads", self.key_heads)
        self.values = self.key_heads if value_heads is None else check_at_least("value_heads", value_heads, 1)
        self.k_dim = resolve_head_dim(d, heads, head_dim)
        self.v_dim = self.k_dim if v_dim is None else check_at_least("v_dim", v_dim, 1)
        self.bias = check_flag("bias", bias)
        self.rotation = check_optional_part("rotation", rotation, Rotation, "a rotation, such as Rotary(d // heads)")
        self.widths = [self.heads * self.k_dim, self.key_heads * self.k_dim, self.values * self.v_dim]
        self.qkv = nn.Linear(d, sum(self.widths), bias=bias)
        self.q_norm = None if norm is None else norm(self.k_dim)
        self.k_norm = None if norm is None else norm(self.k_dim)

    @property
    def value_heads(self) -> int:
        return self.values

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries:
        return self._queries(F.linear(x, *self.matrix("q")), pos)

    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys:
        if source.shape[2] != self.d:
            raise ValueError(
                f"the source has shape {list(source.shape)}, expected width d={self.d}; map it to this width by "
                "nn.Linear"
            )
        first = self.widths[0]
        projected = F.linear(source, self.qkv.weight[first:], None if self.qkv.bias is None else self.qkv.bias[first:])
        k, v = projected.split(self.widths[1:], -1)
        return self._keys(k, v, pos)

    def queries_and_keys(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> tuple[Queries, Keys]:
        if self.rotation is None or self.q_norm is not None:
            q, k, v = self.qkv(x).split_with_sizes(self.widths, -1)
            return self._queries(q, pos), self._keys(k, v, pos)
        counts = [self.heads, self.key_heads]  # queries and keys are adjacent, so one call rotates both
        both, v = self.qkv(x).split_with_sizes([sum(self.widths[:2]), self.widths[2]], -1)
        query, key = self.rotation(by_head(both, sum(counts)), pos).split_with_sizes(counts, 1)
        return Queries(query, pos[:, None]), Keys(key, by_head(v, self.values), pos[:, None])

    def matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        n = ("q", "k", "v").index(check_option("name", name, ("q", "k", "v")))
        weight, bias = self.qkv.weight, self.qkv.bias
        return weight.split(self.widths)[n], None if bias is None else bias.split(self.widths)[n]

    def _queries(self, q: Float[Tensor, "B T HK"], pos: Int[Tensor, "B T"]) -> Queries:
        vectors = by_head(q, self.heads)  # [B H T K]
        vectors = vectors if self.q_norm is None else self.q_norm(vectors)
        return Queries(vectors if self.rotation is None else self.rotation(vectors, pos), pos[:, None])

    def _keys(self, k: Float[Tensor, "B S GK"], v: Float[Tensor, "B S UV"], pos: Int[Tensor, "B S"]) -> Keys:
        key, value = by_head(k, self.key_heads), by_head(v, self.values)  # [B G S K], [B U S V]
        key = key if self.k_norm is None else self.k_norm(key)
        return Keys(key if self.rotation is None else self.rotation(key, pos), value, pos[:, None])


def _turned() -> QKV:
    return QKV(16, 4, key_heads=1, rotation=kf.Rotary(4))


def _normed() -> QKV:
    return QKV(16, 2, rotation=kf.Rotary(8), norm=kf.RMSNorm)


EXAMPLES = (lambda: QKV(16, 2), lambda: QKV(16, 4, key_heads=2, head_dim=6, v_dim=10, bias=False), _turned, _normed)
