"""Distilled: an encoder that halves the number of tokens between its layers."""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import check_at_least, check_flag
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layer import Context, Layer
from kinformer.core.sublayer_names import add_prefix


class Distil(nn.Module, KeywordHints):
    """A layer that halves the length of a row: each new token is the maximum over three neighbours.

        x' = MaxPool(ELU(Conv1d(x)))

    The convolution has a kernel of 3; the pooling has a window of 3 and a stride of 2. Beyond the ends of a row the
    convolution reads zeros and the pooling ignores the missing places, so padding changes nothing.

    d: width of a token.

    Source: Zhou et al., 2020, arXiv:2012.07436, section 3.2, equation 5.

    Differences: the authors' code wraps around at the ends, and applies batch normalisation before the ELU, so that
    each row depends on the other rows of the batch.
    """

    def __init__(self, d: int):
        super().__init__()
        self.conv = nn.Conv1d(check_at_least("d", d, 1), d, 3, padding=1)

    def forward(
        self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"], full: bool = False
    ) -> tuple[Float[Tensor, "B R D"], Int[Tensor, "B R"]]:
        """Return half as many tokens, and their positions from 0, -1 for padding.

        `full` is True if no token is padding.
        """
        if not full:  # neighbours are real tokens of the row, wherever its padding stands
            order = (pos < 0).to(torch.uint8).argsort(dim=1, stable=True)
            x, pos = x.take_along_dim(order[..., None], 1), pos.take_along_dim(order, 1)
            x = x.where((pos >= 0)[..., None], 0.0)
        y = F.elu(self.conv(x.mT))
        if not full:
            y = y.where((pos >= 0)[:, None], torch.finfo(y.dtype).min)
        y = F.max_pool1d(y, 3, 2, 1).mT
        at = torch.arange(y.shape[1], device=x.device)
        count = ((pos >= 0).sum(1, keepdim=True) + 1) // 2
        pos = torch.where(at < count, at, -1)
        return y.where((pos >= 0)[..., None], 0.0), pos


class Distilled(nn.Module, KeywordHints):
    """Encoder layers with a `Distil` (halving) between them, for rows of length L, L/2, L/4, and so on.

    Choose it for long series with much redundancy between neighbours. Each layer costs less than the layer below,
    because its rows are shorter. The class is not a `Layer`, as it returns fewer tokens than it gets. Decoders read its
    output by cross-attention.

    layers: the layers from the bottom, all of one width.
    norm: norm of the output; None for none.
    distil: False leaves out the halving.

    Errors: ValueError without a layer and for layers of several widths. Source: Zhou et al., 2020, arXiv:2012.07436.
    """

    def __init__(self, layers: Iterable[Layer], norm: nn.Module | None = None, *, distil: bool = True):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        widths = sorted({layer.d for layer in self.layers})
        if len(widths) != 1:
            raise ValueError(
                f"Distilled needs at least one layer, and all layers of the same d: got layers of widths {widths}"
            )
        self.d, self.norm = widths[0], norm
        between = len(self.layers) - 1 if check_flag("distil", distil) else 0
        self.between = nn.ModuleList(Distil(self.d) for _ in range(between))

    def forward(
        self, x: Float[Tensor, "B T D"], ctx: Context
    ) -> tuple[Float[Tensor, "B R D"], Context, Mapping[str, Tensor]]:
        """Return the shortened rows, their context, and the layers' sums for `after_step`."""
        stats: dict[str, Tensor] = {}
        for n, layer in enumerate(self.layers):
            if n and self.between:
                x, pos = self.between[n - 1](x, ctx.pos, ctx.full)
                ctx.memo.settle()
                ctx = Context(pos, run=True, full=ctx.full, is_clean=True)
            out = layer(x, None, ctx)
            x, stats = out.y, {**stats, **add_prefix(n, out.stats)}
        ctx.memo.settle()
        return (x if self.norm is None else self.norm(x)), ctx, stats


def _example() -> Distilled:
    return Distilled(kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full()))) for _ in range(2))


EXAMPLES = (_example,)
