import pytest
from torch import nn

from kinformer.train.budget import Minutes, Steps
from kinformer.train.optimise import adamw


def test_decay_moves_matrices_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Embedding(5, 2))
    groups = adamw(model, 1e-3, 0.1).param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {id(model[0].weight), id(model[2].weight)}
    assert sum(len(group["params"]) for group in groups) == 5


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Linear(3, 4)
    model.bias.requires_grad_(False)
    assert [len(group["params"]) for group in adamw(model, 1e-3, 0.1).param_groups] == [1]


def test_budgets_count_steps_or_minutes() -> None:
    assert Steps(4).spent(3, 1e9) == 0.75
    assert Minutes(0.5).spent(7, 15.0) == 0.5
    assert Minutes(0.5).spent(0, 100.0) == 0.0
    for wrong in (lambda: Steps(0), lambda: Minutes(0), lambda: Minutes(-1.0), lambda: Minutes(float("nan"))):
        with pytest.raises(ValueError, match="a training needs"):
            wrong()
