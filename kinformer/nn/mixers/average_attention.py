"""AverageAttention: the gated mean of all tokens up to each position."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_at_least, check_flag
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, make_state_spec
from kinformer.core.state import UncastState
from kinformer.core.token_positions import check_in_order
from kinformer.core.tokenwise import check_tokenwise


class AverageState(NamedTuple):
    """Decoding state of an `AverageAttention`: sum and number of a row's tokens so far.

    total: sum of the tokens, in float32 or better.
    tokens: number of tokens in each row.
    """

    total: Float[Tensor, "B D"]
    tokens: Int[Tensor, " B"]


class AverageAttention(Layer):
    """Gated mean of all tokens up to each position.

    h_j = i_j * y_j + f_j * g_j,   g_j = FFN((y_1 + .. + y_j) / j),   [i_j; f_j] = sigmoid(W [y_j; g_j] + b)

    Choose it in a decoder if every step must have the same cost at any row length. Here y_j is token j. The decoding
    state is a sum and a count. A whole row costs in proportion to d^2 per token, without a matrix of pairs. All earlier
    tokens have the same weight, so the layer cannot select one by its content. Choose `LinearAttention` if content must
    determine the weights, and softmax attention if few tokens must get nearly all the weight. The layer treats array
    order as time, and padding does not count in any mean. The block adds the residual and the norm:
    `PostNorm(AverageAttention(d, MLP(d)), ...)` is the paper's LayerNorm(y + h).

    d: width of a token.
    feedforward: the FFN, a layer that processes each token separately; None uses the mean itself.
    gate: whether there is a gate; False returns g_j, the paper's ablation.
    bias: whether the gate has a bias.

    Errors: ValueError without `ctx.run`, with `ctx.only` or `ctx.also` (a mean of all earlier tokens allows no limits),
    or if `feedforward` mixes tokens.

    Source: Zhang et al., 2018, arXiv:1805.00631, section 3.1, equations 1 to 3.

    Differences: the paper multiplies a whole row by a matrix of pairs to get the means. This class uses a cumulative
    sum.
    """

    def __init__(self, d: int, feedforward: Layer | None = None, *, gate: bool = True, bias: bool = True):
        super().__init__()
        self.d, self.feedforward = check_at_least("d", d, 1), feedforward
        if feedforward is not None:
            self.wants = check_tokenwise("feedforward", feedforward, "read means").wants
            if feedforward.d != d:
                raise ValueError(f"d={d} must equal the width of the feedforward: got {feedforward.d}")
        self.gate = nn.Linear(2 * d, 2 * d, bias=check_flag("bias", bias)) if check_flag("gate", gate) else None

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> UncastState:
        new = make_state_spec(self, batch, length, dtype, device)
        wide = torch.promote_types(new.dtype, torch.float32)
        tokens = torch.zeros(batch, dtype=torch.long, device=new.device)
        return UncastState(AverageState(torch.zeros(batch, self.d, dtype=wide, device=new.device), tokens))

    def forward(self, x: Float[Tensor, "B T D"], state: UncastState | None, ctx: Context) -> Out:
        check_in_order(ctx, "AverageAttention")
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                "AverageAttention does not support ctx.only or ctx.also: it averages all tokens so far. Use Attention"
            )
        mean, state = self.mean(x, state, ctx)
        if ctx.remember:
            return Out(None, state)
        out: Out = Out(mean) if self.feedforward is None else self.feedforward(mean, None, ctx)
        return out._replace(y=out.y if self.gate is None else self._gated(x, out.y), state=state)

    def mean(
        self, x: Float[Tensor, "B T D"], state: UncastState | None, ctx: Context
    ) -> tuple[Float[Tensor, "B T D"], UncastState | None]:
        """Return the mean of all tokens up to each one (0 if there is none) and the state after them.

        x: tokens.
        state: sum and count of earlier tokens; None if there are none.
        ctx: context with the positions; padding does not count.
        """
        real = ctx.pos >= 0
        wide = torch.promote_types(x.dtype, torch.float32 if state is None else state.inside.total.dtype)
        sums = torch.where(real[..., None], x, 0.0).to(wide).cumsum(1)
        counts = real.cumsum(1)
        if state is not None:
            old: AverageState = state.inside
            sums, counts = sums + old.total[:, None], counts + old.tokens[:, None]
            if x.shape[1]:
                state = UncastState(AverageState(sums[:, -1], counts[:, -1]))
        return (sums / counts.clamp_min(1)[..., None]).to(x.dtype), state

    def _gated(self, x: Float[Tensor, "B T D"], g: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        assert self.gate is not None
        input_gate, mean_gate = self.gate(torch.cat([x, g], -1)).sigmoid().chunk(2, -1)
        return input_gate * x + mean_gate * g


def _with_mlp() -> AverageAttention:
    return AverageAttention(16, kf.MLP(16, 24, activation="relu"))


EXAMPLES = (_with_mlp, lambda: AverageAttention(16), lambda: AverageAttention(16, gate=False))
