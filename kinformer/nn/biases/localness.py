"""Localness: each query predicts where it looks and how far around; the window by query, by layer, or fixed."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.attend import read
from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.bias import Bias, ScoreFn, at, check_bias_heads
from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, HeadValues
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request

NARROWEST = 0.01  # deviations below it, in positions, read the nearest key alone, and their squares would end at 0


class _Range(NamedTuple):
    """The first position that a query may read, and how many there are from it to the last, whole numbers."""

    first: Float[Tensor, "B #H T"]
    size: Float[Tensor, "B #H T"]


class Localness(Bias):
    """score - (j - P_i)^2 / (2 sigma_i^2), P_i = I sigmoid(U_p tanh(W_p q_i)), sigma_i = D_i / 2: a learned window.

    Subclasses say how wide it is, D_i. I is how many positions there are to read: the tokens of the row under `Full()`,
    as in the paper, those of the source in cross-attention. Under a pattern that reads no further than the query, or
    than a window, P_i and D_i are of that range: of positions 0 .. i under `Causal()`, so that nothing tells how long
    the row will be, and it decodes with a cache. Choose it over `GaussianPrior` where what matters need not stand at
    the query itself, and over an adaptive span where a window shall be soft. The paper adds it in the lower layers
    alone. Each head has a W and U of its own.

    heads: those of the layer.
    head_dim: the width of a query.

    Errors: ValueError for a layer of other heads or width. Source: Yang et al., 2018, arXiv:1810.10182, section 3.
    """

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.heads, self.head_dim = check_at_least("heads", heads, 1), check_at_least("head_dim", head_dim, 1)
        self.inner, self.centre = _matrix(heads, head_dim), _vector(heads, head_dim)

    @abstractmethod
    def widths(
        self, request: Request, hidden: Float[Tensor, "B H T K"], size: Float[Tensor, "B #H T"]
    ) -> Float[Tensor, "#B #H #T"]:
        """D, in positions, for each query; `hidden` is tanh(W_p q_i), `size` is I."""

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        self._check(sizes.k_dim)
        return {}

    def prepare(self, request: Request) -> Mapping[str, Float[Tensor, "B H T n"]]:
        q = request.queries.q
        check_bias_heads(f"{type(self).__name__}({self.heads}, {self.head_dim})", self.heads, request)
        self._check(q.shape[-1])
        hidden = _hidden(q, self.inner)
        first, size = _range(request)
        centre = first + size * _share(hidden, self.centre)
        deviation = (self.widths(request, hidden, size) / 2).clamp_min(NARROWEST)
        return {"local": torch.stack([centre, deviation.expand_as(centre)], -1)}

    def head_values(self, request: Request) -> Mapping[str, HeadValues]:
        """Where a query looks, counted from its own position, and how far around."""
        centre, deviation = request.queries.extras["local"].unbind(-1)
        away = centre - request.queries.pos
        return {"centre": HeadValues(away, "positions from the query"), "sigma": HeadValues(deviation, "positions")}

    def bind(self, piece: Request) -> ScoreFn:
        local, k_pos = piece.queries.extras["local"], piece.keys.pos

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            away = (at(k_pos, b, h, j) - local[b, h, i, 0]) / local[b, h, i, 1]
            return s - (away * away / 2).to(s.dtype)

        return score

    def _check(self, width: int) -> None:
        if width != self.head_dim:
            name = type(self).__name__
            raise ValueError(f"{name} of head_dim={self.head_dim} came to queries of width {width}; give both the same")


class QueryLocalness(Localness):
    """D_i = I sigmoid(U_d tanh(W_p q_i)): each query decides how wide its window is. The paper's best form.

    heads, head_dim: see `Localness`.

    Source: Yang et al., 2018, arXiv:1810.10182, section 3.2 (query-specific window).
    """

    def __init__(self, heads: int, head_dim: int):
        super().__init__(heads, head_dim)
        self.window = _vector(heads, head_dim)

    def widths(self, request: Request, hidden: Tensor, size: Tensor) -> Float[Tensor, "B H T"]:
        return size * _share(hidden, self.window)


class LayerLocalness(Localness):
    """D = I sigmoid(U_d tanh(W_d mean_j k_j)): one window for a layer's row and head, by the mean of its keys.

    The mean is of the keys that the query may read: of the row under `Full()`; otherwise a read of its own, in which
    all of them count alike.

    heads, head_dim: see `Localness`.

    Source: Yang et al., 2018, arXiv:1810.10182, section 3.2 (layer-specific window).
    """

    def __init__(self, heads: int, head_dim: int):
        super().__init__(heads, head_dim)
        self.summary, self.window = _matrix(heads, head_dim), _vector(heads, head_dim)

    def widths(self, request: Request, hidden: Tensor, size: Tensor) -> Float[Tensor, "B H T"]:
        mean = _mean_key(request, self.heads)
        return size * _share(_hidden(mean, self.summary), self.window)


class FixedLocalness(Localness):
    """D is a number: only where a query looks is predicted.

    heads, head_dim: see `Localness`.
    width: D, in positions; 10 in the paper. bfloat16 predicts a place to about 1/500 of the row, so do not choose a
        much narrower window.

    Source: Yang et al., 2018, arXiv:1810.10182, section 3.2 (fixed window).
    """

    def __init__(self, heads: int, head_dim: int, width: float = 10.0):
        super().__init__(heads, head_dim)
        self.width = check_in_range("width", width, 2 * NARROWEST, math.inf, open_end=True)

    def widths(self, request: Request, hidden: Tensor, size: Tensor) -> Float[Tensor, "1 1 1"]:
        return size.new_full((1, 1, 1), self.width)


def _matrix(heads: int, width: int) -> nn.Parameter:
    """W of each head, as linear maps start."""
    bound = width**-0.5
    return nn.Parameter(torch.empty(heads, width, width).uniform_(-bound, bound))


def _vector(heads: int, width: int) -> nn.Parameter:
    """U of each head, likewise."""
    bound = width**-0.5
    return nn.Parameter(torch.empty(heads, width).uniform_(-bound, bound))


def _hidden(x: Float[Tensor, "B H T K"], w: Float[Tensor, "H K L"]) -> Float[Tensor, "B H T L"]:
    """tanh(W x), in float32 or better: bfloat16 would miss the place in a long row by several positions."""
    with disable_autocast(x):
        return torch.tanh(torch.einsum("bhtk,hkl->bhtl", at_least_float32(x), at_least_float32(w)))


def _share(hidden: Float[Tensor, "B H T K"], u: Float[Tensor, "H K"]) -> Float[Tensor, "B H T"]:
    """sigmoid(U hidden), in float32 or better."""
    with disable_autocast(hidden):
        return torch.sigmoid(torch.einsum("bhtk,hk->bht", hidden, at_least_float32(u)))


def _range(request: Request) -> _Range:
    """What the pattern's reach and the keys' last position leave of a row, which begins at 0."""
    pos, k_pos = request.queries.pos, request.keys.pos
    back, ahead = request.pattern.reach()
    first = torch.zeros_like(pos) if back == math.inf else (pos - int(back)).clamp_min(0)
    if ahead > 0:  # else later keys, which a cache does not have, would count
        last = k_pos.amax(-1, keepdim=True) if k_pos.shape[-1] else torch.full_like(k_pos[..., :0].sum(-1, True), -1)
        last = last.expand_as(pos) if ahead == math.inf else torch.minimum(last, pos + int(ahead))
    else:
        last = pos + int(max(ahead, -1e9))
    wide = torch.promote_types(request.queries.q.dtype, torch.float32)
    return _Range(first.to(wide), (last - first + 1).clamp_min(0).to(wide))


def _mean_key(request: Request, heads: int) -> Float[Tensor, "B H #T K"]:
    """The mean of the keys that each query may read, 0 where there is none."""
    keys = request.keys
    if type(request.pattern) is Full and keys.pos.shape[1] == 1:
        real = (keys.pos >= 0)[..., None]  # [B 1 S 1]
        mean = (keys.k * real).sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp_min(1)
        return mean.repeat_interleave(heads // mean.shape[1], 1)
    alike = request.replace(
        queries=request.queries._replace(q=request.queries.q[..., :0]),
        keys=keys._replace(k=keys.k[..., :0], v=keys.k),
        bias=None,
        dropout=0.0,
        lse=True,
    )
    return read(alike).y


EXAMPLES = (lambda: QueryLocalness(2, 8), lambda: LayerLocalness(2, 8), lambda: FixedLocalness(2, 8, 10.0))
