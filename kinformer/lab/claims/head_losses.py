"""Losses on heads: disagreement makes what heads read less alike, and guided heads look where they are told to."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean
from typing import Any

import torch

from kinformer.core.model import Model
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.text import TextData
from kinformer.lab.train.fit import fit
from kinformer.members.disagreement import disagreement
from kinformer.members.guided_attention import guided_attention
from kinformer.nn.losses.disagreement import OutputDisagreement
from kinformer.nn.losses.guided_attention import GuidedAttention

HEADS, LENGTH, ROWS, STEPS, RATE, TEXT = 4, 64, 8, 100, 2e-3, "text=stdlib"
SIZES: dict[str, Any] = {"d": 64, "depth": 2, "heads": HEADS, "length": LENGTH}
UNFELT = 1e-9  # a weight with which a loss is told and teaches nothing
SAYS = "a loss on what heads read makes them less alike, and guided heads come near their patterns"
SOURCE = "Li et al., 2018, arXiv:1810.10183, section 4.3; Deshpande and Narasimhan, 2020, arXiv:2010.02399, section 4"
Make = Callable[[float], Model]


def apart(weight: float) -> Model:
    """A decoder whose heads are kept apart by what they read."""
    return disagreement(**SIZES, output=weight)


def guided(weight: float) -> Model:
    """An encoder in whose layers one head is guided to the next token, and one to the one before."""
    return guided_attention(**SIZES, guides=("next", "previous"), alpha=weight, hold=1.0)


def told(make: Make, weight: float, key: str, seed: int, steps: int, text: TextData) -> float:
    """What the penalty tells, which it does in train mode, of rows of valid after a training; the mean over layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
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
    text = read_spec(TEXT)
    assert isinstance(text, TextData)
    alike = {
        weight: [cosine(told(apart, weight, OutputDisagreement.key, seed, steps, text)) for seed in seeds]
        for weight in (UNFELT, 1.0)
    }
    away = {
        weight: [told(guided, weight, GuidedAttention.key, seed, steps, text) / 2 for seed in seeds]
        for weight in (UNFELT, 1.0)
    }
    fall, share = (
        [one - other for one, other in zip(alike[UNFELT], alike[1.0], strict=True)],
        [other / one for one, other in zip(away[UNFELT], away[1.0], strict=True)],
    )
    measures = (
        Measure("how far the cosine of two heads' outputs falls", fall, "least", 0),
        Measure("squared distance of guided heads from their patterns, over unguided", share, "most", 0.5, nothing=1),
    )
    numbers = {
        "cosine of two heads' outputs": f"{mean(alike[UNFELT]):.3f}, with the loss {mean(alike[1.0]):.3f}",
        "squared distance from a pattern": f"{mean(away[UNFELT]):.3f}, with the loss {mean(away[1.0]):.3f}",
        "steps of training": f"{steps} of {ROWS} rows of {LENGTH} bytes",
    }
    drawn = {
        "how alike heads are": partial(_draw, alike, "cosine"),
        "how far guided heads are off": partial(_draw, away, "squared distance"),
    }
    return Claim(SAYS, SOURCE, measures, numbers, dict(drawn))


def _draw(found: dict[float, list[float]], what: str, axes: Any) -> None:
    for n, of in enumerate(found.values()):
        axes.plot([n] * len(of), of, "o", color="tab:blue")
    axes.axhline(0, color="tab:gray", linewidth=0.7)
    axes.set(ylabel=what, xticks=(0, 1), xlim=(-0.5, 1.5))
    axes.set_xticklabels(("without the loss", "with it"))
