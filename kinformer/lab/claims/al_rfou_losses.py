"""Al-Rfou: a deep character model learns with auxiliary losses what it does not learn from its last position alone."""

from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any

import torch

from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.text import TextData
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.fit import fit
from kinformer.members.al_rfou import al_rfou

SIZES: dict[str, Any] = {"d": 64, "depth": 12, "heads": 4}
LENGTH, ROWS, STEPS, RATE, TEXT = 64, 8, 120, 1e-3, "text=stdlib"
JUDGED = 1024  # bytes, of which those are scored that have a whole window before them
SAYS = "twelve layers end with a lower loss with auxiliary losses (positions, layers, further targets) than without"
SOURCE = "Al-Rfou et al., 2018, arXiv:1808.04444, abstract and its ablation of the auxiliary losses"
WITHOUT: dict[str, dict[str, Any]] = {
    "all": {},
    "no further targets": {"targets": 1},
    "no lower layers": {"every_layer": False},
    "last position alone": {"every_position": False},
    "none": {"every_position": False, "every_layer": False, "targets": 1},
}
DECIDE = ("all", "none")


def bits(without: str, seed: int, steps: int, text: TextData) -> float:
    """Bits per byte at the last position of windows of valid, after a training with these losses."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = al_rfou(**SIZES, length=LENGTH, **WITHOUT[without])
        fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=RATE, seed=seed, valid_bytes=JUDGED)
    return evaluate(model, text.part("valid"), LENGTH, JUDGED, stride=1, full=True).value


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """The paper's metric after equal steps; with all losses and with none by seeds, the others once."""
    text = read_spec(TEXT)
    assert isinstance(text, TextData)
    found = {
        name: [bits(name, seed, steps, text) for seed in (seeds if name in DECIDE else seeds[:1])] for name in WITHOUT
    }
    less = [none - every for every, none in zip(found["all"], found["none"], strict=True)]
    told = {f"bits per byte at the last position, {name}": f"{mean(of):.3f}" for name, of in found.items()}
    told["steps of training"] = f"{steps} of {ROWS} rows of {LENGTH} bytes"
    measure = Measure("bits per byte that they save", less, "least", 0)
    return Claim(SAYS, SOURCE, (measure,), told, {f"12 layers, {steps} steps, losses": partial(_draw, found)})


def _draw(found: dict[str, list[float]], axes: Any) -> None:
    for n, of in enumerate(found.values()):
        axes.plot(of, [n] * len(of), "o", color="tab:blue")
    axes.set(xlabel="bits per byte at the last position", yticks=range(len(found)))
    axes.set_yticklabels(found)
    axes.invert_yaxis()
