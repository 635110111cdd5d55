"""Sweeps: evaluate a mixture of model and memory for many settings in one pass over a text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import Context, Out
from kinformer.core.model import sum_and_count
from kinformer.models.continuous_cache import ContinuousCache
from kinformer.models.nearest_neighbour_lm import NearestNeighbourLM
from kinformer.models.support.memory_probabilities import log_probabilities

WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
STEPS = (1 / 16, 1 / 4, 1, 4, 16)  # candidate temperatures, relative to the spread of distances
TRIED = 256  # number of tokens to measure distances on


class SweepChoice(NamedTuple):
    """Settings of a mixture of model and memory: number of neighbours, temperature and weight.

    k: number of neighbours; for a `ContinuousCache` its size.
    temperature: temperature of the distances; for a `ContinuousCache` its theta.
    weight: weight of the memory in the mixture.
    """

    k: int
    temperature: float
    weight: float

    @property
    def name(self) -> str:
        """Name of the settings in a measurement, which `from_name` reads."""
        return f"{self.k} {self.temperature!r} {self.weight!r}"

    @classmethod
    def from_name(cls, name: str) -> "SweepChoice":
        """Return the settings with this name, the inverse of `name`.

        name: name of the settings.
        """
        k, temperature, weight = name.split()
        return cls(int(k), float(temperature), float(weight))


class SweepResult(NamedTuple):
    """Result of a sweep: bits per byte of the model, and of its mixture with each of the settings.

    own: bits per byte of the model without a memory.
    choices: bits per byte of the mixture, by settings.
    """

    own: float
    choices: dict[SweepChoice, float]

    @property
    def best(self) -> SweepChoice:
        """Settings with the fewest bits per byte; the first of equal ones."""
        return min(self.choices, key=self.choices.__getitem__)


def sweep_result(measured: Any) -> SweepResult:
    """Convert the result of evaluating a sweep to bits per byte.

    measured: result of the evaluation, a `Measured` with bits per token.
    """
    width = measured.bytes_per_token
    choices = {
        SweepChoice.from_name(name): value / width for name, value in measured.extras.items() if name.count(" ") == 2
    }
    return SweepResult(measured.value, choices)


class NearestNeighbourSweep(NearestNeighbourLM):
    """Variant of `NearestNeighbourLM` that evaluates all settings, and the model without a store, at once."""

    def sweep(self, ks: Sequence[int], temperatures: Sequence[float]) -> "NearestNeighbourSweep":
        """Set the numbers of neighbours and the temperatures to evaluate, and return self.

        The weights to evaluate are fixed.

        ks: numbers of neighbours; larger ones are reduced to the model's `k`.
        temperatures: temperatures of the distances.
        """
        self.ks, self.temperatures = sorted({min(k, self.k) for k in ks}), tuple(temperatures)
        return self

    def spread(self, tokens: Shaped[Tensor, " N"]) -> list[float]:
        """Return candidate temperatures: the paper's 1, and multiples of the median spread of distances.

        The spread is the distance of the furthest neighbour minus the distance of the nearest.

        tokens: text to measure it on.
        """
        with evaluating(self):
            row = tokens[None, : min(TRIED, self.window or TRIED)].long().to(next(self.parameters()).device)
            far = self.look_up(row, None, None, False)[1].distances
        wide = far.where(far < torch.inf, 0.0).amax(-1) - far[..., 0] if far.shape[-1] else far.new_zeros(1)
        spreads = (float(f"{step * float(wide.median()):.2g}") for step in STEPS)
        return sorted({1.0, *(temperature for temperature in spreads if temperature > 1e-3)})

    def logits(
        self, tokens: Int[Tensor, "B T"], state: Any = None, ctx: Context | None = None, *, last: bool = False
    ) -> Out:
        out, neighbours = self.look_up(tokens, state, ctx, last)
        measured = {"distances": neighbours.distances.float(), "neighbours": neighbours.tokens}
        return out._replace(y=log_probabilities(out.y), aux={**out.aux, **measured})

    def metric_sums(self, out: Out, targets: Int[Tensor, "B T"]) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Return the sums for the bits of the model, then for the bits with each of the settings, by name.

        out: output of the model.
        targets: token to predict at each position; -1 for none.
        """
        log_p, right = target_log_p(out.y, targets), out.aux["neighbours"] == targets[..., None]
        is_found, sums = out.aux["neighbours"] >= 0, dict(super().metric_sums(out, targets))
        for temperature in self.temperatures:
            scores = (-out.aux["distances"] / temperature).masked_fill(~is_found, -torch.inf)
            every, same = scores.logcumsumexp(-1), scores.masked_fill(~right, -torch.inf).logcumsumexp(-1)
            for k in self.ks:
                at = slice(min(k, scores.shape[-1]) - 1, None)
                other = torch.cat([same - every, torch.full_like(log_p, math.nan)[..., None]], -1)[..., at][..., 0]
                sums |= mixture_bits(log_p, other, k, temperature, targets)
        return sums


class CacheSweep(ContinuousCache):
    """Variant of `ContinuousCache` that evaluates all weights, and the model without a cache, at once."""

    def mix(self, model_log_p: Float[Tensor, "B T V"], likely: Float[Tensor, "B T V"], out: Out) -> Out:
        return out._replace(y=model_log_p, aux={**out.aux, "likely": likely})

    def metric_sums(self, out: Out, targets: Int[Tensor, "B T"]) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Return the sums for the bits of the model, then for the bits with each of the settings, by name.

        out: output of the model.
        targets: token to predict at each position; -1 for none.
        """
        likely = out.aux["likely"]
        other = target_log_p(likely, targets).masked_fill(~(likely > -torch.inf).any(-1), math.nan)
        return {
            **super().metric_sums(out, targets),
            **mixture_bits(target_log_p(out.y, targets), other, self.size, self.theta, targets),
        }


def target_log_p(log_p: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the log-probability of each target.

    log_p: log-probabilities of all tokens.
    targets: token to predict at each position; -1 for none.
    """
    return log_p.gather(-1, targets.clamp_min(0)[..., None])[..., 0]


def mixture_bits(
    model_log_p: Float[Tensor, "B T"],
    other: Float[Tensor, "B T"],
    k: int,
    temperature: float,
    targets: Int[Tensor, "B T"],
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the sums for the bits of the targets, for each weight of the memory in the mixture.

    model_log_p: log-probability of each target under the model.
    other: log-probability of each target under the memory; NaN if the memory is empty.
    k, temperature: fields of the `SweepChoice`.
    targets: token to predict at each position; -1 for none.
    """
    sums = {}
    for weight in WEIGHTS:
        mixed = torch.logaddexp(other + (math.log(weight) if weight else -math.inf), model_log_p + math.log1p(-weight))
        nats = -torch.where(other.isnan(), model_log_p, mixed)
        sums[SweepChoice(k, temperature, weight).name] = sum_and_count(nats / math.log(2), targets >= 0)
    return sums
