"""Recipe: the rates over a training, where they come from, and that declaring one costs no torch."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR
from transformers import optimization as peer

from kinformer.core.discover import member
from kinformer.core.training_recipe import Recipe
from kinformer.lab.train.budget import MinuteBudget, StepBudget
from kinformer.lab.train.fit import fit
from kinformer.lab.train.learning_rate_schedule import RecipeLR
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
from kinformer.members.gpt import gpt
from kinformer.members.shaw import shaw
from kinformer.members.transformer import transformer
from tests.lab.train import tiny

FIRST, WARMUP, STEPS, PEAK = 0.01, 40, 200, 3e-4


def optimiser(lr: float = PEAK) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))], lr=lr)


def rates(schedule: LRScheduler, steps: int = STEPS) -> list[float]:
    """The learning rate of each step of a plain loop."""
    result = []
    for _ in range(steps):
        result.append(schedule.get_last_lr()[0])
        schedule.optimizer.step()
        schedule.step()
    return result


def noam(step: int, d: int, warmup: int) -> float:
    """Equation 3 of the paper, of step 1, 2, ..."""
    return d**-0.5 * min(step**-0.5, step * warmup**-1.5)


PEERS: dict[str, Callable[[Any], LRScheduler]] = {
    "constant": lambda o: peer.get_constant_schedule_with_warmup(o, WARMUP),
    "linear": lambda o: peer.get_linear_schedule_with_warmup(o, WARMUP, STEPS),
    "cosine": lambda o: peer.get_cosine_with_min_lr_schedule_with_warmup(o, WARMUP, STEPS, min_lr_rate=0.1),
    "inverse_sqrt": lambda o: peer.get_inverse_sqrt_schedule(o, WARMUP),
}


@pytest.mark.parametrize("warmup", [WARMUP, WARMUP / STEPS])
@pytest.mark.parametrize("schedule", PEERS)
def test_schedules_are_those_of_hugging_face(schedule: Any, warmup: float | int) -> None:
    """Theirs begins at 0, where the first step learns nothing; all later ones are the same."""
    want = rates(PEERS[schedule](optimiser()))
    actual = rates(RecipeLR(optimiser(), Recipe(schedule=schedule, warmup=warmup), steps=STEPS))
    assert want[0] == 0 and actual[0] == pytest.approx(FIRST * PEAK, rel=1e-12)
    assert actual[1:] == pytest.approx(want[1:], rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_schedules_are_those_of_torch(schedule: Any) -> None:
    own, after = optimiser(), STEPS - WARMUP
    rise = LinearLR(own, 1 / WARMUP, 1.0, WARMUP - 1)
    fall = LinearLR(own, 1.0, 0.0, after) if schedule == "linear" else CosineAnnealingLR(own, after, 0.1 * PEAK)
    want = rates(SequentialLR(own, [rise, fall], [WARMUP]))
    actual = rates(RecipeLR(optimiser(), Recipe(schedule=schedule, warmup=WARMUP), steps=STEPS))
    assert actual[WARMUP:] == pytest.approx(want[WARMUP:], rel=1e-9)


def test_noam_is_the_equation_of_the_paper_and_knows_the_step_alone() -> None:
    recipe = Settings(schedule="noam", warmup=WARMUP).recipe(gpt(d=48, depth=1, heads=2))
    want = [noam(step, 48, WARMUP) for step in range(1, STEPS + 1)]
    for steps in (None, 10, STEPS, 10**6):
        assert rates(RecipeLR(optimiser(recipe.peak), recipe, steps)) == pytest.approx(want, rel=1e-12)
    with_peak = Settings(schedule="noam", warmup=WARMUP, lr=PEAK).recipe(gpt(d=48, depth=1, heads=2))
    actual = rates(RecipeLR(optimiser(with_peak.peak), with_peak))
    assert max(actual) == actual[WARMUP - 1] == PEAK
    with pytest.raises(ValueError, match=r"width of the model, which is unknown here; give lr="):
        _ = Recipe(schedule="noam", warmup=9).peak


@pytest.mark.parametrize("build", [transformer, shaw])
def test_the_transformer_is_trained_as_in_its_paper(build: Any) -> None:
    """Section 5.3: Adam's numbers, and 4,000 steps of warm-up of the 100,000 of the base model, at any length."""
    model = build(d=16, depth=1, heads=2, hidden=16)
    recipe = Settings().recipe(model)
    assert (recipe.betas, recipe.eps) == ((0.9, 0.98), 1e-9)
    for step in (0, 1, 3_000, 3_999, 4_000, 50_000, 99_999):
        assert recipe.peak * recipe.rate(step, step / 100_000) == pytest.approx(noam(step + 1, 16, 4_000), rel=1e-9)
    short = [recipe.peak * recipe.rate(step, step / 100) for step in range(100)]
    assert max(short) == pytest.approx(noam(4_000, 16, 4_000), rel=1e-3) and short.index(max(short)) == 4
    exact = Settings(warmup=4_000).recipe(model)
    assert exact.peak * exact.rate(99, 0.99) == pytest.approx(noam(100, 16, 4_000), rel=1e-12)


def test_the_rate_rises_to_one_and_falls_to_a_tenth() -> None:
    points = torch.tensor([Recipe().rate(0, spent / 1000) for spent in range(1001)])
    assert points.argmax() == 50 and points.max() == 1
    assert (points[:51].diff() >= 0).all() and (points[50:].diff() <= 0).all()
    assert points[0] == pytest.approx(0.01) and points[-1] == pytest.approx(0.1)
    assert points[525] == pytest.approx(0.55, abs=1e-3)
    assert Recipe().rate(0, 1.5) == pytest.approx(0.1)
    constant = Recipe(warmup=0.0, schedule="constant")
    assert {constant.rate(0, spent / 10) for spent in range(11)} == {1.0}
    assert Recipe(warmup=1.0).rate(0, 0.5) == 0.5 and Recipe(warmup=1.0).rate(9, 1.0) == 1.0


def test_under_a_budget_of_minutes_the_schedule_follows_the_time_and_a_warm_up_in_steps_the_steps() -> None:
    """Steps that take twice as long as those before them: the warm-up keeps its steps, the end its time."""
    recipe, spent = Recipe(warmup=10, schedule="linear"), 0.0
    actual = []
    for step in range(60):
        actual.append(recipe.rate(step, spent))
        spent += 0.01 if step < 20 else 0.02
    assert spent == pytest.approx(1.0) and actual[:10] == pytest.approx([0.01, *(n / 10 for n in range(1, 10))])
    # the first 10 steps took a tenth of the time
    assert actual[10] == 1.0 and actual[15] == pytest.approx(1 - 0.05 / 0.9)
    assert all(a > b for a, b in zip(actual[10:], actual[11:], strict=False)) and recipe.rate(60, 1.0) == 0.0


def test_a_loop_of_ones_own_goes_on_with_its_schedule() -> None:
    whole = rates(RecipeLR(optimiser(), Recipe(warmup=7), steps=30), 30)
    first, recipe = RecipeLR(optimiser(), Recipe(warmup=7), steps=30), Recipe(warmup=7)
    begun = rates(first, 11)
    restored = RecipeLR(optimiser(), recipe, steps=30)
    restored.load_state_dict(first.state_dict())
    restored.optimizer.load_state_dict(first.optimizer.state_dict())
    assert begun + rates(restored, 19) == whole


@pytest.mark.parametrize("schedule", PEERS)
@pytest.mark.parametrize("warmup", [0, WARMUP, 0.0, WARMUP / STEPS])
def test_a_loop_without_steps_is_refused_if_its_rates_need_them(schedule: Any, warmup: float | int) -> None:
    """A loop without `steps` has the rates of one with steps, or a line that asks for them."""
    if schedule == "inverse_sqrt" and not warmup:
        return
    recipe = Recipe(schedule=schedule, warmup=warmup)
    if schedule in ("cosine", "linear") or warmup == WARMUP / STEPS:
        with pytest.raises(ValueError, match=rf"got steps=None, .*{schedule}.*. Give steps= to RecipeLR.$") as caught:
            rates(RecipeLR(optimiser(), recipe))
        assert "\n" not in str(caught.value)
    else:
        assert rates(RecipeLR(optimiser(), recipe)) == rates(RecipeLR(optimiser(), recipe, steps=STEPS))


def test_a_training_of_no_steps_has_no_rates() -> None:
    with pytest.raises(ValueError, match="steps=0: give a whole number of at least 1"):
        RecipeLR(optimiser(), Recipe(), steps=0)


def test_the_last_rate_is_the_one_that_begin_has_set() -> None:
    schedule = RecipeLR(optimiser(), Recipe(schedule="linear", warmup=0.5))
    assert schedule.begin(3, 0.25) == 0.5 * PEAK
    assert schedule.get_last_lr() == [0.5 * PEAK] == [group["lr"] for group in schedule.optimizer.param_groups]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"lr": "x"}, "lr must be above 0, got 'x'"),
        ({"lr": True}, "lr must be above 0, got True"),
        ({"warmup": 1.5}, "warmup=1.5: give a fraction of the training from 0.0 to 1.0, such as 0.05, or an integer"),
        ({"warmup": -3}, "warmup=-3: give"),
        ({"warmup": 0.0, "schedule": "inverse_sqrt"}, "give warmup above 0"),
        ({"warmup": 0, "schedule": "noam"}, "give warmup above 0"),
        ({"schedule": "wave"}, "schedule='wave' is not known; choose cosine, linear, constant, inverse_sqrt, noam"),
        ({"betas": (0.9, 1.0)}, r"betas=\(0.9, 1.0\): give two numbers from 0 to below 1"),
        ({"betas": (0.9,)}, "give two numbers"),
        ({"eps": 0.0}, "eps=0.0: give a number above 0"),
        ({"eps": "x"}, "eps='x': give a number above 0"),
        ({"eps": (1e-8,)}, r"eps=\(1e-08,\): give a number above 0"),
    ],
)
def test_numbers_without_a_meaning_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Recipe(**wrong)
    assert "\n" not in str(caught.value)
    if "lr" not in wrong:
        with pytest.raises(ValueError, match=message):
            Settings(**wrong)


def test_it_imports_no_torch() -> None:
    code = "import sys, kinformer.core.training_recipe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@member(recipe=Recipe(lr=0.125, warmup=0.5, schedule="constant", betas=(0.5, 0.75), eps=1e-3))
def slow(d: int = 4) -> tiny.Bigram:
    model = tiny.Bigram(d)
    model.d = d  # type: ignore[assignment]
    return model


def groups(**settings: Any) -> list[dict[str, Any]]:
    """The optimiser's numbers in each of four steps of `fit`."""
    states: list[dict[str, Any]] = []
    step = torch.optim.AdamW.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", lambda o, *x: states.append(dict(o.param_groups[0])) or step(o, *x))
        fit(slow(), tiny.text(), steps=4, batch=2, length=8, valid_bytes=50, **settings)
    return states


def test_a_training_takes_the_member_s_own_unless_others_are_given() -> None:
    own, peak = groups(), 0.125
    assert [group["lr"] for group in own] == [peak * 0.01, peak * 0.5, peak, peak]
    assert {(group["betas"], group["eps"]) for group in own} == {((0.5, 0.75), 1e-3)}
    assert [group["lr"] for group in groups(lr=0.5)] == [0.5 * 0.01, 0.5 * 0.5, 0.5, 0.5]
    chosen = groups(schedule="linear", warmup=1, betas=(0.9, 0.99), eps=1e-6)
    assert [group["lr"] for group in chosen] == pytest.approx([peak * n for n in (0.01, 1.0, 2 / 3, 1 / 3)])
    assert {(group["betas"], group["eps"]) for group in chosen} == {((0.9, 0.99), 1e-6)}
    by_step = groups(schedule="noam", warmup=2)
    assert [group["lr"] for group in by_step] == pytest.approx([noam(step, 4, 2) for step in range(1, 5)])
    assert tiny.bigram().member.recipe is None and Settings().recipe(tiny.bigram()) == Recipe() == Recipe(2e-3)
    assert slow(d=2).member.recipe == Recipe(0.125, 0.5, "constant", (0.5, 0.75), 1e-3)


def test_of_a_schedule_alone_the_highest_rate_stays_the_member_s() -> None:
    model = transformer(d=16, depth=1, heads=2, hidden=16)
    recipe = Settings(schedule="cosine", warmup=0.0).recipe(model)
    assert recipe.peak == pytest.approx(noam(4_000, 16, 4_000)) and recipe.betas == (0.9, 0.98)
    assert Settings(schedule="constant").recipe(gpt(d=16, depth=1, heads=2)).peak == 2e-3


def test_the_rates_of_minutes_and_of_steps_are_those_of_what_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr("kinformer.lab.train.loop.monotonic", lambda: float(next(ticks)))  # a second each
    by_budget: dict[str, list[float]] = {}
    for budget in (StepBudget(30), MinuteBudget(0.5)):
        lines: list[dict[str, Any]] = []
        settings = Settings(batch=2, length=8, valid_bytes=50, warmup=6, schedule="cosine")
        train(tiny.bigram(), tiny.text(), budget, settings, on_metrics=lines.append)
        by_budget[type(budget).__name__] = [line["lr"] for line in lines if "lr" in line]
    want = [0.01, *(n / 6 for n in range(1, 6)), *(0.55 + 0.45 * math.cos(math.pi * n / 24) for n in range(24))]
    assert by_budget["StepBudget"] == pytest.approx([2e-3 * rate for rate in want], rel=1e-12)
    assert by_budget["MinuteBudget"] == pytest.approx(by_budget["StepBudget"], rel=1e-12)
