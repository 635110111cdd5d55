"""How much is measured: a tenth of the training's time, fixed before the first step, the same for every model."""

import time
from typing import Any

import pytest
import torch

from kinformer.data.text import Text
from kinformer.train import evaluate as module
from kinformer.train.budget import Minutes, Steps
from kinformer.train.evaluate import LEAST, MOST, SHARE, measuring
from kinformer.train.settings import Settings
from tests.train import tiny


def text(size: int = 20_000) -> Text:
    tokens = torch.randint(256, (size,), dtype=torch.uint8)
    return Text("noise", tokens, tokens, tokens)


@pytest.mark.parametrize("steps", [1, 30, 300, 3_000, 30_000])
def test_a_number_of_steps_looks_at_no_clock(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked() -> float:
        raise AssertionError("the clock was looked at")

    monkeypatch.setattr(module, "monotonic", looked)
    given = Settings(batch=16, length=256)
    found = measuring([tiny.bigram()], text(), Steps(steps), given)
    assert found.valid_bytes is not None and LEAST <= found.valid_bytes <= MOST
    assert 1 <= found.measures <= given.measures
    # a byte that is measured counts as half of one that is learned from
    allowed = SHARE * 2 * steps * given.batch * given.length
    assert found.valid_bytes * found.measures <= max(allowed, LEAST)
    if found.measures < given.measures:
        assert found.valid_bytes == LEAST  # bytes are given up first
    elif found.valid_bytes < MOST:
        assert found.valid_bytes * (found.measures + 1) > allowed


def test_minutes_are_shared_by_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [tiny.bigram(), tiny.bigram()]
    speeds = {id(models[0]): 50_000.0, id(models[1]): 2_000.0}
    monkeypatch.setattr(module, "_speed", lambda model, text, length: speeds[id(model)])
    found = measuring(models, text(), Minutes(3), Settings())
    assert found == measuring(models[1:], text(), Minutes(3), Settings())
    allowed = SHARE * 180 * 2_000.0
    assert found.valid_bytes is not None and found.measures == Settings().measures
    assert allowed - found.measures < found.valid_bytes * found.measures <= allowed


def test_the_speed_is_that_of_measuring() -> None:
    model, slept = tiny.bigram(), 0.02

    def late(*given: Any) -> None:
        time.sleep(slept)

    model.register_forward_pre_hook(late)
    judge = model.judge
    model.judge = lambda *given: (late(), judge(*given))[1]  # type: ignore[method-assign]
    assert 0 < module._speed(model, text(3_000), 1_000) < 3_000 / slept


def test_bytes_that_are_given_stay() -> None:
    given = Settings(valid_bytes=100, measures=4)
    assert measuring([tiny.bigram()], text(), Steps(3), given) is given
