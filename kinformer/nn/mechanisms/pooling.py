"""Pooling: attention to pooled keys in a wide window around the query."""

import kinformer as kf
from kinformer.core.checks import check_at_least, check_part
from kinformer.core.example import Example
from kinformer.core.heads import Keys
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.shorteners.windows import WindowShortener


class Pooling(Shortened):
    """Softmax attention over the pooled keys of i - window .. i + window.

    z_i = softmax(scale q_i pool(K)^T) pool(V), pool(X) = kernels of X_(i-window) .. X_(i+window)

    A kernel is a run of consecutive tokens that is pooled into one key; kernels start `stride` apart. Choose it as the
    second of two levels (`PoolingLevels`). It sees further than a window of single keys at the cost of a few keys: a
    query reads floor((2 window + 1 - kernel) / stride) + 1 pooled keys. The kernels of a query start at i - window. At
    an end of the row they pool the keys that exist, and kernels without keys are left out. All kernels of a row are
    computed once and read with a stride, so the cost is linear in the row.

    window: number of tokens on either side of the query that pooled keys cover; half of w2 in the paper.
    pool: pooling of a kernel: `MeanWindows(kernel)`, `MaxWindows(kernel)` or `DynamicWindows(kernel, ...)`.
    stride: distance between the starts of two kernels; xi in the paper.
    scale: factor of the dot product; 1/sqrt(k_dim) by default.
    dropout: fraction of attention weights that training drops.

    Errors: NoState (no decoding state exists) from `start`, because a window includes later keys; ValueError for a
    kernel longer than the window, and for `ctx.only` and `ctx.also`.

    Source: Zhang et al., 2021, arXiv:2105.04371, section 3.2.

    Differences: no code of the authors is known, so only the equations were available for comparison.
    """

    def __init__(
        self, window: int, pool: WindowShortener, stride: int = 1, *, scale: float | None = None, dropout: float = 0.0
    ):
        size = check_part("pool", pool, WindowShortener, "a window shortener, such as MeanWindows(5)").size
        if size > 2 * check_at_least("window", window, 0) + 1:
            raise ValueError(
                f"a kernel of {size} keys does not fit into window={window}, which holds {2 * window + 1} keys. Use "
                "a smaller kernel or a larger window"
            )
        # a kernel has the position of its last key, shifted to a multiple of the stride from the query
        offset = (window - size + 1) % check_at_least("stride", stride, 1)
        left = window - size + 1 - offset
        pattern = Band(left, 2 * window + 1 - size - left) & Strided(stride)
        super().__init__(Softmax(pattern, scale=scale, dropout=dropout), pool)
        self.window, self.stride, self.moved = window, stride, offset

    def shorten_keys(self, keys: Keys) -> Keys:
        short = super().shorten_keys(keys)
        return short._replace(pos=short.pos.where(short.pos < 0, short.pos + self.moved))


def _mean() -> Pooling:
    return Pooling(4, kf.MeanWindows(3), 2)


def _max() -> Pooling:
    return Pooling(3, kf.MaxWindows(2), 3)


def _dynamic() -> Pooling:
    return Pooling(2, kf.DynamicWindows(3, 2, 8, 8))


_APART = {"merge": "a key is made of several tokens, so two halves of a row have other keys than the whole row"}
EXAMPLES = tuple(Example(make, breaks=_APART) for make in (_mean, _max, _dynamic))
