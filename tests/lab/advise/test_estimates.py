"""Estimates of advice: reach, costs beyond the measured lengths, and minutes of a suggested training."""

from dataclasses import replace

import pytest
import torch

from kinformer.lab.advise import training_minutes as minutes
from kinformer.lab.advise.estimates import at_length, estimate_training, has_linear_cost, reach_of
from kinformer.lab.advise.fit import Fit
from kinformer.lab.member_choice import parse_member


def test_the_reach_of_windows_is_their_sum_over_the_layers() -> None:
    windows = (16, 27, 45, 76, 128)  # five layers from 16 to 128, each 8 ** (1 / 4) times the one below
    assert reach_of("longformer_lm") == sum(window - 1 for window in windows)
    assert reach_of("gpt") is None and reach_of("lstm") is None and reach_of("bert") is None


def test_a_member_that_sees_less_than_a_row_says_so() -> None:
    estimate = estimate_training(at_length("longformer_lm", 8192), 8192)
    fit = Fit("longformer_lm", estimate, 1.0, 1, None, 8192, 287)
    assert fit.limits == ["An output depends on at most the last 288 of the 8,192 tokens of a row, before training."]
    assert not replace(fit, length=288).limits and not replace(fit, reach=None).limits


COUNTED = {"longformer_lm": 550_186_324, "performer": 497_433_252, "linear_transformer": 418_585_372}


@pytest.mark.parametrize(("name", "row_bytes"), [*COUNTED.items(), ("gpt", 362_519_324)])
def test_memory_of_long_rows_is_that_of_full_windows_and_fused_attention(name: str, row_bytes: int) -> None:
    """The numbers are what `kinformer.lab.cost` counted for one row of 8,192 tokens."""
    estimate = estimate_training(at_length(name, 8192), 8192)
    assert estimate.row_bytes == pytest.approx(row_bytes, rel=0.05) and not estimate.sure


def test_the_operations_of_sac_grow_with_the_square_of_the_row() -> None:
    flops = {length: estimate_training(at_length("sac", length), length).row_flops for length in (128, 8192, 16384)}
    assert flops[128] == pytest.approx(688_226_304, rel=0.01)  # counted by `kinformer.lab.cost`
    assert flops[16384] > 2.8 * flops[8192]


def test_a_declared_order_of_cost_is_linear_or_not() -> None:
    linear = ("lstm", "longformer_lm", "performer", "transformer_xl", "compressive_transformer")
    others = ("gpt", "sac", "bp_transformer", "routing_transformer", "sinkhorn_transformer", "multi_scale")
    assert all(has_linear_cost(parse_member(name, ())) for name in linear)
    assert not any(has_linear_cost(parse_member(name, ())) for name in others)


def test_minutes_allow_about_two_hundred_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []

    def step_seconds(model: object, batch: int, length: int, precision: str) -> float:
        rows.append((batch, length))
        return (0.1, 9.0, 0.5)[len(rows) % 3]  # the median counts

    monkeypatch.setattr(minutes, "step_seconds", step_seconds)
    for length, batch, expected in ((256, 1, 3), (512, 4, 10), (512, 16, 30)):  # 100, 400 and 1,600 seconds
        estimate = estimate_training(at_length("lstm", length), length)
        assert minutes.training_minutes(estimate, length, batch, "float32", torch.device("cpu")) == expected
    estimate = estimate_training(at_length("lstm", 8192), 8192)
    assert minutes.training_minutes(estimate, 8192, 4, "float32", torch.device("cpu")) == 120  # 16 times 400 seconds
    assert rows == [(1, length) for length in (256, 512, 512, 512) for _ in range(minutes.TURNS)]


def test_minutes_are_round_numbers() -> None:
    assert [minutes.round_up_minutes(value) for value in (0.1, 3.0, 3.1, 46, 721, 1441)] == [3, 3, 5, 60, 1440, 2880]
