"""SeparableConv: two separable convolutions over positions with a nonlinearity between them."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_flag, check_option, check_probability, check_whole_numbers
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, make_state_spec
from kinformer.core.mechanism import NoState
from kinformer.core.token_positions import check_in_order
from kinformer.nn.feedforward.mlp import Activation, activate


class SeparableConvState(NamedTuple):
    """Decoding state of a `SeparableConv`: the last inputs of its convolutions, the newest at the end.

    first, second: inputs of the first and of the second convolution.
    """

    first: Float[Tensor, "B M D"]
    second: Float[Tensor, "B N H"]


class SeparableConv(Layer):
    """Two separable convolutions with a nonlinearity between them: conv(f(conv(x))).

    conv(x)_t = (sum_i w_i * x_(t-i)) W + b, i from 0 if `causal`, else around 0

    Each convolution first mixes the positions of each channel, then the channels of each position. It is the
    alternative to the `MLP` in the Universal Transformer. Choose it instead of an `MLP` if neighbouring tokens carry
    much information. Its decoding state holds the last inputs of each convolution. It treats array order as time.

    d: width of a token.
    hidden: number of channels between the convolutions; 4 d by default.
    kernels: number of positions that each convolution reads; 3 and 5 are from the authors' code, and the paper gives no
        numbers.
    causal: whether each position reads only itself and earlier ones, as decoders need.
    activation: the nonlinearity f; relu in the paper.
    dropout: probability of dropping a hidden number in training.

    Errors: ValueError without `ctx.run`, with `ctx.only` or `ctx.also`, and if `causal` is False and a kernel is even.
    NoState from `start` if `causal` is False.

    Source: Chollet, 2016, arXiv:1610.02357; Dehghani et al., 2018, arXiv:1807.03819, 2.1.
    """

    def __init__(
        self,
        d: int,
        hidden: int | None = None,
        *,
        kernels: tuple[int, ...] = (3, 5),
        causal: bool = True,
        activation: Activation = "relu",
        dropout: float = 0.0,
    ):
        super().__init__()
        self.d, self.causal = check_at_least("d", d, 1), check_flag("causal", causal)
        self.hidden = 4 * d if hidden is None else check_at_least("hidden", hidden, 1)
        self.activation, self.dropout = (
            check_option("activation", activation, Activation),
            check_probability("dropout", dropout),
        )
        if len(check_whole_numbers("kernels", kernels, 1)) != 2:
            raise ValueError(f"kernels={kernels}: expected two sizes, one per convolution")
        if not causal and not all(kernel % 2 for kernel in kernels):
            raise ValueError(
                f"kernels={kernels} must be odd with causal=False, because each kernel is centred on its token. Pass "
                "odd sizes, or causal=True"
            )
        self.kernels = kernels
        self.depthwise = nn.ModuleList(
            nn.Conv1d(width, width, kernel, groups=width, bias=False)
            for width, kernel in zip((d, self.hidden), kernels, strict=True)
        )
        self.pointwise = nn.ModuleList([nn.Linear(d, self.hidden), nn.Linear(self.hidden, d)])

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> SeparableConvState:
        if not self.causal:
            raise NoState("SeparableConv(causal=False) reads later tokens, so it cannot decode. Use causal=True")
        new = make_state_spec(self, batch, length, dtype, device)
        return SeparableConvState(
            *(
                torch.zeros(batch, kernel - 1, width, dtype=new.dtype, device=new.device)
                for kernel, width in zip(self.kernels, (self.d, self.hidden), strict=True)
            )
        )

    def forward(self, x: Float[Tensor, "B T D"], state: SeparableConvState | None, ctx: Context) -> Out:
        check_in_order(ctx, "SeparableConv")
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                "SeparableConv does not support ctx.only or ctx.also: it mixes neighbouring tokens. Use MLP"
            )
        if not x.shape[1]:
            return Out(x, state)
        real = ctx.pos >= 0
        # moves each row's first token to column 0: before that token come the inputs in the state, not padding
        first = real.long().argmax(1, keepdim=True)
        at = torch.arange(x.shape[1], device=x.device)
        column = (at + first).clamp_max(x.shape[1] - 1)
        real = real.take_along_dim(column, 1) & (at + first < x.shape[1])
        x = x.take_along_dim(column[..., None], 1)
        hidden, recent = self._conv(0, x, None if state is None else state.first, real)
        hidden = F.dropout(activate(hidden, self.activation), self.dropout, self.training)
        y, later = self._conv(1, hidden, None if state is None else state.second, real)
        y = y.take_along_dim((at - first).clamp_min(0)[..., None], 1)
        return Out(y, None if state is None else SeparableConvState(recent, later))

    def _conv(
        self, n: int, x: Float[Tensor, "B T N"], before: Tensor | None, real: Bool[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B T M"], Tensor]:
        """Return the output of convolution n, and the inputs that later calls read."""
        reach = self.kernels[n] - 1
        x = torch.where(real[..., None], x, 0.0)
        back = reach if self.causal else reach // 2
        x = F.pad(x, (0, 0, back, reach - back)) if before is None else torch.cat([before.to(x.dtype), x], 1)
        mixed = self.depthwise[n](x.transpose(1, 2)).transpose(1, 2)
        if before is None:
            return self.pointwise[n](mixed), x[:, :0]
        column = real.sum(1, keepdim=True) + torch.arange(reach, device=x.device)  # [B reach]
        return self.pointwise[n](mixed), x.take_along_dim(column[..., None], 1).to(before.dtype)


EXAMPLES = (
    lambda: SeparableConv(16, 24),
    lambda: SeparableConv(16, kernels=(1, 4)),
    lambda: SeparableConv(16, 24, causal=False),
)
