"""AdaptiveSpan: each head learns how far it looks; DynamicSpan: each head decides it for each token."""

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
    """A soft window: m(x) = clamp((ramp + z - x) / ramp, 0, 1), and 0 beyond `longest`; subclasses give the span z.

    longest: the largest span, in positions; no key further away is read, also where the ramp would end beyond it, as in
        the published code. `Restricted` keeps no further ones; other mechanisms that want to keep fewer take
        `Band(longest)` into their pattern.
    ramp: the width of the soft edge, in positions; 32 in the paper.
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
        """z, in positions, for each query; in float32 or better, as bfloat16 cannot tell span 256 from 257."""

    def head_values(self, request: Request) -> Mapping[str, HeadValues]:
        return {"span": HeadValues(self.spans(request.queries.extras), "positions")}

    def factor(self, piece: Request, x: Tensor, b: Tensor, h: Tensor, i: Tensor) -> Tensor:
        z = self.spans(piece.queries.extras)
        check_bias_heads(f"spans of {z.shape[1]} heads", z.shape[1], piece)
        m = ((self.ramp + z.expand(piece.queries.q.shape[:3])[b, h, i] - x) / self.ramp).clamp(0, 1)
        return torch.where(x <= self.longest - self.nearest, m, 0.0)  # else the ramp of a long span went beyond `reach`


class AdaptiveSpan(Ramp):
    """A learned span z_h = longest * span_h for each head: few heads look far, and the furthest decides what is kept.

    `span` is learned in [0, 1], as in the published code: a step of the optimiser moves z by its rate times `longest`,
    where a span in positions would hardly move. It is clamped after each step. Give it to `Restricted`, which reads and
    keeps no key beyond what the longest span of the layer still needs, with `penalties={"span": 2e-6}` in the model
    (the authors' scripts have 5e-7 to 2e-6): aux "span" is the mean of z over heads, in positions. The paper and its
    code read positions before the query only: `itself=False`. The paper's x is i - j; the code's is i - j - 1,
    `nearest=1`, and it adds 1e-8 to the normaliser, which is left out here.

    heads: those of the layer.
    longest, ramp, nearest, itself: see `Ramp`.
    start: where every z begins, in positions.
    step: `reach` is rounded up to a multiple of it, so that what is compiled for one serves longer; 64 in the code.

    Errors: ValueError where the layer has another number of heads. Source: Sukhbaatar et al., 2019, arXiv:1905.07799,
    section 2.2.
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
        """Find `reach` anew: after a step and after loading it is done; do it where `span` was written otherwise."""
        if not self.span.is_meta:
            self._reach = self._reached_distance(float(self.spans({}).detach().max()))

    def _last_distance(self, z: float) -> int:
        return math.ceil(self.ramp + z) - 1 + self.nearest  # m is above 0 where x < ramp + z

    def _reached_distance(self, z: float) -> int:
        return min(self.longest, -(-self._last_distance(z) // self.step) * self.step)


class DynamicSpan(Ramp):
    """A span for each head and token, z_t = longest * sigmoid(v_h.x_t + b_h): the same window, decided as it reads.

    Attention projects v_h.x_t + b_h from its input: the penalty "span", the mean of z over heads for each token, trains
    that matrix and what lies beneath it. No key can be forgotten before `longest`, since the next token may ask for it.

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
