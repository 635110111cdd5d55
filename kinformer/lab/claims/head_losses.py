"""Losses on heads: disagreement makes what heads read less alike, and guided heads look where they are told to."""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import torch

from kinformer.core.model import Model
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.text import TextData
from kinformer.lab.data.text import read as read_text
from kinformer.lab.plot import by_category
from kinformer.lab.train.fit import fit
from kinformer.members.disagreement import disagreement
from kinformer.members.guided_attention import guided_attention
from kinformer.nn.losses.disagreement import OutputDisagreement
from kinformer.nn.losses.guided_attention import GuidedAttention

HEADS, LENGTH, ROWS, STEPS, RATE = 4, 64, 8, 100, 2e-3
SIZES: dict[str, Any] = {"d": 64, "depth": 2, "heads": HEADS, "length": LENGTH}
UNFELT = 1e-9  # a weight with which a loss is told and teaches nothing
SAYS = "a loss on what heads read makes them less alike, and guided heads come near their patterns"
SOURCE = "Li et al., 2018, arXiv:1810.10183, section 4.3; Deshpande and Narasimhan, 2020, arXiv:2010.02399, section 4"
Make = Callable[[float], Model]


def build_disagreeing_decoder(weight: float) -> Model:
    """A decoder whose heads are kept apart by what they read."""
    return disagreement(**SIZES, output=weight)


def build_guided_encoder(weight: float) -> Model:
    """An encoder in whose layers one head is guided to the next token, and one to the one before."""
    return guided_attention(**SIZES, guides=("next", "previous"), alpha=weight, hold=1.0)


def penalty(make: Make, weight: float, key: str, seed: int, steps: int, text: TextData) -> float:
    """What the penalty tells, which it does in train mode, of rows of valid after a training; the mean over layers."""
    with seeded(seed):
        model = make(weight)
        fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=RATE, seed=seed, valid_bytes=1024)
        rows = text.valid[: 16 * LENGTH].long().view(16, LENGTH)
        with torch.no_grad():
            return float(model.train()(rows).parts[key]) / SIZES["depth"]


def cosine(mean_of_all: float) -> float:
    """That of two different heads, from the mean over all pairs, a head with itself too."""
    return (HEADS * mean_of_all - 1) / (HEADS - 1)


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Both losses, each as its paper weighs it and unfelt."""
    text = read_text("stdlib")
    alike = {
        weight: [
            cosine(penalty(build_disagreeing_decoder, weight, OutputDisagreement.key, seed, steps, text))
            for seed in seeds
        ]
        for weight in (UNFELT, 1.0)
    }
    away = {
        weight: [penalty(build_guided_encoder, weight, GuidedAttention.key, seed, steps, text) / 2 for seed in seeds]
        for weight in (UNFELT, 1.0)
    }
    fall, share = (
        [plain - other for plain, other in zip(alike[UNFELT], alike[1.0], strict=True)],
        [other / plain for plain, other in zip(away[UNFELT], away[1.0], strict=True)],
    )
    measures = (
        Measure("how far the cosine of two heads' outputs falls", fall, "least", 0),
        Measure("squared distance of guided heads from their patterns, over unguided", share, "most", 0.5, no_effect=1),
    )
    numbers = {
        "cosine of two heads' outputs": f"{mean(alike[UNFELT]):.3f}, with the loss {mean(alike[1.0]):.3f}",
        "squared distance from a pattern": f"{mean(away[UNFELT]):.3f}, with the loss {mean(away[1.0]):.3f}",
        "steps of training": f"{steps} of {ROWS} rows of {LENGTH} bytes",
    }
    plots = [
        by_category(
            title, unit, dict(zip(("without the loss", "with it"), by_weight.values(), strict=True)), levels=((0, ""),)
        )
        for title, unit, by_weight in (
            ("how alike heads are", "cosine", alike),
            ("how far guided heads are off", "squared distance", away),
        )
    ]
    return Claim(SAYS, SOURCE, measures, numbers, plots)
