"""Uncertainty sampling over tasks: the paper's algorithm as a loop, the code's beside it, and going on."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.lab.data.multitask import MultitaskData, in_turn, read
from kinformer.lab.data.support.uncertainty_sampling import UncertaintySampling, uncertainty_scores
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.start_record import ResumeError
from kinformer.lab.train.train import train
from kinformer.members.camtl import camtl
from tests.lab.data.test_multitask import FILES, written

SMALL: dict[str, Any] = {"d": 8, "depth": 1, "heads": 2, "length": 24, "blocks": 4, "classes": (3, 2)}
FORMS = ("uncertainty", "published_uncertainty")


@torch.no_grad()
def by_hand(model: Any, there: tuple[Tensor, Tensor, Tensor], batch: int, form: str) -> list[int]:
    """Algorithm 1: entropies of the b rows of each task, over the largest mean and that of even odds, the b largest."""
    entropy, even = [], [math.log(count) for count in model.classes]
    for row, task in zip(there[0], there[1].tolist(), strict=True):
        scores = model.scores(row[row >= 0][None], torch.tensor([task]))[0]
        shares = [math.exp(float(s) - float(scores.logsumexp(0))) for s in scores if s > -math.inf]
        entropy.append(-sum(p * math.log(p) for p in shares))
    if form == "published_uncertainty":
        entropy = [h / even[task] for h, task in zip(entropy, there[1].tolist(), strict=True)]
    means = []
    for task in range(len(even)):
        own = [h for h, its in zip(entropy, there[1].tolist(), strict=True) if its == task]
        means.append(sum(own) / len(own))
    if form == "published_uncertainty":
        u = [h * means[task] / max(means) for h, task in zip(entropy, there[1].tolist(), strict=True)]
    else:
        u = [h / (max(means) * even[task]) for h, task in zip(entropy, there[1].tolist(), strict=True)]
    return sorted(range(len(u)), key=lambda n: -u[n])[:batch]


def sure_of_some(seed: int) -> Any:
    """A model that is surer of one task than of the other."""
    torch.manual_seed(seed)
    model = camtl(**SMALL)
    with torch.no_grad():
        model.head.weight[:3] *= 40
        model.head.weight[3:] *= 5
    return model


@pytest.mark.parametrize("form", FORMS)
def test_the_rows_of_a_step_are_those_of_the_algorithm(tmp_path: Path, form: str, float64: None) -> None:
    data = read(written(tmp_path, FILES), sampling=form)
    chosen = Counter[int]()
    for seed in range(3):
        model = sure_of_some(seed).train()
        stream = data.stream(model, 6, 24, seed, 1 << 16)
        assert isinstance(stream, UncertaintySampling)
        there = stream.candidates(seed)
        assert there.task.tolist() == [0] * 6 + [1] * 6
        tokens, task, wanted = stream.at(seed)
        assert model.training
        at = by_hand(model.eval(), there, 6, form)
        assert task.tolist() == there.task[at].tolist() and wanted.tolist() == there.label[at].tolist()
        for row, want in zip(tokens, there.tokens[at], strict=True):
            assert torch.equal(row[row >= 0], want[want >= 0])
        chosen.update(task.tolist())
    assert len(chosen) == 2 and chosen[0] != chosen[1]


def test_the_published_form_takes_fewer_of_a_task_that_is_sure() -> None:
    """The paper's largest mean is one number for all rows; in the code a row is weighed by the mean of its own task."""
    entropy, task = torch.tensor([0.60, 0.10, 0.10, 0.50, 0.55, 0.52]), torch.tensor([0, 0, 0, 1, 1, 1])
    first = {form: int(uncertainty_scores(entropy, task, (2, 2), form).argmax()) for form in FORMS}  # type: ignore[arg-type]
    assert first == {"uncertainty": 0, "published_uncertainty": 4}
    for form in FORMS:
        assert uncertainty_scores(torch.zeros(6), task, (2, 2), form).tolist() == [0] * 6  # type: ignore[arg-type]


def test_each_row_comes_once_before_any_comes_again() -> None:
    rows = [((n,), n) for n in range(7)]
    steps = [[row[1] for row in in_turn(rows, 3, (0, 1), step)] for step in range(14)]
    flat = [n for step in steps for n in step]
    turns = [flat[first : first + 7] for first in range(0, 42, 7)]
    assert all(sorted(turn) == list(range(7)) for turn in turns) and len({tuple(turn) for turn in turns}) > 1


def test_a_training_goes_on_to_the_same_weights_and_with_no_other_sampling(tmp_path: Path) -> None:
    data = read(written(tmp_path / "data", FILES), sampling="uncertainty")
    settings = Settings(batch=4, length=24, lr=1e-2, seed=3, measures=1)

    def trained(data: MultitaskData, name: str, **keywords: Any) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = camtl(**SMALL)
        train(model, data, StepBudget(4), settings, folder=tmp_path / name, **keywords)
        return model.state_dict()

    whole, _ = trained(data, "whole"), trained(data, "parts", until=0.5)
    again = trained(data, "parts", resume=True)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    with pytest.raises(ResumeError, match="got sampling=random, expected sampling=uncertainty"):
        trained(replace(data, sampling="random"), "parts", resume=True)


def test_what_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, FILES)
    with pytest.raises(ValueError, match="sampling='least' is not known; choose 'random' or 'uncertainty' or"):
        read(folder, sampling="least")
    with pytest.raises(
        ValueError, match=r"sampling=uncertainty draws equally many rows of each task, so power=0\.5 has no effect"
    ):
        read(folder, sampling="uncertainty", power="0.5")
