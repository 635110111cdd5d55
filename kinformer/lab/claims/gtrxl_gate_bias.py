"""GTrXL: gates that start near the identity (b_g > 0) learn in fewer steps than gates that start half open."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine
from kinformer.members.gtrxl import gtrxl

SYMBOLS, LAG, LENGTH, ROWS = 4, 8, 24, 16  # each symbol is to be said again LAG later
WIDTH, DEPTH, SHALLOW, RATE = 32, 6, 2, 1e-3
STARTS, STEPS, ENOUGH = (0.0, 1.0, 2.0), 300, 0.9
SAYS = "gates with b_g = 1 or 2 learn to repeat a symbol in fewer steps than with b_g = 0"
SOURCE = "Parisotto et al., 2019, arXiv:1910.06764, section 3.2: an initial b_g > 0 improves the speed of learning"


class RepeatReader(nn.Module):
    """Symbols in, what stood LAG before each out, through a gated stack."""

    def __init__(self, b_g: float, depth: int):
        super().__init__()
        self.begin, self.end = nn.Linear(SYMBOLS, WIDTH), nn.Linear(WIDTH, SYMBOLS)
        self.body = gtrxl(d=WIDTH, depth=depth, heads=2, segment=LENGTH, memory=0, b_g=b_g).body

    def forward(self, symbols: Int[Tensor, "B T"]) -> Float[Tensor, "B _ N"]:
        return self.end(self.body(self.begin(F.one_hot(symbols, SYMBOLS).float())).y)[:, LAG:]


class RepeatLearning(NamedTuple):
    """The share of right answers in each batch, before it was learned from, up to the first that was enough."""

    right: list[float]

    @property
    def steps(self) -> int:
        """How many batches it took, or was given."""
        return len(self.right)


def train_reader(b_g: float, seed: int, steps: int, depth: int = DEPTH) -> RepeatLearning:
    """Batches of fresh rows, equal for every b_g, until a batch is answered well enough."""
    generator = torch.Generator().manual_seed(seed)
    with seeded(seed):
        model = RepeatReader(b_g, depth)
    optimiser, right = torch.optim.Adam(model.parameters(), RATE), []
    for _ in range(steps):
        symbols = torch.randint(SYMBOLS, (ROWS, LENGTH), generator=generator)
        logits, target = model(symbols), symbols[:, :-LAG]
        right.append(float((logits.argmax(-1) == target).float().mean()))
        if right[-1] >= ENOUGH:
            break
        optimiser.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        optimiser.step()
    return RepeatLearning(right)


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Steps to ENOUGH by where the biases start; what has not learned in all its steps counts as if it then had."""
    runs = {b_g: [train_reader(b_g, seed, steps) for seed in seeds] for b_g in STARTS}
    closed = [run.steps for run in runs[STARTS[0]]]
    measures = tuple(
        Measure(
            f"steps with b_g = 0 for each step with b_g = {b_g:g}",
            [slow / run.steps for slow, run in zip(closed, runs[b_g], strict=True)],
            "least",
            1.0,
        )
        for b_g in STARTS[1:]
    )
    facts = {f"steps with b_g = {b_g:g}": ", ".join(map(_format_steps, of)) for b_g, of in runs.items()}
    for b_g in STARTS:
        facts[f"steps of {SHALLOW} blocks with b_g = {b_g:g}"] = (
            _format_steps(train_reader(b_g, seeds[0], steps, SHALLOW)) + " (one seed)"
        )
    lines = [
        PlotLine(range(run.steps), run.right, f"b_g = {b_g:g}", alpha=0.7) for b_g, of in runs.items() for run in of
    ]
    plot = Plot(
        f"a symbol again, {LAG} later, by {DEPTH} blocks",
        "steps",
        "answers that are right",
        lines,
        levels=((1 / SYMBOLS, "guessing"),),
        ylim=(0, 1),
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))


def _format_steps(run: RepeatLearning) -> str:
    return f"{run.steps}" if run.right[-1] >= ENOUGH else f"{run.steps}, which were not enough"
