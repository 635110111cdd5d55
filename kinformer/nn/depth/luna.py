"""LunaStack: an encoder whose layers pack the row into a short sequence and unpack it, and carry what was packed."""

from collections.abc import Iterable
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_flag, check_part, check_probability
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


class Nested(nn.Module):
    """Y_P = Attn(P, X) and Y_X = Attn(X, Y_P): two attentions of l keys or l queries, in place of one of T of both.

    d: the width of tokens and of packs.
    heads: heads that unpack.
    head_dim: the width of each of them, d / heads unless given. Those that pack are d / pack_heads wide.
    pack_heads: heads that pack, `heads` unless given.
    tied: keys are values in both (`TiedKV`), as in the authors' code unless told; the equations have two matrices.
    dropout: the share of attention weights that training drops.
    bias: whether the matrices have biases.

    What was packed passes no output matrix, as in the authors' code; what is unpacked passes one.
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
        """Y_X and Y_P, given the contexts in which packs ask tokens, and tokens packs."""
        packed = self.pack(p, None, packing.replace(source=x)).y
        return self.unpack(x, None, unpacking.replace(source=packed)).y, packed


class LunaBlock(nn.Module):
    """X_A = LN(Y_X + X), P' = LN(Y_P + P), X' = LN(FFN(X_A) + X_A).

    nested: the attention.
    mlp: the feed-forward layer.
    dropout: the share of numbers of Y_X, Y_P and of what the feed-forward layer gives that training drops.
    """

    def __init__(self, nested: Nested, mlp: Layer, *, dropout: float = 0.0):
        super().__init__()
        self.nested = check_part("nested", nested, Nested, "one, such as Nested(d, heads)")
        self.mlp = check_part("mlp", mlp, Layer, "a layer, such as MLP(d)")
        self.d, self.dropout = mlp.d, check_probability("dropout", dropout)
        self.x_norm, self.p_norm, self.mlp_norm = LayerNorm(self.d), LayerNorm(self.d), LayerNorm(self.d)

    def forward(
        self, x: Float[Tensor, "B T D"], p: Float[Tensor, "B l D"], packing: Context, unpacking: Context
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B l D"]]:
        y, packed = self.nested(x, p, packing, unpacking)
        x, p = self.x_norm(x + self._apply_dropout(y)), self.p_norm(p + self._apply_dropout(packed))
        return self.mlp_norm(x + self._apply_dropout(self.mlp(x, None, unpacking).y)), p

    def _apply_dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class LunaStack(Layer):
    """Luna: each layer packs the row into l vectors and unpacks these into every token; the packs go up beside it.

        Y_P = Attn(P, X), Y_X = Attn(X, Y_P), X' = LN(FFN(X_A) + X_A) of X_A = LN(Y_X + X), P' = LN(Y_P + P)

    Choose it for encoders of long rows: 2 T l pairs a layer in place of T^2, for rows of any length, and l vectors that
    sum up the row (`read` gives them). Over `StarRounds` where one vector is too little; over ISAB's inducing points,
    which each layer begins anew, where what was packed should be refined. A token hears of another through the packs
    alone, so few of them keep little of a row. A causal form is the mechanism `LunaCausal`.

    blocks: one after the other.
    packs: P as the lowest block finds it.

    `forward` gives tokens alone. The last block makes packs all the same, for `read`: where nobody asks for these, the
    norm on their way (2 d numbers) learns nothing.

    Errors: NoState from `start`; ValueError for `ctx.only` and `ctx.also`, which packs of all tokens cannot honour, and
    for packs of another width. Source: Ma et al., 2021, arXiv:2106.01540, sections 3.1 and 3.2.
    """

    def __init__(self, blocks: Iterable[LunaBlock], packs: Packs):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        check_at_least("blocks", len(self.blocks), 1)
        self.packs = check_part("packs", packs, Packs, "one, such as Packs(16, d)")
        self.d = packs.d
        if wrong := {block.d for block in self.blocks} - {packs.d}:
            raise ValueError(f"packs are {packs.d} wide and blocks {min(wrong)}; give both the same d")

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState(
            "packs read the whole row, so nothing goes on from a part of it; use LunaCausal, as luna form=decoder"
        )

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        return Out(self.read(x, ctx)[0])

    def read(self, x: Float[Tensor, "B T D"], ctx: Context) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B l D"]]:
        """The tokens and the packs after the last block."""
        if ctx.only is not None or ctx.also is not None:
            raise ValueError("packs are of all tokens of a row and cannot honour ctx.only or ctx.also; use Softmax")
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
