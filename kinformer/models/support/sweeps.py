"""Sweeps: one reading of a text that measures every choice of the numbers by which remembered tokens are mixed in."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from kinformer.core.evaluating import evaluating
from kinformer.core.layer import Context, Out
from kinformer.core.model import total
from kinformer.models.continuous_cache import ContinuousCache
from kinformer.models.nearest import Nearest
from kinformer.models.support.by_token import log_probabilities

WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
STEPS = (1 / 16, 1 / 4, 1, 4, 16)  # of temperatures, in the spread of distances
TRIED = 256  # tokens by which distances are known


class Choice(NamedTuple):
    """How many neighbours, at which temperature, with which share; of a cache its theta as the temperature."""

    k: int
    temperature: float
    weight: float

    @property
    def name(self) -> str:
        """What a measurement calls it."""
        return f"{self.k} {self.temperature!r} {self.weight!r}"

    @classmethod
    def of(cls, name: str) -> "Choice":
        """What a measurement called so."""
        k, temperature, weight = name.split()
        return cls(int(k), float(temperature), float(weight))


class Swept(NamedTuple):
    """The bits of a byte that a model says alone, and with each choice."""

    own: float
    choices: dict[Choice, float]

    @property
    def best(self) -> Choice:
        """The cheapest; of equal ones the first."""
        return min(self.choices, key=self.choices.__getitem__)


def swept(measured: Any) -> Swept:
    """Convert a `Measured` sweep to bits per byte."""
    width = measured.bytes_per_token
    choices = {Choice.of(name): value / width for name, value in measured.extras.items() if name.count(" ") == 2}
    return Swept(measured.value, choices)


class NearestSweep(Nearest):
    """A `Nearest` that is judged by every choice at once, beside what the model says alone."""

    def sweep(self, ks: Sequence[int], temperatures: Sequence[float]) -> "NearestSweep":
        """With these choices, the largest k being that of the search."""
        self.ks, self.temperatures = sorted({min(k, self.k) for k in ks}), tuple(temperatures)
        return self

    def spread(self, tokens: Shaped[Tensor, " N"]) -> list[float]:
        """Temperatures to choose from: the paper's 1, and others by how far the furthest is behind the nearest."""
        with evaluating(self):
            row = tokens[None, : min(TRIED, self.window or TRIED)].long().to(next(self.parameters()).device)
            far = self.looked_up(row, None, None, False)[1].distances
        wide = far.where(far < torch.inf, 0.0).amax(-1) - far[..., 0] if far.shape[-1] else far.new_zeros(1)
        found = (float(f"{step * float(wide.median()):.2g}") for step in STEPS)
        return sorted({1.0, *(one for one in found if one > 1e-3)})

    def logits(
        self, tokens: Int[Tensor, "B T"], state: Any = None, ctx: Context | None = None, *, last: bool = False
    ) -> Out:
        out, found = self.looked_up(tokens, state, ctx, last)
        kept = {"distances": found.distances.float(), "neighbours": found.tokens}
        return out._replace(y=log_probabilities(out.y), aux={**out.aux, **kept})

    def measured(self, out: Out, wanted: Int[Tensor, "B T"]) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Its own bits, then those of each choice by its name."""
        own, right = said(out.y, wanted), out.aux["neighbours"] == wanted[..., None]
        there, found = out.aux["neighbours"] >= 0, dict(super().measured(out, wanted))
        for temperature in self.temperatures:
            scores = (-out.aux["distances"] / temperature).masked_fill(~there, -torch.inf)
            every, same = scores.logcumsumexp(-1), scores.masked_fill(~right, -torch.inf).logcumsumexp(-1)
            for k in self.ks:
                at = slice(min(k, scores.shape[-1]) - 1, None)
                other = torch.cat([same - every, torch.full_like(own, math.nan)[..., None]], -1)[..., at][..., 0]
                found |= costs(own, other, k, temperature, wanted)
        return found


class CacheSweep(ContinuousCache):
    """A `ContinuousCache` that is judged by every share at once, beside what the model says alone."""

    def mixes(self, own: Float[Tensor, "B T V"], likely: Float[Tensor, "B T V"], out: Out) -> Out:
        return out._replace(y=own, aux={**out.aux, "likely": likely})

    def measured(self, out: Out, wanted: Int[Tensor, "B T"]) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Its own bits, then those of each choice by its name."""
        likely = out.aux["likely"]
        other = said(likely, wanted).masked_fill(~(likely > -torch.inf).any(-1), math.nan)
        return {**super().measured(out, wanted), **costs(said(out.y, wanted), other, self.size, self.theta, wanted)}


def said(log_p: Float[Tensor, "B T V"], wanted: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """log p of each wanted token."""
    return log_p.gather(-1, wanted.clamp_min(0)[..., None])[..., 0]


def costs(
    own: Float[Tensor, "B T"], other: Float[Tensor, "B T"], k: int, temperature: float, wanted: Int[Tensor, "B T"]
) -> dict[str, tuple[Tensor, Tensor]]:
    """The bits of the wanted tokens for each share of the other's; where that is NaN nothing was found."""
    found = {}
    for weight in WEIGHTS:
        both = torch.logaddexp(other + (math.log(weight) if weight else -math.inf), own + math.log1p(-weight))
        nats = -torch.where(other.isnan(), own, both)
        found[Choice(k, temperature, weight).name] = total(nats / math.log(2), wanted >= 0)
    return found
