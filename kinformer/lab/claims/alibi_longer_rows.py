"""ALiBi keeps its perplexity on rows longer than the training rows, and sinusoidal positions do not."""

import math
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from kinformer.core.model import Model
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.text import TextData
from kinformer.lab.data.text import read as read_text
from kinformer.lab.plot import Plot, seed_curves, seed_mean
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.fit import fit
from kinformer.members.bloom import bloom
from kinformer.members.gpt import gpt

SIZES: dict[str, Any] = {"d": 64, "depth": 2, "heads": 4}
LENGTH, TESTED = 64, (128, 256, 512)  # bytes of training rows and of longer test rows
STEPS, ROWS, RATE = 400, 16, 3e-3
JUDGED = 8192  # validation bytes
STEADY, DOUBLED = 1.05, 2.0  # perplexities relative to rows of the training length
MODELS: dict[str, Callable[[], Model]] = {
    "ALiBi": lambda: bloom(**SIZES),
    "sinusoidal": lambda: gpt(**SIZES, position="sinusoidal"),
}
SAYS = "a model with ALiBi keeps its perplexity on rows up to eight times as long as its training rows"
SOURCE = "Press et al., 2021, arXiv:2108.12409, abstract and section 2 (trained on 1,024 tokens, tested on 2,048)"


def perplexities(name: str, seed: int, steps: int, text: TextData) -> list[float]:
    """Train a model on short rows, and return its perplexities per byte on short and on longer rows.

    They are measured on validation rows that overlap by half. Only the second half of a row is scored, except in the
    first row.

    name: key of `MODELS`.
    seed: seed of the weights and of the training.
    steps: number of training steps.
    text: text to learn from.
    """
    with seeded(seed):
        model = MODELS[name]()
        fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=RATE, seed=seed, valid_bytes=1024)
    return [2 ** evaluate(model, text.part("valid"), length, JUDGED).value for length in (LENGTH, *TESTED)]


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Train byte models on rows of 64 bytes, and compare perplexities on rows of 64 to 512 bytes.

    `bloom` has ALiBi and no other positions, and it also normalises its embeddings. `gpt` has sinusoidal positions;
    widths, rows and steps are equal. The perplexity is 2 to the power of the validation bits per byte. The claim holds
    if two conditions are met. With ALiBi the largest perplexity on 128, 256 and 512 bytes is at most 1.05 times the
    perplexity on 64 bytes. With sinusoidal positions the perplexity on 512 bytes is at least twice the perplexity on 64
    bytes.

    In the paper a model of 1.3 billion parameters with ALiBi is trained on rows of 1,024 tokens. On rows of 2,048 it
    has the perplexity of a model with sinusoidal positions that is trained on 2,048.

    seeds: seeds of the trainings.
    steps: number of training steps.
    """
    text = read_text("stdlib")
    by_name = {name: [perplexities(name, seed, steps, text) for seed in seeds] for name in MODELS}
    worst = [max(rest) / short for short, *rest in by_name["ALiBi"]]
    longest = [run[-1] / run[0] for run in by_name["sinusoidal"]]
    measures = (
        Measure(
            f"largest perplexity on longer rows, divided by that on {LENGTH} bytes, ALiBi",
            worst,
            "most",
            STEADY,
            no_effect=DOUBLED,
        ),
        Measure(
            f"perplexity on {TESTED[-1]} bytes, divided by that on {LENGTH} bytes, sinusoidal",
            longest,
            "least",
            DOUBLED,
            no_effect=1.0,
        ),
    )
    lengths = (LENGTH, *TESTED)
    facts = {
        f"perplexity per byte on rows of {', '.join(map(str, lengths))} bytes, {name}": ", ".join(
            f"{perplexity:.2f}" for perplexity in seed_mean(runs)
        )
        for name, runs in by_name.items()
    }
    facts["bits per byte on rows of the training length"] = ", ".join(
        f"{mean(math.log2(run[0]) for run in runs):.3f} with {name} positions" for name, runs in by_name.items()
    )
    facts["steps of training"] = f"{steps} of {ROWS} rows of {LENGTH} bytes"
    return Claim(SAYS, SOURCE, measures, facts, (_plot(by_name, lengths),))


def _plot(by_name: dict[str, list[list[float]]], lengths: Sequence[int]) -> Plot:
    return Plot(
        f"trained on rows of {LENGTH} bytes",
        "bytes of a test row",
        "validation perplexity per byte",
        seed_curves(lengths, by_name),
        log="x",
        ticks=lengths,
        ylim=(0, None),
    )
