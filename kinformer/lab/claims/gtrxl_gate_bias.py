"""GTrXL gates that start near the identity (b_g > 0) learn faster than half-open gates."""

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

SYMBOLS, LAG, LENGTH, ROWS = 4, 8, 24, 16  # each symbol must be repeated LAG positions later
WIDTH, DEPTH, SHALLOW, RATE = 32, 6, 2, 1e-3
STARTS, STEPS, ENOUGH = (0.0, 1.0, 2.0), 300, 0.9
MINUTES = 1.5  # of a default run with three seeds
SAYS = "gates with b_g = 1 or 2 learn to repeat a symbol in fewer steps than gates with b_g = 0"
SOURCE = "Parisotto et al., 2019, arXiv:1910.06764, section 3.2: an initial b_g > 0 improves the speed of learning"


class RepeatReader(nn.Module):
    """A stack of gated blocks (GTrXL) that reads symbols and predicts the symbol LAG positions earlier.

    b_g: initial bias of the gates; a larger bias brings a block nearer to the identity.
    depth: number of blocks.
    """

    def __init__(self, b_g: float, depth: int):
        super().__init__()
        self.begin, self.end = nn.Linear(SYMBOLS, WIDTH), nn.Linear(WIDTH, SYMBOLS)
        self.body = gtrxl(d=WIDTH, depth=depth, heads=2, segment=LENGTH, memory=0, b_g=b_g).body

    def forward(self, symbols: Int[Tensor, "B T"]) -> Float[Tensor, "B _ N"]:
        return self.end(self.body(self.begin(F.one_hot(symbols, SYMBOLS).float())).y)[:, LAG:]


class RepeatLearning(NamedTuple):
    """Progress of one training of a `RepeatReader`, which learns to repeat earlier symbols.

    right: share of correct predictions in each batch, before the model learns from it. The training ends at the first
        batch with 0.9.
    """

    right: list[float]

    @property
    def steps(self) -> int:
        """Number of batches until the training ended."""
        return len(self.right)


def train_reader(b_g: float, seed: int, steps: int, depth: int = DEPTH) -> RepeatLearning:
    """Train a stack of gated blocks to repeat earlier symbols, until 0.9 of a batch is correct.

    The rows depend on the seed but not on b_g.

    b_g: initial bias of the gates.
    seed: seed of the weights and of the rows.
    steps: largest number of batches.
    depth: number of blocks.
    """
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
    """Count the training steps that GTrXL stacks with different initial gate biases b_g need.

    The task is to repeat the symbol some positions earlier. A training ends when 0.9 of a batch is correct; a training
    that never reaches 0.9 counts with all its steps. The claim holds if half-open gates (b_g = 0) need more steps than
    b_g = 1 and more steps than b_g = 2. Each ratio of steps must be above 1. A shallow stack of 2 blocks is reported
    for comparison.

    seeds: seeds of the trainings.
    steps: largest number of training steps.
    """
    runs = {b_g: [train_reader(b_g, seed, steps) for seed in seeds] for b_g in STARTS}
    closed = [run.steps for run in runs[STARTS[0]]]
    measures = tuple(
        Measure(
            f"steps with b_g = 0 divided by steps with b_g = {b_g:g}",
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
        f"repeat a symbol {LAG} positions later, {DEPTH} blocks",
        "steps",
        "share of correct answers",
        lines,
        levels=((1 / SYMBOLS, "guessing"),),
        ylim=(0, 1),
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))


def _format_steps(run: RepeatLearning) -> str:
    return f"{run.steps}" if run.right[-1] >= ENOUGH else f"{run.steps}, not learned"
