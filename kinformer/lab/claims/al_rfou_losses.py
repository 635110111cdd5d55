"""A deep character model (Al-Rfou) learns better with its auxiliary losses than without them."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.text import TextData
from kinformer.lab.data.text import read as read_text
from kinformer.lab.plot import by_category
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.fit import fit
from kinformer.members.al_rfou import al_rfou

SIZES: dict[str, Any] = {"d": 64, "depth": 12, "heads": 4}
LENGTH, ROWS, STEPS, RATE = 64, 8, 120, 1e-3
MINUTES = 2.5  # of a default run with three seeds
JUDGED = 1024  # bytes; only bytes with a full window before them are scored
SAYS = "twelve layers reach a lower loss with auxiliary losses (positions, layers, further targets) than without"
SOURCE = "Al-Rfou et al., 2018, arXiv:1808.04444, abstract and its ablation of the auxiliary losses"
WITHOUT: dict[str, dict[str, Any]] = {
    "all": {},
    "no further targets": {"targets": 1},
    "no lower layers": {"every_layer": False},
    "last position only": {"every_position": False},
    "none": {"every_position": False, "every_layer": False, "targets": 1},
}
DECIDE = ("all", "none")


def bits(without: str, seed: int, steps: int, text: TextData) -> float:
    """Train a deep character model with some of its losses, and return its validation bits per byte.

    The bits are measured at the last position of a window.

    without: key of `WITHOUT`: the auxiliary losses that are left out.
    seed: seed of the weights and of the training.
    steps: number of training steps.
    text: text to learn from.
    """
    with seeded(seed):
        model = al_rfou(**SIZES, length=LENGTH, **WITHOUT[without])
        fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=RATE, seed=seed, valid_bytes=JUDGED)
    return evaluate(model, text.part("valid"), LENGTH, JUDGED, stride=1, full=True).value


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Compare deep character models after equal trainings with and without the auxiliary losses.

    Measured here: the paper's metric, validation bits per byte at the last position of a window, for models of 12
    layers. The claim holds if models without auxiliary losses need more bits than models with all of them, by more than
    two standard errors. Models that lack only one loss are trained with one seed and do not affect the verdict.

    seeds: seeds of the trainings.
    steps: number of training steps.
    """
    text = read_text("stdlib")
    bits_by_name = {
        name: [bits(name, seed, steps, text) for seed in (seeds if name in DECIDE else seeds[:1])] for name in WITHOUT
    }
    less = [without - every for every, without in zip(bits_by_name["all"], bits_by_name["none"], strict=True)]
    facts = {f"bits per byte at the last position, {name}": f"{mean(of):.3f}" for name, of in bits_by_name.items()}
    facts["steps of training"] = f"{steps} of {ROWS} rows of {LENGTH} bytes"
    measure = Measure("bits per byte that all auxiliary losses together save", less, "least", 0)
    plot = by_category(
        f"auxiliary losses, 12 layers, {steps} steps",
        "bits per byte at the last position",
        bits_by_name,
        horizontal=True,
    )
    return Claim(SAYS, SOURCE, (measure,), facts, (plot,))
