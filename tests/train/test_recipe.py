"""Recipe: the rates over a training, where they come from, and that declaring one costs no torch."""

import subprocess
import sys

import pytest
import torch

from kinformer.discover import member
from kinformer.members.transformer import transformer
from kinformer.train.budget import Steps
from kinformer.train.loop import train
from kinformer.train.noam import noam
from kinformer.train.recipe import Recipe
from kinformer.train.settings import Settings
from tests.train import tiny


def test_the_rate_rises_to_one_and_falls_to_a_tenth() -> None:
    rate = Recipe().rate
    points = torch.tensor([rate(spent / 1000) for spent in range(1001)])
    assert points.argmax() == 50 and points.max() == 1
    assert (points[:51].diff() >= 0).all() and (points[50:].diff() <= 0).all()
    assert points[0] == pytest.approx(0.01) and points[-1] == pytest.approx(0.1)
    assert points[525] == pytest.approx(0.55, abs=1e-3)
    assert rate(1.5) == pytest.approx(0.1)


def test_other_schedules() -> None:
    held = Recipe(warmup=0.0, schedule="constant").rate
    assert {held(spent / 10) for spent in range(11)} == {1.0}
    assert Recipe(warmup=1.0).rate(0.5) == 0.5 and Recipe(warmup=1.0).rate(1.0) == 1.0
    step, total = 40_000, 100_000
    falling = Recipe(lr=noam(4000, 512), warmup=0.04, schedule="inverse_sqrt")
    assert falling.lr * falling.rate(step / total) == pytest.approx(noam(step, 512))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"warmup": 1.5}, "warmup is a part of the training"),
        ({"warmup": 0.0, "schedule": "inverse_sqrt"}, "give warmup above 0"),
    ],
)
def test_numbers_without_a_meaning_are_refused(wrong: dict[str, float | str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Recipe(**wrong)  # type: ignore[arg-type]


def test_a_schedule_that_is_not_known_is_refused_without_annotations() -> None:
    code = "from kinformer.train.recipe import Recipe; Recipe(schedule='linear')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "schedule='linear' is not known; choose cosine, inverse_sqrt, constant" in done.stderr


def test_it_imports_no_torch() -> None:
    code = "import sys, kinformer.train.recipe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@member(recipe=Recipe(lr=0.125, warmup=0.5, schedule="constant"))
def slow(d: int = 4) -> tiny.Bigram:
    return tiny.Bigram(d)


def rates(lr: float | None) -> list[float]:
    """The learning rate of each of four steps."""
    model, seen = slow(), []
    step = torch.optim.AdamW.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", lambda o, *x: seen.append(o.param_groups[0]["lr"]) or step(o, *x))
        train(model, tiny.text(), Steps(4), Settings(batch=2, length=8, lr=lr, valid_bytes=50))
    return seen


def test_a_training_takes_the_member_s_own_unless_a_rate_is_given() -> None:
    assert rates(None) == [0.125 * 0.01, 0.125 * 0.5, 0.125, 0.125]
    assert rates(0.5) == [0.5 * 0.01, 0.5 * 0.5, 0.5, 0.5]
    assert tiny.bigram().member.recipe is None and Settings().recipe(tiny.bigram()) == Recipe()
    assert slow(d=2).member.recipe == Recipe(0.125, 0.5, "constant")


def test_the_transformer_s_is_the_paper_s() -> None:
    """Section 5.3: warm-up over 4,000 of 100,000 steps, to the rate of equation 3 at its peak."""
    model = transformer(d=16, depth=1, heads=2, hidden=16)
    recipe = Settings().recipe(model)
    assert (recipe.warmup, recipe.schedule) == (0.04, "inverse_sqrt")
    assert recipe.lr == pytest.approx(noam(4000, 512), rel=0.01)
