"""Windows that grow from layer to layer suit a Longformer best; its memory is linear in the row."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.eval_mode import evaluating
from kinformer.lab.claims.support.byte_models import (
    TrainingSizes,
    describe_training,
    describe_values,
    last_bits,
    train_for_bits,
)
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.cost.saved_bytes import saved_bytes
from kinformer.lab.data.text import read as read_text
from kinformer.lab.plot import Plot, by_category, growth_lines, slope
from kinformer.members.longformer_lm import longformer_lm
from kinformer.models.lm import LM
from kinformer.nn.mechanisms.softmax import Softmax

GROWING, STEPS = (8, 16, 32, 64), 400
MINUTES = 5.2  # of a default run with three seeds
LENGTHS = (1024, 2048, 4096)
TRAINING = TrainingSizes(length=256, rows=1, rate=3e-3, valid=16384)
SIZES: dict[str, Any] = {"d": 64, "depth": len(GROWING), "heads": 4, "top": None}
GAPS = "increasing, two heads with gaps"
ARMS: dict[str, dict[str, Any]] = {
    "increasing": {"window": GROWING},
    "fixed": {"window": sum(GROWING) // len(GROWING)},
    "decreasing": {"window": GROWING[::-1]},
    GAPS: {"window": GROWING, "dilation": (1, 1, 2, 3), "dilated": 2},
}
EQUAL, LINEAR = 1e-5, 0.1  # largest difference of logits; distance of the exponent from 1
SAYS = "a Longformer needs fewest bits if its windows grow with the layers, and its memory is linear in the row"
SOURCE = "Beltagy et al., 2020, arXiv:2004.05150, table 4"
SCALE = (
    "12 layers of width 512 on text8, 150,000 steps; development bits 1.21 with windows from 32 to 512, 1.23 with 230 "
    "everywhere, 1.24 with 512 to 32, and 1.20 with gaps in two heads"
)


def build(arm: str) -> LM:
    """Build a `longformer_lm` with the windows of an arm.

    arm: key of `ARMS`.
    """
    return longformer_lm(**SIZES, **ARMS[arm])


@torch.no_grad()
def dense_error(model: LM, tokens: Int[Tensor, "B T"]) -> float:
    """Return the largest difference between logits of a model's windows and of dense attention.

    The model computes its windows in tiles. The reference executor computes all scores and masks them.

    model: decoder with softmax attention.
    tokens: rows to read.
    """
    logits = {}
    for impl in ("pieces", "reference"):
        for part in model.modules():
            if isinstance(part, Softmax):
                part.impl = impl
        with evaluating(model):
            logits[impl] = model.logits(tokens).y
    return float((logits["pieces"] - logits["reference"]).abs().max())


def memory_by_length(arm: str, seed: int, lengths: Sequence[int]) -> list[int]:
    """Return the bytes that a training step keeps for its backward pass, for each length of a row.

    arm: key of `ARMS`.
    seed: seed of the weights and of the tokens.
    lengths: bytes of a row.
    """
    with seeded(seed):
        model = build(arm)
        return [saved_bytes(model, torch.randint(model.vocab, (1, length))) for length in lengths]


def claim(seeds: Sequence[int], steps: int = STEPS, lengths: Sequence[int] = LENGTHS) -> Claim:
    """Train a Longformer with four choices of windows on text, and compare their validation bits.

    Windows grow from 8 to 64 bytes over four layers, have 30 bytes in all layers, or shrink from 64 to 8. A fourth
    model has growing windows, with gaps in two heads of the two upper layers. All models have equal weights at the
    start, equal rows and steps, equal numbers of weights, and windows of equal sum. The claim holds if five conditions
    are met. Growing windows need fewer bits than fixed ones, by more than two standard errors. So do fixed ones against
    shrinking ones, and gaps against none. Before training, the logits of windows and of dense attention with a mask
    differ by at most 1e-5, in float32. The memory of a training step grows with an exponent of 1 in the length, within
    0.1.

    Measured with three seeds, growing windows need 0.11 bits fewer than fixed ones after 400 steps. Fixed ones and
    shrinking ones differ by less than two standard errors, and so do gaps and no gaps.

    The paper trains 12 layers of width 512 on text8 for 150,000 steps. Its differences are 0.01 to 0.02 bits.

    seeds: seeds of the weights and of the trainings.
    steps: number of training steps.
    lengths: bytes of a row for the memory.
    """
    text = read_text("stdlib")
    curves = {arm: [train_for_bits(partial(build, arm), seed, steps, text, TRAINING) for seed in seeds] for arm in ARMS}
    bits = last_bits(curves)
    growing, fixed, shrinking, gaps = bits.values()
    pairs = (
        ("fixed minus increasing windows", fixed, growing),
        ("decreasing minus fixed windows", shrinking, fixed),
        ("increasing windows, without gaps minus with gaps", growing, gaps),
    )
    measures = [
        Measure(f"validation bits per byte, {name}", [a - b for a, b in zip(more, less, strict=True)], "least", 0)
        for name, more, less in pairs
    ]
    errors, memory = [], []
    for seed in seeds:
        with seeded(seed):
            model = build(GAPS)
            errors.append(dense_error(model, torch.randint(model.vocab, (1, lengths[0]))))
        memory.append(memory_by_length("increasing", seed, lengths))
    measures.append(
        Measure("largest difference of logits from dense attention", (max(errors),), "most", EQUAL, no_effect=1.0)
    )
    measures.append(
        Measure(
            "growth exponent of the memory of a training step, in the length",
            [slope(lengths, counts) for counts in memory],
            "near",
            1,
            within=LINEAR,
        )
    )
    facts = {f"validation bits per byte, {arm}": describe_values(values) for arm, values in bits.items()}
    facts |= {f"weights, {arm}": f"{sum(x.numel() for x in build(arm).parameters()):,}" for arm in ARMS}
    facts["memory of a step"] = ", ".join(
        f"{count / 2**20:.1f} MiB at {length:,} bytes" for length, count in zip(lengths, memory[0], strict=True)
    )
    facts["training"] = describe_training(steps, TRAINING)
    facts["bits of guessing"] = "8, all bytes equally likely"
    facts["the paper's scale"] = SCALE
    ends = by_category(f"windows of four layers, {steps} steps", "validation bits per byte", bits)
    growth = Plot(
        "memory of a training step",
        "bytes of a row",
        "MiB",
        growth_lines({"increasing windows": [count / 2**20 for count in memory[0]]}, lengths),
        ylim=(0, None),
        ticks=lengths,
    )
    return Claim(SAYS, SOURCE, tuple(measures), facts, (ends, growth))
