"""LunaStack: an encoder whose layers pack the row into a short sequence and unpack it again."""

from collections.abc import Iterable
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_flag, check_part, check_probability
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.full import Full
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.luna_packs import Packs
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.tied_kv import TiedKV


class Nested(nn.Module, KeywordHints):
    """Nested attention: l packs (summary vectors) attend to T tokens, then the tokens attend to the packs.

    Y_P = Attn(P, X), Y_X = Attn(X, Y_P)

    The two attentions compute 2 T l pairs instead of T^2.

    d: width of tokens and packs.
    heads: number of heads that unpack.
    head_dim: width of an unpacking head; default d / heads. Packing heads have width d / pack_heads.
    pack_heads: number of heads that pack; default `heads`.
    tied: True uses keys as values in both attentions (`TiedKV`), the default of the authors' code; the equations have
        two matrices.
    dropout: probability of dropping an attention weight in training.
    bias: whether the matrices have biases.

    As in the authors' code, Y_P passes no output matrix, and Y_X passes one.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        *,
        head_dim: int | None = None,
        pack_heads: int | None = None,
        tied: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        of = TiedKV if check_flag("tied", tied) else QKV
        pack, unpack = (Softmax(Full(), dropout=dropout, lse=False) for _ in range(2))
        packing = of(d, heads if pack_heads is None else pack_heads, bias=bias)
        self.pack = Attention(packing, pack, aggregation=Concat(), cross=True)
        self.unpack = Attention(of(d, heads, head_dim=head_dim, bias=bias), unpack, cross=True)

    def forward(
        self, x: Float[Tensor, "B T D"], p: Float[Tensor, "B l D"], packing: Context, unpacking: Context
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B l D"]]:
        """Return Y_X, the result of the tokens' attention, and Y_P, the result of the packs' attention.

        x: tokens X.
        p: packs P.
        packing: context in which packs are the queries and tokens the keys.
        unpacking: context in which tokens are the queries and packs the keys.
        """
        packed = self.pack(p, None, packing.replace(source=x)).y
        return self.unpack(x, None, unpacking.replace(source=packed)).y, packed


class LunaBlock(nn.Module, KeywordHints):
    """A layer of Luna: nested attention, sums and norms of tokens and packs, and a feed-forward layer.

    X_A = LN(Y_X + X), P' = LN(Y_P + P), X' = LN(FFN(X_A) + X_A)

    Here X are the tokens, P the packs (summary vectors), and Y_X and Y_P the results of the nested attention.

    nested: the nested attention.
    mlp: the feed-forward layer.
    dropout: probability of dropping a feature of Y_X, Y_P and the feed-forward output in training.
    """

    def __init__(self, nested: Nested, mlp: Layer, *, dropout: float = 0.0):
        super().__init__()
        self.nested = check_part("nested", nested, Nested, "a nested attention, such as Nested(d, heads)")
        self.mlp = check_part("mlp", mlp, Layer, "a layer, such as MLP(d)")
        self.d, self.dropout = mlp.d, check_probability("dropout", dropout)
        self.x_norm, self.p_norm, self.mlp_norm = LayerNorm(self.d), LayerNorm(self.d), LayerNorm(self.d)

    def forward(
        self, x: Float[Tensor, "B T D"], p: Float[Tensor, "B l D"], packing: Context, unpacking: Context
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B l D"]]:
        """Return the new tokens X' and the new packs (summary vectors) P'.

        x, p: tokens and packs.
        packing, unpacking: contexts as in `Nested.forward`.
        """
        y, packed = self.nested(x, p, packing, unpacking)
        x, p = self.x_norm(x + self._apply_dropout(y)), self.p_norm(p + self._apply_dropout(packed))
        return self.mlp_norm(x + self._apply_dropout(self.mlp(x, None, unpacking).y)), p

    def _apply_dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class LunaStack(Layer):
    """The Luna encoder: each layer packs the row into l vectors and unpacks these into every token.

    Y_P = Attn(P, X), Y_X = Attn(X, Y_P), X' = LN(FFN(X_A) + X_A) of X_A = LN(Y_X + X), P' = LN(Y_P + P)

    Choose it for encoders of long rows: a layer computes 2 T l pairs instead of T^2, for rows of any length. The l
    vectors, called packs, pass through all layers and summarise the row; `read` returns them. Choose it over
    `StarRounds` (Star-Transformer) if one summary vector is too little. Choose it over `ISAB` (set attention), in which
    each layer starts with new inducing points, if each layer should refine the packs of the layer below. Tokens
    exchange information only through the packs, so few packs keep little of a row. The causal form is the mechanism
    `LunaCausal`.

    blocks: the layers in order.
    packs: module with the learned vectors P, the packs before the lowest block.

    `forward` returns only the tokens. The last block computes packs too, for `read`. Without `read` the norm of these
    last packs (2 d numbers) gets no gradient.

    Errors: NoState from `start`; ValueError for `ctx.only` and `ctx.also`, since packs read all tokens of a row, and
    for packs of another width. Source: Ma et al., 2021, arXiv:2106.01540, sections 3.1 and 3.2.
    """

    def __init__(self, blocks: Iterable[LunaBlock], packs: Packs):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        check_at_least("blocks", len(self.blocks), 1)
        self.packs = check_part("packs", packs, Packs, "packs, such as Packs(16, d)")
        self.d = packs.d
        if wrong := {block.d for block in self.blocks} - {packs.d}:
            raise ValueError(
                f"packs and blocks must have the same d: got packs of width {packs.d} and blocks of width {min(wrong)}"
            )

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState(
            "Luna's encoder has no decoding state: its packs read the whole row at once. Use LunaCausal, which is "
            "form=decoder of luna"
        )

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        return Out(self.read(x, ctx)[0])

    def read(self, x: Float[Tensor, "B T D"], ctx: Context) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B l D"]]:
        """Return the tokens and the packs (summary vectors of the row) after the last block."""
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                "packs do not support ctx.only or ctx.also, because they read all tokens of a row. Use Softmax"
            )
        p = self.packs().expand(len(x), -1, -1)
        at = torch.arange(self.packs.count, device=x.device).expand(len(x), -1)
        packing = Context(at, run=True, full=ctx.full, source_pos=ctx.pos, is_clean=True)
        unpacking = ctx.replace(source=None, source_pos=at, full=ctx.full)
        for block in self.blocks:
            x, p = block(x, p, packing, unpacking)
        return x, p


def _example(tied: bool) -> LunaStack:
    blocks = [LunaBlock(Nested(16, 2, pack_heads=4, tied=tied), MLP(16)) for _ in range(2)]
    return LunaStack(blocks, Packs(3, 16, "sinusoidal" if tied else "learned"))


EXAMPLES = (lambda: _example(False), lambda: _example(True))
