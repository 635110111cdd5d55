"""Compressed memories recall what the memories have dropped, within the range (n_m + c n_cm) N."""

from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.batches import Batches
from kinformer.lab.plot import Plot, seed_curves
from kinformer.lab.train.fit import fit
from kinformer.members.compressive_transformer import compressive_transformer
from kinformer.models.lm import LM

NAMES, VALUES = 4, 4
DEFINITIONS = NAMES * VALUES  # tokens below define a name; then come the names, the values and a dot
DOT, VOCAB = DEFINITIONS + NAMES + VALUES, DEFINITIONS + NAMES + VALUES + 1
SEGMENT, MEMORY, COMPRESSED, RATE, DEPTH = 8, 8, 16, 2, 2
SIZES: dict[str, Any] = {
    "d": 32,
    "depth": DEPTH,
    "heads": 4,
    "segment": SEGMENT,
    "memory": MEMORY,
    "rate": RATE,
    "compression": "conv",
    "vocab": VOCAB,
}
NEAR, RANGE = MEMORY * DEPTH, (MEMORY + RATE * COMPRESSED) * DEPTH
LEARNED, GAP = 0, 24  # dots between definitions and questions, in training and in the measured rows
STEPS, MINUTES, ROWS, RATE_OF_LEARNING, TESTED = 250, 1, 32, 2e-3, 256
CHANCE, CLOSE = 1 / VALUES, 0.05
ROUNDING = 1e-12  # of float64 logits near 1
COUNTS = {"with compression": COMPRESSED, "without compression": 0}
SAYS = "compressed memories recall beyond n_m N tokens, and their range is (n_m + c n_cm) N"
SOURCE = "Rae et al., 2019, arXiv:1911.05507, sections 3.3 (range) and 5.1 (PG-19)"
PAPER_SIZES = (
    "PG-19, 36 layers, a memory of 512 and 512 compressed memories: perplexity 33.6 against 36.3 of a Transformer-XL"
)


class Questions(NamedTuple):
    """Rows that define names, and later ask for the value of each name.

    tokens: the rows: for each name a definition and a dot, then more dots, then each name with its value.
    asked: True at the values that must be predicted.
    """

    tokens: Int[Tensor, "B T"]
    asked: Bool[Tensor, "B T"]


def questions(rows: int, gap: int, seed: int) -> Questions:
    """Return random rows; a definition is `gap` + 2 tokens or more before the name that asks for it.

    rows: number of rows.
    gap: number of dots between the definitions and the first question.
    seed: seed of the rows.
    """
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(VALUES, (rows, NAMES), generator=generator)
    defined, asked = (torch.rand(rows, NAMES, generator=generator).argsort(1) for _ in range(2))
    definitions = torch.full((rows, NAMES, RATE), DOT)
    definitions[..., 0] = defined * VALUES + values.gather(1, defined)
    answers = torch.stack([DEFINITIONS + asked, DEFINITIONS + NAMES + values.gather(1, asked)], 2)
    tokens = torch.cat([definitions.flatten(1), torch.full((rows, gap), DOT), answers.flatten(1)], 1)
    marks = torch.zeros_like(tokens, dtype=torch.bool)
    marks[:, 1 - 2 * NAMES :: 2] = True
    return Questions(tokens, marks)


def train_model(compressed: int, seed: int, steps: int) -> LM:
    """Train a model on rows in which questions follow the definitions at once.

    With dots between them, models of this size learn nothing within 300 steps.

    compressed: number of compressed memories per layer.
    seed: seed of the weights and of the rows.
    steps: number of training steps.
    """
    with seeded(seed):
        model = compressive_transformer(**SIZES, compressed=compressed)
        data = Batches(
            lambda step: TokenBatch(*questions(ROWS, LEARNED, 10_000 * (seed + 1) + step)),
            [TokenBatch(*questions(ROWS, LEARNED, 9_998))],
        )
        fit(model, data, steps=steps, lr=RATE_OF_LEARNING, seed=seed, measures=1, warmup=0.1)
    return model.eval()


@torch.no_grad()
def recall(model: LM, gap: int) -> float:
    """Return the share of correct values in new rows.

    model: trained model.
    gap: number of dots between the definitions and the first question.
    """
    tokens, asked = questions(TESTED, gap, 9_999)
    right = model.logits(tokens[:, :-1]).y.argmax(-1) == tokens[:, 1:]
    return float(right[asked[:, 1:]].double().mean())


@torch.no_grad()
def measure_range(model: LM, length: int, seed: int) -> int:
    """Return the distance from a segment's first place back to the earliest token that changes it.

    Each token in turn is replaced by another one, in float64. A gradient would stop at the memories.

    model: the model, which is converted to float64 and back.
    length: number of tokens before the query; a multiple of the segment.
    seed: seed of the tokens.
    """
    row = torch.randint(VOCAB, (length + 1,), generator=torch.Generator().manual_seed(seed))
    rows = row.repeat(length + 1, 1)
    place = torch.arange(length)
    rows[place, place] = (row[place] + 1) % VOCAB  # the last row is unchanged
    last = model.double().logits(rows, last=True).y[:, -1]
    model.float()
    changed = ((last[:-1] - last[-1]).abs() > ROUNDING).any(-1)
    return length - int(changed.to(torch.uint8).argmax())


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Train models with and without compressed memories to recall values, and measure their range.

    Two layers have a memory of n_m = 8 and, with compression, n_cm = 16 compressed memories of c = 2 states each. Rows
    define four names, and ask for their values 26 to 38 tokens later. This is beyond the memories, n_m N = 16 tokens
    before the segment, and within (n_m + c n_cm) N = 80. In training the questions follow at once. Guessing gives 1/4.
    The claim holds if three conditions are met. The share of correct values with compression is above 1/4. Without
    compression it is 1/4, within 0.05. The earliest token that changes the logits at the first place of a segment is
    exactly 80 tokens before it.

    The trained models recall up to the range of one layer, about n_m + c n_cm = 40 tokens. Tokens between 40 and 80
    change the logits, but no answer: nothing in this task rewards a layer for passing them on.

    The paper has no such test. It measures perplexity on books, with 36 layers.

    seeds: seeds of the weights and of the rows.
    steps: number of training steps.
    """
    gaps = (LEARNED, 8, 16, GAP, *range(GAP + 8, RANGE, 16))
    curves: dict[str, list[list[float]]] = {name: [] for name in COUNTS}
    measured: dict[str, list[int]] = {name: [] for name in COUNTS}
    for seed in seeds:
        for name, compressed in COUNTS.items():
            model = train_model(compressed, seed, steps)
            curves[name].append([recall(model, gap) for gap in gaps])
            measured[name].append(measure_range(model, RANGE + 2 * SEGMENT, seed))
    gap_place = gaps.index(GAP)
    with_it, without = ([curve[gap_place] for curve in by_seed] for by_seed in curves.values())
    measures = (
        Measure("share of correct values with compression", with_it, "least", CHANCE),
        Measure("share of correct values without compression", without, "near", CHANCE, within=CLOSE),
        Measure("range in tokens with compression", measured["with compression"], "near", RANGE),
    )
    facts = {
        f"share of correct values, {name}, after {gap} dots": f"{mean(curve[gaps.index(gap)] for curve in by_seed):.3f}"
        for name, by_seed in curves.items()
        for gap in (LEARNED, GAP)
    }
    facts["guessing"] = f"{CHANCE:g}"
    facts["range in tokens without compression"] = f"{mean(measured['without compression']):g}, by the formula {NEAR}"
    facts["steps of training"] = f"{steps} of {ROWS} rows"
    facts["the paper's scale"] = PAPER_SIZES
    distances = [gap + 2 for gap in gaps]
    plot = Plot(
        "recall by distance; vertical lines: n_m N and (n_m + c n_cm) N",
        "least distance of a definition, in tokens",
        "share of correct values",
        seed_curves(distances, curves),
        levels=((CHANCE, "guessing"),),
        marks=(NEAR, RANGE),
        ylim=(0, 1.05),
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
