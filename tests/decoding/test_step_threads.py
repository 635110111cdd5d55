"""Threads of decoding steps: one for short steps whose threads would sleep, afterwards the number from before."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.core.layer import Out
from kinformer.decoding.step_threads import FEW_ROWS, step_threads, threads_sleep
from tests.decoding.writers import writer


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_threads_sleep_if_the_environment_says_so() -> None:
    assert threads_sleep({"OMP_WAIT_POLICY": "passive"}) and threads_sleep({"GOMP_SPINCOUNT": "1000"})
    assert not threads_sleep({}) and not threads_sleep({"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "1000"})
    assert not threads_sleep({"GOMP_SPINCOUNT": "infinite"}) and not threads_sleep({"GOMP_SPINCOUNT": "30000000"})


@pytest.mark.parametrize(("rows", "tokens", "threads"), [(FEW_ROWS, 1, 1), (FEW_ROWS + 1, 1, 3), (1, 2, 3)])
def test_short_steps_run_in_one_thread(three_threads: None, rows: int, tokens: int, threads: int) -> None:
    with step_threads(rows, tokens):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 3


def test_threads_that_spin_are_kept(three_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    with step_threads(1, 1):
        assert torch.get_num_threads() == 3


def test_generate_reads_the_prompt_in_all_threads_and_each_token_in_one(
    three_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, threads = writer("rotary"), list[int]()
    logits = model.logits

    def noted(*inputs: Any, **further: Any) -> Out:
        threads.append(torch.get_num_threads())
        return logits(*inputs, **further)

    monkeypatch.setattr(model, "logits", noted)
    kf.generate(model, [1, 2, 3], 4, temperature=0, stop=-1)
    assert threads == [3, 1, 1, 1] and torch.get_num_threads() == 3


def test_an_error_restores_the_number_of_threads(three_threads: None) -> None:
    with pytest.raises(RuntimeError, match="stop"), step_threads(1, 1):
        raise RuntimeError("stop")
    assert torch.get_num_threads() == 3
