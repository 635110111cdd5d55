"""Luna's multiplications are linear in the row length, and more packed vectors keep more of a set."""

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.layer import Layer
from kinformer.core.patterns.full import Full
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.cost.operator_counts import Tally
from kinformer.lab.plot import Plot, PlotLine, growth_lines, slope
from kinformer.members.luna import luna
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV

KINDS, SIZE, ROWS, WIDTH = 8, 32, 32, 32  # kinds of elements, elements per set, sets per batch, model width
PACKS, STEPS, LENGTHS = (1, 4, 16), 300, (512, 1024, 2048, 4096)
MINUTES = 0.5  # of a default run with three seeds
SAYS = "Luna's multiplications grow in proportion to the row, and its accuracy on sets grows with the number of packs"
SOURCE = "Ma et al., 2021, arXiv:2106.01540, abstract and section 4 (accuracy by the length of P)"


class KindSets(NamedTuple):
    """Sets of elements, each with a kind and a number, and the answer to predict for each element.

    x: vector of each element: its kind as one-hot numbers, then its number.
    above: the answer: True if the elements of the same kind in the set have a mean number above 0.
    """

    x: Float[Tensor, "B T N"]
    above: Bool[Tensor, "B T"]


def sets(rows: int, generator: torch.Generator) -> KindSets:
    """Return random sets of elements with a kind and a number, with their answers.

    The number of an element is the sum of a random value for its kind in this set and of noise with equal variance.

    rows: number of sets.
    generator: source of randomness.
    """
    kind = torch.randint(KINDS, (rows, SIZE), generator=generator)
    number = torch.randn(rows, KINDS, generator=generator).gather(1, kind) + torch.randn(
        rows, SIZE, generator=generator
    )
    one_hot = F.one_hot(kind, KINDS).float()
    total = (one_hot * number[..., None]).sum(1).gather(1, kind)
    return KindSets(torch.cat([3 * one_hot, number[..., None]], -1), total > 0)


def layer(packs: int) -> Layer:
    """Return a Luna layer with one head and without positions, because a set has no order.

    packs: number of vectors into which Luna packs a row.
    """
    return luna(d=WIDTH, depth=1, heads=1, packs=packs, length=SIZE).body


def accuracy(packs: int, seed: int, steps: int) -> float:
    """Train a Luna layer briefly on sets and return its accuracy on new sets.

    packs: number of vectors into which Luna packs a set.
    seed: seed of the weights and of the sets.
    steps: number of training steps.
    """
    generator = torch.Generator().manual_seed(seed)
    with seeded(seed):
        body = layer(packs)
        begin, end = nn.Linear(KINDS + 1, WIDTH), nn.Linear(WIDTH, 1)
    optimiser = torch.optim.Adam([*begin.parameters(), *body.parameters(), *end.parameters()], 5e-3)
    for _ in range(steps):
        x, above = sets(ROWS, generator)
        loss = F.binary_cross_entropy_with_logits(end(body(begin(x)).y)[..., 0], above.float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        x, above = sets(16 * ROWS, torch.Generator().manual_seed(10_000 + seed))
        return float(((end(body(begin(x)).y)[..., 0] > 0) == above).float().mean())


@torch.no_grad()
def products(layer: Layer, length: int) -> int:
    """Count the additions and multiplications of a forward pass over a row.

    Attention is computed by the executor (way to compute attention) that computes all scores.

    layer: layer to count.
    length: tokens in the row.
    """
    for part in layer.modules():
        if isinstance(part, Softmax):
            part.impl = "reference"
    x = torch.randn(1, length, layer.d)
    with Tally() as tally:
        layer(x)
    return tally.flops


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS, steps: int = STEPS) -> Claim:
    """Count Luna's multiplications by row length, and measure its accuracy by packed vectors.

    Luna packs a row or set into a few vectors, which all tokens attend to. The count does not depend on chance; the
    accuracy is measured for each seed. The claim holds if multiplications grow with an exponent of 1 in the row length,
    within 0.02, and if the accuracy rises by at least 0.02 from 1 to 4 packed vectors and from 4 to 16.

    seeds: seeds of the trainings.
    lengths: tokens per row for the count.
    steps: number of training steps.
    """
    packed = layer(PACKS[-1])
    dense = Attention(QKV(WIDTH, 1), Softmax(Full(), lse=False))
    count = {"Luna": [products(packed, n) for n in lengths], "dense attention": [products(dense, n) for n in lengths]}
    shares = {packs: [accuracy(packs, seed, steps) for seed in seeds] for packs in PACKS}
    gains = [
        Measure(
            f"accuracy gained from {few} to {many} packs",
            [b - a for a, b in zip(shares[few], shares[many], strict=True)],
            "least",
            0.02,
            no_effect=0.0,
        )
        for few, many in zip(PACKS, PACKS[1:], strict=False)
    ]
    linear = Measure(
        "growth exponent of multiplications in the length", (slope(lengths, count["Luna"]),), "near", 1.0, within=0.02
    )
    facts = {f"accuracy with {packs} packs": f"{mean(of):.3f}" for packs, of in shares.items()}
    facts["growth exponent of multiplications of dense attention"] = f"{slope(lengths, count['dense attention']):.3f}"
    cost = Plot(
        "multiplications of a layer",
        "tokens per row",
        "additions and multiplications",
        growth_lines(count, lengths),
        log="xy",
        ticks=lengths,
    )
    seeds_lines = [PlotLine(PACKS, run, "", "o", "tab:blue", 0.4) for run in zip(*shares.values(), strict=True)]
    lines = [*seeds_lines, PlotLine(PACKS, [mean(of) for of in shares.values()], colour="tab:blue")]
    by_packs = Plot(
        f"sets of {SIZE} elements of {KINDS} kinds", "packs", "accuracy", lines, log="x", ticks=PACKS, ylim=(0.5, 1.0)
    )
    return Claim(SAYS, SOURCE, (linear, *gains), facts, (cost, by_packs))
