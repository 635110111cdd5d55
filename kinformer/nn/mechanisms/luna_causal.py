"""LunaCausal: causal attention through a few running averages, decoded with a state of fixed size."""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import disable_autocast
from kinformer.core.checks import check_at_least, check_flag, check_option, check_part, check_probability, check_scale
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec, number_of_groups
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.state import UncastState
from kinformer.core.token_positions import check_in_order
from kinformer.nn.mechanisms.linear import AdditiveUpdate
from kinformer.nn.mechanisms.linear_features import check_heads, check_limits
from kinformer.nn.mechanisms.luna_packs import Packs
from kinformer.nn.mechanisms.state_update import KeyFeatures, LinearState, apply_in_pieces

Weight = Literal["elu", "softplus", "log2"]
CROSS = "LunaCausal packs one sequence in its order, but got keys of another sequence. Use Softmax"


class LunaCausalState(NamedTuple):
    """Decoding state of `LunaCausal`: sums of past keys and values, weighted by each of l packs.

    k: sums of keys, [B, G, K, l].
    v: sums of values, [B, G, l, V].
    tokens: number of past tokens, [B].
    """

    k: Float[Tensor, "B G K l"]
    v: Float[Tensor, "B G l V"]
    tokens: Float[Tensor, " B"]


class LunaCausal(Mechanism):
    """Causal attention through l running averages of the past, in time O(T l d).

    f(X, Y, Z)_t = (1/t) X_t sum_(j <= t) Y_j^T Z_j
    A_pack = w(X_p P_q^T / sqrt(K)), A_unpack = softmax(f(Q, K, A_pack) / sqrt(K)), Y = f(A_unpack, A_pack, V)

    Packs are l vectors that summarise the row; each keeps a running average. The decoding state holds l keys and
    values. Choose it for long rows and cheap decoding. Choose it over `LinearAttention` if a softmax should select
    among the packs. P_q is a projection of the initial packs P, which all layers share. X_p is a projection of the
    tokens, an extra key projection of the layer.

    Packs do not depend on the row, and packing weights are not normalised over tokens; otherwise a token would see
    later tokens. The mechanism treats the order of the array as time, so it needs `ctx.run` (the promise of consecutive
    positions). Sums are kept in float32 or wider. There is no lse (log-sum-exp of the scores), because the softmax runs
    over packs, not tokens.

    packs: initial packs P; all layers of a model use the same object.
    heads: number of heads of keys and values.
    k_dim: width of a query and a key.
    weight: function w for the weight of a token in a pack. "softplus" and "elu", elu(x) + 1, are from the paper. With
        "log2" it is log2(1 + 2^x), a softplus with beta = ln 2, as in the authors' code.
    scale: factor of both products; 1/sqrt(k_dim) by default.
    dropout: fraction of packing and unpacking weights that training drops.
    bias: True adds a bias to the projection of P.
    piece: number of tokens in a piece, a run of consecutive tokens. Each token is multiplied with the tokens of its
        piece, and the sums before each piece are kept.

    Errors: ValueError without `ctx.run`, with `ctx.only` or `ctx.also`, for a layer with other head sizes, and for
    cross-attention.

    Source: Ma et al., 2021, arXiv:2106.01540, section 3.3.
    """

    def __init__(
        self,
        packs: Packs,
        heads: int,
        k_dim: int,
        *,
        weight: Weight = "softplus",
        scale: float | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        piece: int = 64,
    ):
        super().__init__()
        self.packs = check_part("packs", packs, Packs, "packs, such as Packs(16, d)")
        self.heads, self.k_dim = check_at_least("heads", heads, 1), check_at_least("k_dim", k_dim, 1)
        self.weight, self.scale = check_option("weight", weight, Weight), check_scale(scale)
        self.dropout, self.piece = check_probability("dropout", dropout), check_at_least("piece", piece, 1)
        self.ask = nn.Linear(packs.d, heads * k_dim, bias=check_flag("bias", bias))
        self.update = AdditiveUpdate()

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        if sizes.cross:  # a layer calls this when it is built, so the error is raised there
            raise ValueError(CROSS)
        check_heads(sizes)
        self._refuse(sizes.key_heads, sizes.k_dim)
        return {"pack": ExtraProjection(sizes.k_dim)}

    def start(self, spec: StateSpec, sizes: HeadSizes) -> UncastState:
        if sizes.cross:
            raise NoState(CROSS)
        batch, heads, count = spec.batch, sizes.key_heads, self.packs.count
        like = torch.zeros(batch, dtype=torch.promote_types(spec.dtype, torch.float32), device=spec.device)
        k, v = like.new_zeros(batch, heads, sizes.k_dim, count), like.new_zeros(batch, heads, count, sizes.v_dim)
        return UncastState(LunaCausalState(k, v, like))

    def forward(
        self, queries: Queries, keys: Keys | None, state: UncastState | None, ctx: Context
    ) -> Out[AttentionOutput]:
        if keys is None or not keys.own:
            raise ValueError(CROSS)
        self._refuse(keys.k.shape[1], keys.k.shape[3])
        check_limits(ctx)
        check_in_order(ctx, "LunaCausal", "")
        with disable_autocast(keys.k):
            old = None if state is None else state.inside
            y, new = self._read(queries, keys, self._empty_state(keys) if old is None else old, ctx.remember)
            return Out(AttentionOutput(y.to(queries.q.dtype), None), None if old is None else UncastState(new))

    def _read(
        self, queries: Queries, keys: Keys, old: LunaCausalState, remember: bool
    ) -> tuple[Float[Tensor, "B H T V"], LunaCausalState]:
        dtype = torch.promote_types(old.k.dtype, keys.k.dtype)
        real = keys.pos[:, :1] >= 0  # [B 1 T]
        packing = F.dropout(self._packing(keys, dtype), self.dropout, self.training)
        k, v = keys.k.to(dtype), keys.v.to(dtype)
        count = old.tokens.to(dtype)[:, None] + real[:, 0].cumsum(1)
        share = (1 / count.clamp_min(1))[:, None, None, :, None]  # [B 1 1 T 1]
        q = None
        if not remember:
            heads = number_of_groups(queries.q.shape[1], k.shape[1])
            q = queries.q.to(dtype).unflatten(1, (k.shape[1], heads))  # [B G R T K]
        scores, of_keys = self._sum_features(old.k.to(dtype), q, k, packing, real)
        if scores is not None:
            scores = F.dropout((scores * share * self._scale(k)).softmax(-1), self.dropout, self.training)
        scores, of_values = self._sum_features(old.v.to(dtype), scores, packing, v, real)
        last = count[:, -1] if count.shape[1] else old.tokens
        new = LunaCausalState(*(sums.to(old.k.dtype) for sums in (of_keys, of_values, last)))
        if scores is None:
            return queries.q[..., :0], new
        return (scores * share * real[:, :, None, :, None]).flatten(1, 2), new

    def _packing(self, keys: Keys, dtype: torch.dtype) -> Float[Tensor, "B G T l"]:
        """Return the weight of each token in each pack."""
        ask = self.ask(self.packs()).to(dtype).unflatten(1, (self.heads, self.k_dim)).transpose(0, 1)  # [G l K]
        x = (keys.extras["pack"].to(dtype) @ ask.mT) * self._scale(keys.k)
        if self.weight == "elu":
            return F.elu(x) + 1
        return F.softplus(x, beta=math.log(2) if self.weight == "log2" else 1.0)

    def _sum_features(
        self, s: Float[Tensor, "B G F W"], q: Tensor | None, k: Tensor, v: Tensor, real: Tensor
    ) -> tuple[Float[Tensor, "B G R T W"] | None, Float[Tensor, "B G F W"]]:
        """Return t f(q, k, v)_t for each token, and the sum after the last token."""
        entering = KeyFeatures(k, v, torch.where(real, 0.0, -torch.inf).to(k.dtype).expand(k.shape[:3]), real, {})
        read, _, sums = apply_in_pieces(
            self.update, LinearState(s, s.new_zeros(s.shape[:2])), q, entering, self.piece, False
        )
        return read, sums.s

    def _empty_state(self, keys: Keys) -> LunaCausalState:
        k, v = keys.k, keys.v
        like = k.new_zeros(len(k), dtype=torch.promote_types(k.dtype, torch.float32))
        sums = like.new_zeros(*k.shape[:2], k.shape[3], self.packs.count)
        return LunaCausalState(sums, like.new_zeros(*k.shape[:2], self.packs.count, v.shape[3]), like)

    def _scale(self, k: Tensor) -> float:
        return k.shape[3] ** -0.5 if self.scale is None else self.scale

    def _refuse(self, heads: int, k_dim: int) -> None:
        if (heads, k_dim) != (self.heads, self.k_dim):
            raise ValueError(
                f"LunaCausal was made for {self.heads} key heads of width {self.k_dim}, but got {heads} of width "
                f"{k_dim}. Create it with the key heads of the layer"
            )


def _example(weight: Weight = "softplus") -> LunaCausal:
    return LunaCausal(Packs(3, 16), 2, 8, weight=weight, piece=4)


NO_LSE = {"merge": "its softmax runs over packs, each of all tokens so far, and not over tokens"}
EXAMPLES = (Example(_example, breaks=NO_LSE), Example(lambda: _example("elu"), breaks=NO_LSE))
