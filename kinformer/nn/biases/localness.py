"""Localness: a Gaussian window around a predicted centre, with a predicted or a fixed width."""

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

NARROWEST = 0.01  # smallest deviation, in positions: below it only the nearest key counts, and squares may underflow


class _Range(NamedTuple):
    """First position that each query may read, and the number of positions up to the last; whole numbers."""

    first: Float[Tensor, "B #H T"]
    size: Float[Tensor, "B #H T"]


class Localness(Bias):
    """Base class of the localness biases: a Gaussian window around a centre that each query predicts.

    bias_ij = -(j - P_i)^2 / (2 sigma_i^2), P_i = I sigmoid(U_p tanh(W_p q_i)), sigma_i = D_i / 2

    Choose these biases over `GaussianPrior` if the important keys need not be near the query, and over `AdaptiveSpan`
    if the window should be soft on both sides. Subclasses implement `widths`, which returns the width D_i. Each head
    has its own W and U.

    I is the number of positions to read. With the pattern `Full()` it is the length of the row, as in the paper, or the
    length of the source in cross-attention. If the reach of the pattern ends at the query or at a window, P_i and D_i
    refer to the range within this reach. With `Causal()` this is the range 0 .. i. The length of the whole row then has
    no effect, and decoding with a cache works.

    heads: number of heads of the layer.
    head_dim: width of a query.

    Errors: ValueError if the layer has a different number of heads or another width. Source: Yang et al., 2018,
    arXiv:1810.10182, section 3.

    Differences: the paper adds this bias only in the lower layers.
    """

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.heads, self.head_dim = check_at_least("heads", heads, 1), check_at_least("head_dim", head_dim, 1)
        self.inner, self.centre = _matrix(heads, head_dim), _vector(heads, head_dim)

    @abstractmethod
    def widths(
        self, request: Request, hidden: Float[Tensor, "B H T K"], size: Float[Tensor, "B #H T"]
    ) -> Float[Tensor, "#B #H #T"]:
        """Return the window width D of each query, in positions.

        request: queries and keys of the whole attention call.
        hidden: tanh(W_p q_i) of each query.
        size: number I of positions that each query can read.
        """

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
        """Return the centre of each window as a distance from the query, and the window's deviation."""
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
            raise ValueError(f"{name} has head_dim={self.head_dim}, but got queries of width {width}. Make them equal")


class QueryLocalness(Localness):
    """Gaussian window with a centre and a width that each query predicts.

    D_i = I sigmoid(U_d tanh(W_p q_i))

    I is the number of positions that the query can read. It gives the best translations of the paper's three forms.

    heads, head_dim: see `Localness`.

    Source: Yang et al., 2018, arXiv:1810.10182, section 3.2 (query-specific window).
    """

    def __init__(self, heads: int, head_dim: int):
        super().__init__(heads, head_dim)
        self.window = _vector(heads, head_dim)

    def widths(self, request: Request, hidden: Tensor, size: Tensor) -> Float[Tensor, "B H T"]:
        return size * _share(hidden, self.window)


class LayerLocalness(Localness):
    """Gaussian window with a centre that each query predicts, and a width predicted from the mean key.

    D = I sigmoid(U_d tanh(W_d mean_j k_j))

    I is the number of positions that a query can read, and the mean is over these keys. With the pattern `Full()` these
    are all keys of the row, which then has one width in each head. With other patterns each query has its own mean and
    width; an additional attention call with equal weights computes the mean.

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
    """Gaussian window with a fixed width; each query predicts only the window's centre.

    heads, head_dim: see `Localness`.
    width: window width D, in positions; 10 in the paper. In bfloat16 the centre is exact to about 1/500 of the row
        length only, so the width should not be much smaller.

    Source: Yang et al., 2018, arXiv:1810.10182, section 3.2 (fixed window).
    """

    def __init__(self, heads: int, head_dim: int, width: float = 10.0):
        super().__init__(heads, head_dim)
        self.width = check_in_range("width", width, 2 * NARROWEST, math.inf, open_end=True)

    def widths(self, request: Request, hidden: Tensor, size: Tensor) -> Float[Tensor, "1 1 1"]:
        return size.new_full((1, 1, 1), self.width)


def _matrix(heads: int, width: int) -> nn.Parameter:
    """Return one matrix W for each head, initialised as in nn.Linear."""
    bound = width**-0.5
    return nn.Parameter(torch.empty(heads, width, width).uniform_(-bound, bound))


def _vector(heads: int, width: int) -> nn.Parameter:
    """Return one vector U for each head, initialised as in nn.Linear."""
    bound = width**-0.5
    return nn.Parameter(torch.empty(heads, width).uniform_(-bound, bound))


def _hidden(x: Float[Tensor, "B H T K"], w: Float[Tensor, "H K L"]) -> Float[Tensor, "B H T L"]:
    """Return tanh(W x) in float32 or wider: bfloat16 misplaces centres in long rows by several positions."""
    with disable_autocast(x):
        return torch.tanh(torch.einsum("bhtk,hkl->bhtl", at_least_float32(x), at_least_float32(w)))


def _share(hidden: Float[Tensor, "B H T K"], u: Float[Tensor, "H K"]) -> Float[Tensor, "B H T"]:
    """Return sigmoid(U hidden) in float32 or a wider dtype."""
    with disable_autocast(hidden):
        return torch.sigmoid(torch.einsum("bhtk,hk->bht", hidden, at_least_float32(u)))


def _range(request: Request) -> _Range:
    """Return the range that each query can read, from the pattern's reach and the last key position.

    A row begins at position 0.
    """
    pos, k_pos = request.queries.pos, request.keys.pos
    back, ahead = request.pattern.reach()
    first = torch.zeros_like(pos) if back == math.inf else (pos - int(back)).clamp_min(0)
    if ahead > 0:  # otherwise later keys, which a cache does not have, would count
        last = k_pos.amax(-1, keepdim=True) if k_pos.shape[-1] else torch.full_like(k_pos[..., :0].sum(-1, True), -1)
        last = last.expand_as(pos) if ahead == math.inf else torch.minimum(last, pos + int(ahead))
    else:
        last = pos + int(max(ahead, -1e9))
    wide = torch.promote_types(request.queries.q.dtype, torch.float32)
    return _Range(first.to(wide), (last - first + 1).clamp_min(0).to(wide))


def _mean_key(request: Request, heads: int) -> Float[Tensor, "B H #T K"]:
    """Return the mean of the keys that each query may read, or 0 if there are none."""
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
