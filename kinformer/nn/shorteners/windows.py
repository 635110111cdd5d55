"""Sliding windows of keys, each pooled to one key by a mean, a maximum or a dynamic convolution."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_at_least
from kinformer.core.heads import Keys
from kinformer.core.shorten import Shorten

Of = Callable[[int], Tensor]  # entry at place j of every window: [B G R N] of keys, [B 1 R 1] of the key mask


class WindowShortener(Shorten):
    """Base class of shorteners that pool each window of `size` consecutive keys; windows overlap.

    Subclasses implement `pool`. A window starts at every offset, also before the first key, so L keys give L + size - 1
    windows. The mechanism `Pooling` then lets each query read every n-th window, counted from the query. Keys are
    sorted by position. A window may extend beyond an end of the row; it then pools only the keys inside the row. The
    position of a window is its last position, even beyond the last key. Pooled keys have no labels (such as segments)
    and no hash buckets.

    size: number of keys of a window; kappa in the paper.

    Errors: ValueError if the positions of keys differ by head.

    Source: Zhang et al., 2021, arXiv:2105.04371, section 3.2.
    """

    def __init__(self, size: int):
        super().__init__()
        self.size = check_at_least("size", size, 1)

    @abstractmethod
    def pool(
        self, name: str, x: Float[Tensor, "B G S N"], of: Of, is_key: Of, middle: Int[Tensor, "B R"]
    ) -> Float[Tensor, "B G R N"]:
        """Return one vector per window, from its keys, its values or an additional projection of its keys.

        name: "k" for keys, "v" for values, or the name of the additional projection.
        x: the vectors of all keys.
        of: function that returns the vectors at place j of every window.
        is_key: function that returns whether place j of every window has a key.
        middle: index of the key in the middle of each window, or of the nearest key in the row.
        """

    def forward(self, keys: Keys) -> Keys:
        if keys.pos.shape[1] != 1:
            name = type(self).__name__
            raise ValueError(
                f"{name} got positions by head {list(keys.pos.shape)}. Pass keys with positions that all heads share"
            )
        pos = keys.pos[:, 0]
        order = torch.where(pos < 0, torch.iinfo(pos.dtype).max, pos).argsort(dim=1, stable=True)
        ordered = keys.cut(order)
        pos, real = ordered.pos[:, 0], ordered.pos[:, 0] >= 0
        is_key, first = self._pad_windows(real[:, None, :, None], False), torch.arange(self.size, device=pos.device)
        begins = self._pad_windows(pos[:, None, :, None], -1)
        ends = [torch.where(is_key(j), begins(j) - j + self.size - 1, -1)[:, 0, :, 0] for j in first.tolist()]
        columns = torch.arange(pos.shape[1] + self.size - 1, device=pos.device) - (self.size - 1) + self.size // 2
        middle = torch.minimum(columns.clamp_min(0), (real.sum(1, keepdim=True) - 1).clamp_min(0))

        def pool_part(name: str, x: Tensor) -> Tensor:
            return self.pool(name, x, self._pad_windows(x, 0), is_key, middle)

        extras = {name: pool_part(name, side) for name, side in ordered.extras.items()}
        at = torch.stack(ends).amax(0)[:, None]
        return Keys(pool_part("k", ordered.k), pool_part("v", ordered.v), at, extras, own=keys.own)

    def _pad_windows(self, x: Tensor, fill: float) -> Of:
        """Return a function from the place in a window to the entries of x [B G S N] at that place."""
        margin = self.size - 1
        padded = nn.functional.pad(x, (0, 0, margin, margin), value=fill)
        return lambda j: padded[:, :, j : j + x.shape[2] + margin]


class MeanWindows(WindowShortener):
    """Shortener: the mean of each window of keys, without parameters (Poolingformer's mean pooling).

    size: number of keys of a window.
    """

    def pool(self, name: str, x: Tensor, of: Of, is_key: Of, middle: Tensor) -> Tensor:
        total = sum(of(j) * is_key(j) for j in range(self.size))
        return total / sum(is_key(j).to(x.dtype) for j in range(self.size)).clamp_min(1)  # type: ignore[union-attr]


class MaxWindows(WindowShortener):
    """Shortener: the elementwise maximum of each window of keys (Poolingformer's max pooling).

    size: number of keys of a window.
    """

    def pool(self, name: str, x: Tensor, of: Of, is_key: Of, middle: Tensor) -> Tensor:
        maximum = of(0).masked_fill(~is_key(0), -torch.inf)
        for j in range(1, self.size):
            maximum = torch.maximum(maximum, of(j).masked_fill(~is_key(j), -torch.inf))
        return maximum.masked_fill(maximum == -torch.inf, 0.0)


class DynamicWindows(WindowShortener):
    """Shortener: a weighted sum of each window of keys, with weights computed from its middle key.

    delta = softmax(W x_m), y = sum_j delta_j x_j over the window, with x_m in its middle

    This is the LDConv pooling of Poolingformer. Choose it if certain places of a window matter more, or if the middle
    key should determine the weights. Initially it is the mean. There is a matrix W for keys and one for values in each
    head. If a window extends beyond the row, the softmax covers the keys inside it. The nearest key then replaces a
    missing middle key.

    size: number of keys of a window.
    heads: number of heads of keys and of values.
    k_dim, v_dim: widths of a key and of a value.

    Errors: ValueError if keys have other heads or widths.

    Source: Zhang et al., 2021, arXiv:2105.04371, section 3.2; dynamic convolutions: Wu et al., 2019, arXiv:1901.10430.
    """

    def __init__(self, size: int, heads: int, k_dim: int, v_dim: int):
        super().__init__(size)
        self.k = nn.Parameter(torch.zeros(check_at_least("heads", heads, 1), check_at_least("k_dim", k_dim, 1), size))
        self.v = nn.Parameter(torch.zeros(heads, check_at_least("v_dim", v_dim, 1), size))

    def pool(self, name: str, x: Tensor, of: Of, is_key: Of, middle: Tensor) -> Tensor:
        weight = self.k if name == "k" else self.v
        if name not in ("k", "v") or (x.shape[1], x.shape[3]) != tuple(weight.shape[:2]):
            raise ValueError(
                f"DynamicWindows of {name!r} were made for {weight.shape[0]} heads of width {weight.shape[1]}, "
                f"but got {x.shape[1]} of width {x.shape[3]}. Create them with the sizes of the layer"
            )
        if not x.shape[2]:
            return x.new_zeros(*x.shape[:2], middle.shape[1], x.shape[3])
        centre = x.take_along_dim(middle[:, None, :, None], 2)
        has_key: Bool[Tensor, "B 1 R size"] = torch.cat([is_key(j) for j in range(self.size)], -1)
        logits = (centre @ weight.to(x.dtype)).masked_fill(~has_key, -torch.inf)
        share = torch.where(has_key.any(-1, keepdim=True), logits, 0.0).softmax(-1)
        return sum(of(j) * (share[..., j : j + 1] * is_key(j)) for j in range(self.size))  # type: ignore[return-value]


EXAMPLES = (lambda: MeanWindows(3), lambda: MaxWindows(2), lambda: DynamicWindows(3, 2, 8, 8))
