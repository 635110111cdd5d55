"""Disagreement makes heads less alike, and guided heads come near their patterns."""

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
MINUTES = 1  # of a default run with three seeds
SIZES: dict[str, Any] = {"d": 64, "depth": 2, "heads": HEADS, "length": LENGTH}
UNFELT = 1e-9  # loss weight too small to affect training; the penalty is still reported
SAYS = "a disagreement loss on the outputs of heads makes them less alike, and guided heads come near their patterns"
SOURCE = "Li et al., 2018, arXiv:1810.10183, section 4.3; Deshpande and Narasimhan, 2020, arXiv:2010.02399, section 4"
Make = Callable[[float], Model]


def build_disagreeing_decoder(weight: float) -> Model:
    """Build a decoder with a disagreement loss, which makes the outputs of its heads less alike.

    weight: factor of the disagreement loss.
    """
    return disagreement(**SIZES, output=weight)


def build_guided_encoder(weight: float) -> Model:
    """Build an encoder with a loss that guides two heads per layer to the next and the previous token.

    weight: factor of the guidance loss.
    """
    return guided_attention(**SIZES, guides=("next", "previous"), alpha=weight, hold=1.0)


def penalty(make: Make, weight: float, key: str, seed: int, steps: int, text: TextData) -> float:
    """Train a model with a penalty (a further loss on its heads) and return the penalty, mean over layers.

    The penalty is measured on validation rows in train mode, because models report it only in this mode.

    make: function that builds the model from the weight.
    weight: factor of the penalty in the training.
    key: name of the penalty.
    seed: seed of the weights and of the training.
    steps: number of training steps.
    text: text to learn from.
    """
    with seeded(seed):
        model = make(weight)
        fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=RATE, seed=seed, valid_bytes=1024)
        rows = text.valid[: 16 * LENGTH].long().view(16, LENGTH)
        with torch.no_grad():
            return float(model.train()(rows).parts[key]) / SIZES["depth"]


def cosine(mean_of_all: float) -> float:
    """Return the mean cosine between the outputs of two different heads.

    mean_of_all: mean cosine over all pairs of heads, including each head with itself.
    """
    return (HEADS * mean_of_all - 1) / (HEADS - 1)


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Train models with a further loss on their heads, and compare heads with and without its effect.

    Both losses have a factor of 1, or a factor too small to have an effect. The guided arm differs from its paper,
    which gives the mean a factor of 100, constant for 20,000 steps and then falling to 0; here it is 1 in all steps.
    One loss makes the outputs of heads disagree, the other guides heads to fixed attention patterns. The claim holds if
    two conditions are met. The disagreement loss reduces the mean cosine between the outputs of two heads. The squared
    distance of guided heads from their patterns is at most half of the distance without guidance.

    seeds: seeds of the trainings.
    steps: number of training steps.
    """
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
        Measure("decrease of the mean cosine of two heads' outputs", fall, "least", 0),
        Measure(
            "squared distance of guided heads from their patterns, divided by the distance without guidance",
            share,
            "most",
            0.5,
            no_effect=1,
        ),
    )
    numbers = {
        "mean cosine of two heads' outputs": f"{mean(alike[UNFELT]):.3f}, with the loss {mean(alike[1.0]):.3f}",
        "squared distance from a pattern": f"{mean(away[UNFELT]):.3f}, with the loss {mean(away[1.0]):.3f}",
        "steps of training": f"{steps} of {ROWS} rows of {LENGTH} bytes",
    }
    plots = [
        by_category(
            title, unit, dict(zip(("without the loss", "with it"), by_weight.values(), strict=True)), levels=((0, ""),)
        )
        for title, unit, by_weight in (
            ("similarity of heads", "mean cosine of outputs", alike),
            ("distance of guided heads", "squared distance from the pattern", away),
        )
    ]
    return Claim(SAYS, SOURCE, measures, numbers, plots)
