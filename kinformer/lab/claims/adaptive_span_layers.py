"""Learned attention spans are shorter in the first layer, and trimmed spans save flops at equal loss."""

from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

import torch

from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.cost.operator_counts import products_of
from kinformer.lab.data.text import TextData
from kinformer.lab.data.text import read as read_text
from kinformer.lab.plot import Plot, PlotLine, by_category
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.fit import fit
from kinformer.members.adaptive_span import adaptive_span
from kinformer.models.lm import LM
from kinformer.nn.biases.adaptive_span import AdaptiveSpan

LONGEST = 256
SIZES: dict[str, Any] = {"d": 48, "depth": 3, "heads": 4, "segment": 64, "longest": LONGEST}
STEPS, MINUTES, ROWS, LENGTH, RATE = 150, 1, 8, 64, 4e-3
JUDGED = 8192  # bytes of test text
EQUAL = 0.03  # additional bits per byte that count as an equal loss: about 1% of the loss
LEARNED, FIXED = "learned spans", "fixed span"
SPANS = {LEARNED: "static", FIXED: "x < 100000"}  # the second mask leaves every key up to `longest` as it is
SAYS = "learned spans are shorter in the first layer than in the last, and save flops at the loss of a fixed span"
SOURCE = "Sukhbaatar et al., 2019, arXiv:1905.07799, section 3 and its figures of spans by layer and of flops"
PAPER_SIZES = (
    "enwik8 and text8, 12 and 24 layers, spans of up to 8,192: a mean span of 314 at 12 layers; the first 5 layers "
    "keep very short spans; 1.02 bits per character with 38 million weights on enwik8"
)


class SpanResult(NamedTuple):
    """Result of one trained model.

    spans: learned spans of each head of each layer, in positions; empty for a fixed span.
    bits: bits per byte on test text.
    flops: flops of matrix products, per token, after a long text.
    """

    spans: list[list[float]]
    bits: float
    flops: float


def flops_per_token(model: LM) -> float:
    """Return the flops of matrix products per token for a segment that follows `LONGEST` tokens.

    model: the model.
    """
    model.eval()
    tokens = torch.zeros(1, LONGEST + LENGTH, dtype=torch.long)
    with torch.no_grad():
        state = model.logits(tokens[:, :LONGEST], model.start(1, LONGEST + LENGTH)).state
    return products_of(lambda: model.logits(tokens[:, LONGEST:], state)) / LENGTH


def train_and_test(name: str, seed: int, steps: int, text: TextData) -> SpanResult:
    """Train a model with learned spans or a fixed span, and measure it.

    name: key of `SPANS`.
    seed: seed of the weights and of the training.
    steps: number of training steps.
    text: text to learn from.
    """
    with seeded(seed):
        model = adaptive_span(**SIZES, spans=SPANS[name])
        fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=RATE, seed=seed, measures=1, valid_bytes=1024)
    spans = [(LONGEST * part.span.detach()).tolist() for part in model.modules() if isinstance(part, AdaptiveSpan)]
    return SpanResult(
        spans, evaluate(model, text.part("test"), LENGTH, JUDGED, probe=False).value, flops_per_token(model)
    )


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Train models with learned attention spans and with a fixed span, and compare spans, loss and flops.

    Both read up to 256 earlier bytes of Python source in three layers. Learned spans start at 0 with a soft edge of 32
    positions, and have the member's penalty. The claim holds if three conditions are met. The mean span of the heads
    is larger in the last layer than in the first. The model with learned spans needs fewer flops per token than the
    model with a fixed span. It needs at most 0.03 bits per byte of test text more.

    Only flops of matrix products count. A layer reads the keys within its longest span, rounded up to a multiple of 64.

    seeds: seeds of the weights and of the trainings.
    steps: number of training steps.
    """
    text = read_text("stdlib")
    runs = {name: [train_and_test(name, seed, steps, text) for seed in seeds] for name in SPANS}
    learned, fixed = runs.values()
    layers = [[mean(heads) for heads in run.spans] for run in learned]
    measures = (
        Measure("mean span of the last layer minus the first", [x[-1] - x[0] for x in layers], "least", 0),
        Measure(
            "flops per token, learned spans divided by a fixed span",
            [run.flops / fixed_run.flops for run, fixed_run in zip(learned, fixed, strict=True)],
            "most",
            1,
        ),
        Measure(
            "bits per byte of test, learned spans minus a fixed span",
            [run.bits - fixed_run.bits for run, fixed_run in zip(learned, fixed, strict=True)],
            "most",
            EQUAL,
        ),
    )
    facts = {
        f"bits per byte of test, {name}": f"{mean(run.bits for run in results):.3f}" for name, results in runs.items()
    }
    facts |= {
        f"flops per token, {name}": f"{mean(run.flops for run in results):,.0f}" for name, results in runs.items()
    }
    facts["mean span by layer, from the first"] = ", ".join(f"{mean(x):.1f}" for x in zip(*layers, strict=True))
    facts["steps of training"] = f"{steps} of {ROWS} rows of {LENGTH} bytes"
    facts["the paper's scale"] = PAPER_SIZES
    places = range(1, len(layers[0]) + 1)
    lines = [
        PlotLine([place] * len(heads), heads, "", "o", "tab:blue", 0.4)
        for run in learned
        for place, heads in zip(places, run.spans, strict=True)
    ]
    middle = [mean(x) for x in zip(*layers, strict=True)]
    plots = (
        Plot(
            f"spans of heads after {steps} steps",
            "layer",
            "span in positions",
            [*lines, PlotLine(places, middle, "mean", "-", "k")],
            ticks=list(places),
        ),
        by_category(
            "cost",
            "flops per token",
            {name: [run.flops for run in results] for name, results in runs.items()},
            bars=True,
        ),
        by_category(
            "loss", "bits per byte of test", {name: [run.bits for run in results] for name, results in runs.items()}
        ),
    )
    return Claim(SAYS, SOURCE, measures, facts, plots)
