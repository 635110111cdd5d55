"""Rotary positions give the same logits if all positions are shifted, and absolute positions do not."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.model import Writer
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.text import read as read_text
from kinformer.lab.plot import Plot, PlotLine
from kinformer.lab.train.fit import fit
from kinformer.members.gpt import gpt

SIZES: dict[str, Any] = {"d": 64, "depth": 2, "heads": 4}
STEPS, RATE, ROWS, LENGTH = 60, 3e-3, 8, 64
MINUTES = 0.5  # of a default run with three seeds
SHIFT, EQUAL, DIFFERS = 1000, 1e-4, 0.1  # positions; differences of logits
POSITIONS = ("rotary", "sinusoidal")
HEAD_DIM, FARTHEST = 128, 256  # of the curve of the paper's bound
SAYS = "with rotary positions, logits depend on distances of tokens only: a shift of all positions changes nothing"
SOURCE = "Su et al., 2021, arXiv:2104.09864, section 3.1 (relative positions) and 3.3 (long-term decay)"


@torch.no_grad()
def shift_error(model: Writer, tokens: Int[Tensor, "B T"], shift: int) -> float:
    """Return the largest difference of logits between rows at positions from 0 and from `shift`.

    model: decoder.
    tokens: the rows.
    shift: position of the first token.
    """
    model.eval()
    ctx = Context.of_sequence(tokens)
    shifted = replace(ctx, pos=ctx.pos + shift)
    return float((model.logits(tokens, None, shifted).y - model.logits(tokens, None, ctx).y).abs().max())


def decay_bound(head_dim: int, distance: Int[Tensor, " N"], base: float = 10000.0) -> Float[Tensor, " N"]:
    """Return the paper's bound of a product of query and key, without its factor of the content.

    The bound is the mean of |S_n| over n = 1 .. head_dim / 2. S_n is the sum of the first n rotations exp(i distance
    base^(-2j / head_dim)).

    head_dim: width of a query.
    distance: distances of query and key.
    base: number that sets the wavelengths.
    """
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    turns = torch.exp(1j * distance[:, None] * frequencies)
    return turns.cumsum(1).abs().mean(1)


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Measure how much a shift of all positions changes the logits of trained decoders.

    Measured here, for decoders that were trained briefly on text: the largest difference of logits between rows at
    positions from 0 and from 1000. The claim holds if it is at most 1e-4 with rotary positions in float32, and if
    sinusoidal positions, which are absolute, change the logits by more than 0.1. The plot shows the paper's bound on
    products of queries and keys, which falls with the distance; it does not affect the verdict.

    seeds: seeds of the weights and of the trainings.
    steps: number of training steps.
    """
    text = read_text("stdlib")
    tokens = text.part("valid").tokens[: 4 * LENGTH].view(4, LENGTH).long()
    errors: dict[str, list[float]] = {position: [] for position in POSITIONS}
    for seed in seeds:
        for position, values in errors.items():
            with seeded(seed):
                model = gpt(**SIZES, position=position)  # type: ignore[arg-type]
                fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=RATE, seed=seed, valid_bytes=1024)
            values.append(shift_error(model, tokens, SHIFT))
    change = f"largest change of a logit by a shift of {SHIFT} positions, float32"
    measures = (
        Measure(f"{change}, rotary", errors["rotary"], "most", EQUAL),
        Measure(f"{change}, sinusoidal", errors["sinusoidal"], "least", DIFFERS),
    )
    distance = torch.arange(1, FARTHEST + 1)
    bound = decay_bound(HEAD_DIM, distance)
    facts = {
        "bound at distances 1, 16 and 256": ", ".join(f"{bound[n - 1]:.1f}" for n in (1, 16, 256)),
        "changes by seed, rotary": ", ".join(f"{value:.1e}" for value in errors["rotary"]),
        "mean change, sinusoidal": f"{mean(errors['sinusoidal']):.2f}",
    }
    curve = Plot(
        f"the bound of rotary attention, heads of {HEAD_DIM}",
        "distance of query and key",
        "bound, without the factor of their content",
        [PlotLine(distance.tolist(), bound.tolist())],
        ylim=(0, None),
    )
    changes = Plot(
        f"change of logits by a shift of {SHIFT} positions",
        ylabel="largest change of a logit",
        samples={position: [values] for position, values in errors.items()},
        categories=[""],
        levels=((EQUAL, f"{EQUAL:g}"),),
        log="y",
    )
    return Claim(SAYS, SOURCE, measures, facts, (changes, curve))
