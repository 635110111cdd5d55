"""AdaptiveSpan and DynamicSpan: learned attention spans, for each head or for each head and token."""

import math
from abc import abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32
from kinformer.core.bias import Distances, check_bias_heads
from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, HeadValues
from kinformer.core.loss import Penalty
from kinformer.core.request import Request
from kinformer.nn.biases.bias_by_distance import of_distances
from kinformer.nn.biases.masking import Masking, Nearest


class Ramp(Masking):
    """Base class of the span biases: a soft window over distances with a span z in positions.

    m(x) = clamp((ramp + z - x) / ramp, 0, 1)

    Attention weights are multiplied by m(x) and renormalised; x is the distance of a key. Subclasses implement `spans`,
    which returns z for each query. m is 0 for keys more than `longest` positions away.

    longest: largest distance, in positions, at which a key can be read. The soft edge is cut off there, as in the
        published code. The cache of the mechanism `Restricted` keeps no keys beyond it. Other mechanisms need
        `Band(longest)` in their pattern to keep fewer keys in the cache.
    ramp: width of the soft edge, in positions; 32 in the paper.
    nearest, itself: see `Masking`.
    """

    def __init__(self, longest: int, *, ramp: float = 32.0, nearest: Nearest = 0, itself: bool = True):
        super().__init__(nearest=nearest, itself=itself)
        self.longest, self.ramp = check_at_least("longest", longest, 1), check_in_range("ramp", ramp, 1, math.inf)

    @property
    def reach(self) -> float:
        return self.longest

    @abstractmethod
    def spans(self, extras: Mapping[str, Tensor]) -> Float[Tensor, "#B H #T"]:
        """Return the span z of each query, in positions, in float32 or a wider dtype.

        bfloat16 cannot distinguish a span of 256 from one of 257.

        extras: values that the layer projects for each query, such as predicted spans.
        """

    def head_values(self, request: Request) -> Mapping[str, HeadValues]:
        return {"span": HeadValues(self.spans(request.queries.extras), "positions")}

    def factor(self, piece: Request, x: Tensor, b: Tensor, h: Tensor, i: Tensor) -> Tensor:
        z = self.spans(piece.queries.extras)
        check_bias_heads(f"spans of {z.shape[1]} heads", z.shape[1], piece)
        m = ((self.ramp + z.expand(piece.queries.q.shape[:3])[b, h, i] - x) / self.ramp).clamp(0, 1)
        return torch.where(x <= self.longest - self.nearest, m, 0.0)  # cuts off the ramp at `reach`


class AdaptiveSpan(Ramp):
    """Soft window of attention with one learned span for each head.

    z_h = longest * span_h

    Choose it for long sequences if only a few heads need far keys. Use it with the mechanism `Restricted`, which
    neither reads nor keeps in its cache keys beyond the longest span of the layer. Pass `penalties={"span": 2e-6}` to
    the model, so that training shortens the spans; the authors' scripts use 5e-7 to 2e-6. The weight applies to the
    auxiliary value "span", the mean of z over heads, in positions.

    The parameter `span` stays in [0, 1], as in the published code: it is clamped after each optimiser step. An
    optimiser step then moves z by about the learning rate times `longest`. If the parameter were z in positions, a step
    would hardly change it.

    heads: number of heads of the layer.
    longest, ramp, nearest, itself: see `Ramp`.
    start: initial span z of every head, in positions.
    step: the largest readable distance (`reach`) is rounded up to a multiple of `step`, so that code is compiled again
        only if it changes by a whole step. It is 64 in the authors' code.

    Errors: ValueError if the layer has a different number of heads. Source: Sukhbaatar et al., 2019, arXiv:1905.07799,
    section 2.2.

    Differences: the paper and its code read only positions before the query; pass `itself=False` to do the same. The
    paper uses the distance x = i - j. The code uses x = i - j - 1 (`nearest=1`) and adds 1e-8 to the normaliser; this
    class adds nothing.
    """

    def __init__(
        self,
        heads: int,
        longest: int,
        *,
        ramp: float = 32.0,
        nearest: Nearest = 0,
        itself: bool = True,
        start: float = 0.0,
        step: int = 64,
    ):
        super().__init__(longest, ramp=ramp, nearest=nearest, itself=itself)
        z = float(check_in_range("start", start, 0, longest))
        self.span = nn.Parameter(torch.full((check_at_least("heads", heads, 1),), z / longest))
        self.step = check_at_least("step", step, 1)
        self._reach = self._reached_distance(z)
        self.register_load_state_dict_post_hook(_look)

    @property
    def reach(self) -> float:
        return self._reach

    @property
    def max_distance(self) -> float:
        return min(self.longest, self._last_distance(float(self.spans({}).detach().max())))

    def spans(self, extras: Mapping[str, Tensor]) -> Float[Tensor, "#B H #T"]:
        return self.longest * at_least_float32(self.span)[None, :, None]

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        return of_distances(self, request, far)

    def aux(self, extras: Mapping[str, Float[Tensor, "B H T n"]]) -> Mapping[str, Tensor]:
        return {"span": self.longest * at_least_float32(self.span).mean()}

    def penalties(self) -> Mapping[str, Penalty]:
        return {"span": Penalty((self.span,))}

    @torch.no_grad()
    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        self.span.clamp_(0, 1)
        self.look()

    def look(self) -> None:
        """Recompute `reach`, the largest readable distance, from the parameter `span`.

        The class does so after each optimiser step and after loading a checkpoint. Call it if other code writes to
        `span`.
        """
        if not self.span.is_meta:
            self._reach = self._reached_distance(float(self.spans({}).detach().max()))

    def _last_distance(self, z: float) -> int:
        return math.ceil(self.ramp + z) - 1 + self.nearest  # m > 0 if x < ramp + z

    def _reached_distance(self, z: float) -> int:
        return min(self.longest, -(-self._last_distance(z) // self.step) * self.step)


class DynamicSpan(Ramp):
    """Soft window of attention with a span for each head and token, predicted from the layer's input.

    z_t = longest * sigmoid(v_h.x_t + b_h)

    Choose it over `AdaptiveSpan` if each token should have a span of its own. A cache keeps all keys up to distance
    `longest`, because a later token may need them.

    The attention layer computes v_h.x_t + b_h from its input x. The penalty "span", which a model may add to its loss,
    is the mean of z over heads for each token. It trains this projection and the layers below.

    longest, ramp, nearest, itself: see `Ramp`.

    Source: Sukhbaatar et al., 2019, arXiv:1905.07799, section 2.2.
    """

    def spans(self, extras: Mapping[str, Tensor]) -> Float[Tensor, "#B H #T"]:
        return self.longest * torch.sigmoid(at_least_float32(extras["span"])[..., 0])

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {"span": ExtraProjection(1)}

    def aux(self, extras: Mapping[str, Float[Tensor, "B H T n"]]) -> Mapping[str, Tensor]:
        return {"span": self.spans(extras).mean(1)}

    def penalties(self) -> Mapping[str, Penalty]:
        return {"span": Penalty((), reaches_x=True)}


def _look(bias: nn.Module, keys: object) -> None:
    assert isinstance(bias, AdaptiveSpan)
    bias.look()


EXAMPLES = (
    lambda: AdaptiveSpan(2, 8, ramp=3, start=2.0),
    lambda: AdaptiveSpan(2, 8, ramp=2, nearest=1, itself=False, start=4.0),
    lambda: DynamicSpan(8, ramp=3),
    lambda: DynamicSpan(8, ramp=2, nearest=1, itself=False),
)
