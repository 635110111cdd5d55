"""ScoreConvolution: convolution over the matrix of scores, with a channel for each head."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_in_range, check_option
from kinformer.core.request import Request
from kinformer.core.score_matrix import mask
from kinformer.nn.mechanisms.columns_by_position import find_columns, take_at

Kernel = Literal["centred", "causal", "cross"]


class ScoreConvolution(nn.Module):
    """Convolution of attention scores over queries and keys, with the heads as channels.

    c_o(i, j) = LeakyReLU(b_o + sum over heads h and steps (a, b) of W_oh(a, b) s_h(i + a, j + b))

    Neighbours are adjacent positions, not adjacent places in the tensor. Padding and the order of keys in a cache
    therefore change nothing. A score counts only if the query may itself read key j + b and, in self-attention, token i
    + a. Any other score is 0, as outside the matrix. No query sees a token that its pattern masks, and a kernel that
    looks ahead in an encoder is masked under `Causal()`.

    heads: number of heads of the layer.
    size: number of rows and columns of the kernel.
    kernel: "centred" looks as far ahead as back. A "causal" kernel covers the query and key of the pair and earlier
        ones. A "cross" kernel covers the query and earlier ones, and keys on both sides.
    slope: negative slope of the LeakyReLU; 0 for a ReLU, 1 for a plain convolution.

    Errors: ValueError for an even size with a kernel other than "causal". A call raises ValueError for scores of
    another number of heads, and for positions by head.
    """

    def __init__(self, heads: int, size: int, kernel: Kernel, slope: float):
        super().__init__()
        if check_at_least("size", size, 1) % 2 == 0 and check_option("kernel", kernel, Kernel) != "causal":
            raise ValueError(f"size={size} is even, so the kernel has no middle. Pass an odd size, or kernel='causal'")
        self.slope = check_in_range("slope", slope, 0.0, 1.0)
        self.conv = nn.Conv2d(check_at_least("heads", heads, 1), heads, size)
        centred, back = range(-(size // 2), size // 2 + 1), range(1 - size, 1)
        self.of_queries = centred if check_option("kernel", kernel, Kernel) == "centred" else back
        self.of_keys = back if kernel == "causal" else centred

    @property
    def lookback(self) -> int:
        """Number of earlier queries whose scores the kernel reads."""
        return -self.of_queries[0]

    def forward(
        self, x: Float[Tensor, "B H N S"], q_pos: Int[Tensor, "B 1 N"], request: Request
    ) -> Float[Tensor, "B H T S"]:
        """Return the convolved scores of the queries of `request`.

        x: scores of kept earlier queries and of the queries of `request`, [B, H, N, S]; 0 at pairs that the pattern
            masks.
        q_pos: positions of the queries of x, [B, 1, N].
        request: attention call with its queries and keys.
        """
        if x.shape[1] != self.conv.in_channels:
            raise ValueError(
                f"the convolution was made for {self.conv.in_channels} heads, but got {x.shape[1]}. Create it "
                f"with heads={x.shape[1]}"
            )
        same = q_pos is request.queries.pos and q_pos is request.keys.pos
        in_order = request.run and same and x.shape[2] > 0  # conv2d rejects inputs without rows
        output: Tensor | None = None
        for step, weight in zip(self.of_queries, self.conv.weight.unbind(2), strict=True):
            rows = _shift_rows(x, step) if in_order else take_at(x, self._rows(q_pos, step, request), 2)
            allowed = _allowed_at_step(request, step)
            rows = rows if allowed is None else rows.masked_fill(~allowed, 0.0)
            part = self._along_keys(rows, weight, request, in_order)
            output = part if output is None else output + part
        assert output is not None and self.conv.bias is not None
        return F.leaky_relu(output + self.conv.bias[:, None, None], self.slope)

    def _along_keys(self, rows: Tensor, weight: Float[Tensor, "O H k"], request: Request, in_order: bool) -> Tensor:
        if in_order:
            return F.conv2d(F.pad(rows, (-self.of_keys[0], self.of_keys[-1])), weight[:, :, None])
        k_pos = request.keys.pos
        shifted = [
            torch.einsum("oh,bhts->bots", w, take_at(rows, _columns_at_step(request, k_pos, k_pos, step), 3))
            for step, w in zip(self.of_keys, weight.unbind(2), strict=True)
        ]
        return torch.stack(shifted).sum(0)

    def _rows(self, q_pos: Tensor, step: int, request: Request) -> Int[Tensor, "B T"]:
        return _columns_at_step(request, q_pos, request.queries.pos, step)


def _shift_rows(x: Float[Tensor, "B H T S"], step: int) -> Float[Tensor, "B H T S"]:
    """Shift rows so that row t holds row t + step, with zeros beyond the ends."""
    length = x.shape[2]
    return F.pad(x, (0, 0, max(-step, 0), max(step, 0))).narrow(2, max(step, 0), length)


def _columns_at_step(request: Request, sources: Tensor, targets: Tensor, step: int) -> Int[Tensor, "B N"]:
    """Return the columns among `sources` of the positions one step from each target."""
    if sources.shape[1] != 1 or targets.shape[1] != 1:
        raise ValueError(
            "scores are convolved over positions that all heads share: got positions by head. Pass tokens with "
            "shared positions"
        )

    def make() -> Tensor:
        neighbours = torch.where(targets < 0, -1, targets + step)
        return find_columns(sources[:, 0], neighbours[:, 0])

    return request.memo.get(make, "places", sources, targets, step)


def _allowed_at_step(request: Request, step: int) -> Bool[Tensor, "#B #H T #S"] | None:
    """Return the mask of scores, one step away, that count for a query; None if all count."""
    allowed = mask(request)
    if not step or not request.keys.own:
        return allowed
    at = _columns_at_step(request, request.keys.pos, request.queries.pos, step)  # [B T], among the keys
    has_key = (at < request.keys.v.shape[2])[:, None, :, None]
    if allowed is None:
        return has_key
    asks = (
        F.pad(allowed, (0, 1))
        .expand(len(at), -1, -1, -1)
        .gather(3, at[:, None, :, None].expand(-1, allowed.shape[1], -1, -1))
    )
    return allowed & asks
