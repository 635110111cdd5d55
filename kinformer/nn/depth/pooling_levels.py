"""PoolingLevels: attention in a window, then attention over pooled keys in a wider window."""

from typing import NoReturn

from jaxtyping import Float
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_at_least, check_flag, check_part, check_probability, resolve_head_dim
from kinformer.core.example import Example
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.mechanism import NoState
from kinformer.nn.aggregations.out_projection import Concat, OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.pooling import Pooling
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV


class PoolingLevels(Layer):
    """Poolingformer's attention: a window of exact keys plus a wider window of pooled keys.

        y_i = Attn(x W_q, x W_k, x W_v in i - near .. i + near)
        z_i = Attn(y W'_q, pool(y W'_k), pool(y W'_v) in i - far .. i + far), out = (y + z) W_o + b_o

    Choose it over a plain window if a token needs exact information from near tokens and rough information from far
    ones. Choose it over `Shortened` (attention over all shortened keys) if rows are so long that even pooled keys need
    a window. The layer does not add x; the block around it does. The far level reads the outputs of the near level, so
    both levels together reach near + far tokens.

    d: width of input and output.
    heads: number of heads of each level. The outputs of all heads are concatenated, then both levels are added, before
        one output matrix.
    head_dim: width of a head; default d / heads.
    near: number of tokens that the first level reads on either side, half of the paper's w1.
    pooling: mechanism of the second level, such as `Pooling(far, MeanWindows(5), 4)`: reach, window means of 5 keys,
        every fourth window.
    shared: True uses the first level's projection matrices in the second level too; False gives it its own.
    dropout: probability of dropping an attention weight of the first level in training.

    `receptive_field` is the set of tokens that can influence a query.

    Errors: NoState from `start`; ValueError for `ctx.only` and `ctx.also`. Source: Zhang et al., 2021,
    arXiv:2105.04371, section 3.

    Differences: the paper's equations have no output matrix; this library applies one to the sum.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        near: int,
        pooling: Pooling,
        *,
        head_dim: int | None = None,
        shared: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.d, width = d, resolve_head_dim(d, heads, head_dim)
        if check_flag("shared", shared) and heads * width != d:
            raise ValueError(
                f"shared=True applies the projection of width d={d} to the output of the first level, which has "
                f"{heads} x {width} numbers. Drop head_dim or shared"
            )
        window = Softmax(
            Band(check_at_least("near", near, 0)), dropout=check_probability("dropout", dropout), lse=False
        )
        self.near = Attention(QKV(d, heads, head_dim=width), window, aggregation=Concat())
        check_part("pooling", pooling, Pooling, "the pooled level, such as Pooling(256, MeanWindows(5), 4)")
        projection = self.near.projection if shared else QKV(heads * width, heads, head_dim=width)
        self.far = Attention(projection, pooling, aggregation=Concat())
        self.out, self.receptive_field = OutProjection(1, heads * width, d), Band(near + pooling.window)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState("a layer of two levels has no decoding state: both levels read later tokens. Use a causal layer")

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        y = self.near(x, None, ctx).y
        z = self.far(y, None, ctx).y
        return Out(self.out((y + z)[:, None], ctx.pos))


def _mean() -> PoolingLevels:
    return PoolingLevels(16, 2, 1, Pooling(4, kf.MeanWindows(3), 2))


def _dynamic() -> PoolingLevels:
    return PoolingLevels(16, 2, 2, Pooling(5, kf.DynamicWindows(2, 2, 8, 8), 3), shared=True)


EXAMPLES = (_mean, Example(_dynamic, shares={"*.projection.qkv.*": "shared=True: both levels use the same projection"}))
