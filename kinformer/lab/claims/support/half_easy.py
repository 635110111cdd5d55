"""A small model with exits, taught a task of which half is easy, and what it writes at each of its thresholds."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kinformer.decoding.consistency import By, Text, losses, use_rule, write_texts
from kinformer.decoding.generate import generate
from kinformer.decoding.prompts import Prompts
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.data.spec import read_spec
from kinformer.lab.train.fit import fit
from kinformer.members.calm import calm
from kinformer.models.multi_exit import MultiExit
from kinformer.nn.exits.confidence import Confidence, Probe, Saturation, SoftmaxResponse
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.never_exit import NeverExit
from kinformer.nn.exits.threshold import Threshold

DEPTH, TASK = 8, "task=half_easy"


class Size(NamedTuple):
    """How wide the layers are, and how long and at which rate they are trained.

    At width 64 what is saved is hidden by the Python around small layers: what is promised of losses can be seen
    there, what is saved of time cannot.
    """

    width: int
    steps: int
    lr: float


SMALL, WIDE = Size(64, 700, 3e-3), Size(256, 400, 1e-3)


class TextLosses(NamedTuple):
    """What texts lose at a threshold, each of them; how many layers a token takes, and a token at each place."""

    textual: list[float]
    risk: list[float]
    layers: float
    places: list[float]


def train_calm(seed: int, size: Size) -> MultiExit:
    """Eight layers with a probe; softmax response and saturation need none of it."""
    with seeded(seed):
        model = calm(d=size.width, depth=DEPTH, heads=4, length=32, confidence="probe")
        if size.steps:
            fit(model, TASK, steps=size.steps, batch=32, lr=size.lr, seed=seed, measures=1)
    assert isinstance(model, MultiExit)
    return model.eval()


def prompts(model: MultiExit, split: str, count: int) -> Prompts:
    """Rows of the task up to their answers."""
    return read_spec(TASK).prompts(model, split, count, 0, 0)


def rules(model: MultiExit) -> dict[str, ConfidenceThreshold]:
    """The three confidences on one backbone; the classifier is the probe that was trained beside it."""
    rule = model.exits.rule
    assert isinstance(rule, ConfidenceThreshold) and isinstance(rule.confidence, Probe)
    each: dict[str, Confidence] = {
        "softmax response": SoftmaxResponse(),
        "saturation": Saturation(),
        "classifier": rule.confidence,
    }
    return {name: ConfidenceThreshold(confidence, 1.0) for name, confidence in each.items()}


def write_by_full_model(model: MultiExit, inputs: Prompts) -> list[Text]:
    """What the full model writes."""
    with use_rule(model.exits, NeverExit()):
        return write_texts(model, inputs).texts


def measure_losses(
    model: MultiExit, rule: ConfidenceThreshold, threshold: Threshold, inputs: Prompts, whole: Sequence[Text]
) -> TextLosses:
    """What is lost where tokens leave at a threshold."""
    rule.leave_at(threshold)
    with use_rule(model.exits, rule):
        early = write_texts(model, inputs)
    each: dict[By, list[float]] = {by: losses(by, inputs, early.texts, whole) for by in ("textual", "risk")}
    return TextLosses(each["textual"], each["risk"], early.layers, early.mean_layers_by_place)


def seconds(
    model: MultiExit, leaving: dict[str, ExitRule], inputs: Prompts, texts: int = 12, rounds: int = 5
) -> dict[str, float]:
    """Seconds to write texts one by one by each rule, turn by turn, the least of some rounds."""
    least = dict.fromkeys(leaving, float("inf"))
    for _ in range(rounds):
        for name, rule in leaving.items():
            with use_rule(model.exits, rule):
                began = time.perf_counter()
                for prompt in inputs.prompts[:texts]:
                    generate(model, torch.tensor([list(prompt)]), inputs.tokens, temperature=0)
                least[name] = min(least[name], time.perf_counter() - began)
    return least
