import pytest
import torch
from torch import Tensor, nn

from kinformer.core.loss import Penalty
from kinformer.lab.train.budget import MinuteBudget, StepBudget
from kinformer.lab.train.optimiser import adamw, clip, clip_groups
from kinformer.members.compressive_transformer import compressive_transformer
from kinformer.models.lm import LM


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


def test_what_a_penalty_alone_trains_is_clipped_apart() -> None:
    class Summary(nn.Linear):
        def penalties(self) -> dict[str, Penalty]:
            return {"rebuilt": Penalty((self.weight,), alone=True), "size": Penalty((self.bias,))}

    model = nn.ModuleList([nn.Linear(1, 1), Summary(1, 1)])
    groups = clip_groups(model)
    assert [len(group) for group in groups] == [3, 1] and groups[1][0] is model[1].weight
    for p, size in zip(model.parameters(), (3.0, 4.0, 200.0, 0.0), strict=True):
        p.grad = torch.full_like(p, size)
    assert float(clip(groups, 2.5)) == pytest.approx(200.0625, abs=1e-3)
    for p, size in zip(model.parameters(), (1.5, 2.0, 2.5, 0.0), strict=True):
        assert float(p.grad.sum()) == pytest.approx(size, rel=1e-3)
    model[1].weight.grad = None  # a penalty without a weight in the loss
    assert float(clip(groups, 2.5)) == pytest.approx(2.5, rel=1e-3)


def compressing(weight: float) -> LM:
    """A model whose reconstruction has such a weight."""
    torch.manual_seed(0)
    shape = {"d": 16, "depth": 2, "heads": 2, "segment": 4, "memory": 4, "compressed": 2, "rate": 2, "vocab": 11}
    model = compressive_transformer(**shape).train()
    model.penalties = dict.fromkeys(model.penalties, weight)
    return model


def test_a_reconstruction_however_large_does_not_slow_what_learns_the_text() -> None:
    def weight_changes(reconstruction: float) -> list[Tensor]:
        model = compressing(reconstruction)
        torch.manual_seed(1)
        model(torch.randint(0, 11, (2, 18))).total.backward()
        task, rebuilt = clip_groups(model)
        clip([task, rebuilt], 0.1)
        assert 0 < float(torch.stack([p.grad.norm() for p in rebuilt]).norm()) <= 0.1 * (1 + 1e-5)
        return [p.grad for p in task]

    assert all(
        torch.equal(first, other) for first, other in zip(weight_changes(1.0), weight_changes(1000.0), strict=True)
    )


@pytest.mark.parametrize("most", [1e-3, 1e9])
def test_the_weight_of_what_alone_trains_its_parameters_changes_no_step(float64: None, most: float) -> None:
    """Why compressive_transformer has no such keyword: with a clip of its own or with none, Adam undoes a factor."""

    def trained(weight: float) -> list[Tensor]:
        model = compressing(weight)
        optimiser, groups = adamw(model, 1e-2, 0.1), clip_groups(model)
        for seed in range(5):
            torch.manual_seed(seed)
            model(torch.randint(0, 11, (2, 18))).total.backward()
            clip(groups, most)
            optimiser.step()
            optimiser.zero_grad()
        return groups[1]

    begun = compressing(1.0)
    for mine, other, start in zip(trained(1.0), trained(100.0), clip_groups(begun)[1], strict=True):
        assert float((mine - other).detach().norm()) < 1e-2 * float((mine - start).detach().norm())


def test_budgets_count_steps_or_minutes() -> None:
    assert StepBudget(4).fraction_spent(3, 1e9) == 0.75
    assert MinuteBudget(0.5).fraction_spent(7, 15.0) == 0.5
    assert MinuteBudget(0.5).fraction_spent(0, 100.0) == 0.0
    for wrong in (
        lambda: StepBudget(0),
        lambda: MinuteBudget(0),
        lambda: MinuteBudget(-1.0),
        lambda: MinuteBudget(float("nan")),
    ):
        with pytest.raises(ValueError, match="wrong number of|minutes=nan: give a finite number"):
            wrong()


def test_a_model_without_a_weight_to_train_is_refused() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="cannot train this Linear: all of its weights are frozen"):
        adamw(model, 1e-3, 0.1)
