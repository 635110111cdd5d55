"""A small CALM on a task with easy and hard tokens, and its texts at each exit threshold."""

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
    """Size and training of a small CALM: width of the layers, number of steps and learning rate.

    At width 64, Python overhead around the small layers hides the time that early exits save. That width is enough to
    measure losses, but not to measure time.

    width: width of the layers.
    steps: number of training steps.
    lr: learning rate.
    """

    width: int
    steps: int
    lr: float


SMALL, WIDE = Size(64, 700, 3e-3), Size(256, 400, 1e-3)


class TextLosses(NamedTuple):
    """Losses of texts that are generated with early exits at one threshold, and the layers that they use.

    textual: distance of each text from the text that all layers generate.
    risk: distance of each text from the reference answer, minus the same distance of the text that all layers generate;
        at least 0.
    layers: mean number of layers per token.
    places: mean number of layers for the first, second, ... token of an answer.
    """

    textual: list[float]
    risk: list[float]
    layers: float
    places: list[float]


def train_calm(seed: int, size: Size) -> MultiExit:
    """Train a `calm` of eight layers, whose tokens may exit early, on the task `half_easy`.

    It is trained with a probe, a classifier that tells if a token may exit. CALM's other two confidences need no
    training.

    seed: seed of the weights and of the training.
    size: width, steps and learning rate.
    """
    with seeded(seed):
        model = calm(d=size.width, depth=DEPTH, heads=4, length=32, confidence="probe")
        if size.steps:
            fit(model, TASK, steps=size.steps, batch=32, lr=size.lr, seed=seed, measures=1)
    assert isinstance(model, MultiExit)
    return model.eval()


def prompts(model: MultiExit, split: str, count: int) -> Prompts:
    """Return rows of the task `half_easy` as prompts: without their answers.

    model: model that is to generate the answers.
    split: part of the data: "valid" or "test".
    count: number of prompts.
    """
    return read_spec(TASK).prompts(model, split, count, 0, 0)


def rules(model: MultiExit) -> dict[str, ConfidenceThreshold]:
    """Return exit rules with CALM's three confidences for one trained model, by name.

    The classifier is the probe that was trained with the model.

    model: model from `train_calm`.
    """
    rule = model.exits.rule
    assert isinstance(rule, ConfidenceThreshold) and isinstance(rule.confidence, Probe)
    each: dict[str, Confidence] = {
        "softmax response": SoftmaxResponse(),
        "saturation": Saturation(),
        "classifier": rule.confidence,
    }
    return {name: ConfidenceThreshold(confidence, 1.0) for name, confidence in each.items()}


def write_by_full_model(model: MultiExit, inputs: Prompts) -> list[Text]:
    """Return the texts that a model generates without early exits.

    model: model with early exits.
    inputs: prompts.
    """
    with use_rule(model.exits, NeverExit()):
        return write_texts(model, inputs).texts


def measure_losses(
    model: MultiExit, rule: ConfidenceThreshold, threshold: Threshold, inputs: Prompts, whole: Sequence[Text]
) -> TextLosses:
    """Generate texts with early exits at a threshold, and return their losses.

    model: model with early exits.
    rule: exit rule: a token exits if its confidence reaches a threshold. The rule keeps the threshold.
    threshold: exit threshold of the rule.
    inputs: prompts.
    whole: texts that all layers generate from the prompts, to compare with.
    """
    rule.leave_at(threshold)
    with use_rule(model.exits, rule):
        early = write_texts(model, inputs)
    each: dict[By, list[float]] = {by: losses(by, inputs, early.texts, whole) for by in ("textual", "risk")}
    return TextLosses(each["textual"], each["risk"], early.layers, early.mean_layers_by_place)


def seconds(
    model: MultiExit, leaving: dict[str, ExitRule], inputs: Prompts, texts: int = 12, rounds: int = 5
) -> dict[str, float]:
    """Return the seconds in which a model generates texts with each exit rule: the least of all rounds.

    The texts are generated one by one. The rules take turns in every round, so that a slow moment of the machine
    affects all of them.

    model: model with early exits.
    leaving: exit rules by name.
    inputs: prompts.
    texts: number of prompts to use.
    rounds: number of rounds.
    """
    least = dict.fromkeys(leaving, float("inf"))
    for _ in range(rounds):
        for name, rule in leaving.items():
            with use_rule(model.exits, rule):
                began = time.perf_counter()
                for prompt in inputs.prompts[:texts]:
                    generate(model, torch.tensor([list(prompt)]), inputs.tokens, temperature=0)
                least[name] = min(least[name], time.perf_counter() - began)
    return least
