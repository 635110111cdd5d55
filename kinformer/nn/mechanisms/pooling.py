"""Pooling: a query reads what pooling makes of the keys in a wide window about it."""

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
    """Softmax attention over the pooled keys of i - window .. i + window, kernels of which begin `stride` apart.

    z_i = softmax(scale q_i pool(K)^T) pool(V), pool(X) = kernels of X_(i-window) .. X_(i+window)

    Choose it as the second of two levels (`PoolingLevels`), which sees further than a window of single keys at the
    price of a few: there are floor((2 window + 1 - kernel) / stride) + 1 of them. Kernels begin at i - window, for each
    query at its own places; at an end of the row they are of the keys that are there, and those without any are left
    out. All kernels of a row are made once and read by a stride: the cost is linear in the row.

    window: how far the pooled keys reach on either side, half of the paper's w2.
    pool: what makes a kernel one key: `MeanWindows(kernel)`, `MaxWindows(kernel)` or `DynamicWindows(kernel, ...)`.
    stride: from the begin of one kernel to that of the next, the paper's xi.
    scale: the factor of the product, 1/sqrt(k_dim) unless given.
    dropout: the share of attention weights that training drops.

    Errors: NoState from `start`, as a window looks ahead; ValueError for a kernel longer than the window, and for
    `ctx.only` and `ctx.also`. Source: Zhang et al., 2021, arXiv:2105.04371, section 3.2. No code of its authors is
    known, so nothing but the equations was there to compare with.
    """

    def __init__(
        self, window: int, pool: WindowShortener, stride: int = 1, *, scale: float | None = None, dropout: float = 0.0
    ):
        size = check_part("pool", pool, WindowShortener, "one, such as MeanWindows(5)").size
        if size > 2 * check_at_least("window", window, 0) + 1:
            raise ValueError(f"a kernel of {size} keys does not fit into window={window}, which holds {2 * window + 1}")
        # a kernel stands at its last key, moved on until kernels of a query stand at multiples of the stride from it
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


_APART = {"merge": "a key is made of several tokens, so the keys of two halves of a row are not those of the whole"}
EXAMPLES = tuple(Example(make, breaks=_APART) for make in (_mean, _max, _dynamic))
