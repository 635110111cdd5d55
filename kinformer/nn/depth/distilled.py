"""Distilled: an encoder whose row is halved between its layers."""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import check_at_least, check_flag
from kinformer.core.layer import Context, Layer, add_prefix


class Distil(nn.Module):
    """x' = MaxPool(ELU(Conv1d(x))): a row of half as many tokens, each the strongest of three neighbours.

    The convolution has a kernel of 3, the pooling a window of 3 and a stride of 2. Beyond a row's first and last token
    stand zeros for the convolution and nothing for the pooling, so padding changes nothing; the authors' code wraps
    around there, and normalises over the batch in between, by which rows would depend on their batch mates.

    d: the width.

    Source: Zhou et al., 2020, arXiv:2012.07436, section 3.2, equation 5.
    """

    def __init__(self, d: int):
        super().__init__()
        self.conv = nn.Conv1d(check_at_least("d", d, 1), d, 3, padding=1)

    def forward(
        self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"], full: bool = False
    ) -> tuple[Float[Tensor, "B R D"], Int[Tensor, "B R"]]:
        """Half as many tokens and their positions, from 0 on, -1 where a row has fewer; `full`: none is padding."""
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


class Distilled(nn.Module):
    """Encoder layers with a `Distil` between each two: the row is L, L/2, L/4, ... long, and cost falls with it.

    Choose it for long series, which are much alike from row to row. It is no Layer, as it gives fewer tokens than it
    gets; decoders read what it gives by cross-attention.

    layers: from the bottom, of one width.
    norm: applied at the end.
    distil: False leaves the row as it is.

    Errors: ValueError without a layer and for layers of several widths. Source: Zhou et al., 2020, arXiv:2012.07436.
    """

    def __init__(self, layers: Iterable[Layer], norm: nn.Module | None = None, *, distil: bool = True):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        widths = sorted({layer.d for layer in self.layers})
        if len(widths) != 1:
            raise ValueError(f"layers of widths {widths} came; give a Distilled at least one, all of the same d")
        self.d, self.norm = widths[0], norm
        between = len(self.layers) - 1 if check_flag("distil", distil) else 0
        self.between = nn.ModuleList(Distil(self.d) for _ in range(between))

    def forward(
        self, x: Float[Tensor, "B T D"], ctx: Context
    ) -> tuple[Float[Tensor, "B R D"], Context, Mapping[str, Tensor]]:
        """What is left of the row, its context, and the stats of its layers."""
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
