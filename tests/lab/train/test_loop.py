import errno
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinformer.checkpoint import atomic_files as files
from kinformer.checkpoint.checkpoint import load, save
from kinformer.core.loss import Loss
from kinformer.lab.data.lanes import Lanes
from kinformer.lab.data.text import TextData
from kinformer.lab.train.budget import MinuteBudget, StepBudget
from kinformer.lab.train.history import History
from kinformer.lab.train.loop import TrainingStopped
from kinformer.lab.train.progress import ProgressDisplay, Status
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
from kinformer.lab.train.training_interrupt import TrainingInterrupt
from kinformer.members.gpt import gpt
from tests.lab.train import tiny

SMALL = Settings(batch=4, length=16, lr=3e-2, measures=4, valid_bytes=100)


class Noted(ProgressDisplay):
    def __init__(self) -> None:
        self.seen: list[Status] = []

    def status(self, status: Status) -> None:
        self.seen.append(status)


def test_the_loss_falls_and_is_measured() -> None:
    show = Noted()
    history = train(tiny.bigram(), tiny.text(), StepBudget(200), SMALL, show=show)
    assert history.points[-1].valid < 0.5 < 4 < show.seen[0].train
    assert [point.step for point in history.points] == [50, 100, 150, 200]
    assert history.step == 200 and history.tokens == 200 * 4 * 16
    assert [status.step for status in show.seen] == list(range(1, 201))
    assert show.seen[-1].time_left == "0:00" and "bits per byte, validation 0." in str(show.seen[-1])


def test_the_same_seed_gives_the_same_training() -> None:
    def trained(seed: int) -> list[float]:
        torch.manual_seed(0)
        noise = torch.randint(256, (500,), dtype=torch.uint8)
        settings = Settings(batch=4, length=16, seed=seed, valid_bytes=100)
        return [
            point.valid
            for point in train(tiny.bigram(), TextData("noise", noise, noise, noise), StepBudget(20), settings).points
        ]

    assert trained(1) == trained(1) != trained(2)


def test_minutes_end_and_follow_the_clock() -> None:
    show = Noted()
    history = train(tiny.bigram(), tiny.text(), MinuteBudget(0.005), SMALL, show=show)
    assert history.seconds >= 0.3
    assert show.seen[-2].seconds < 0.3
    assert show.seen[-1].spent == pytest.approx(history.seconds / 0.3)


def test_every_module_is_told_once_after_every_step() -> None:
    model = tiny.bigram()
    train(model, tiny.text(), StepBudget(5), SMALL)
    assert [progress for progress, _ in model.told] == [0, 0.2, 0.4, 0.6, 0.8]
    assert [int(stats["count"]) for _, stats in model.told] == [4 * 17] * 5
    assert int(model.seen) == 5


def test_a_stateless_model_gets_no_state() -> None:
    model = tiny.bigram()
    train(model, tiny.text(), StepBudget(3), SMALL)
    assert model.states == [None] * 3


def test_a_state_is_carried_detached_and_begun_anew() -> None:
    model, text = tiny.lane(), tiny.text(4 * 16 * 3 + 1)
    assert Lanes(text.train, 4, 16).chunks == 3
    ends = []
    forward = model.forward

    def watch(tokens: Tensor, state: Any, progress: float) -> Loss:
        loss = forward(tokens, state, progress)
        ends.append(loss.state.detach().clone())
        return loss

    model.forward = watch
    train(model, text, StepBudget(7), Settings(batch=4, length=16, lr=1e-3, valid_bytes=100))
    assert all(not state.requires_grad for state in model.states)
    for step, state in enumerate(model.states):
        expected = torch.zeros_like(state) if step % 3 == 0 else ends[step - 1]
        assert torch.equal(state, expected)
    assert all(end.abs().max() > 0 for end in ends)


def test_the_last_and_the_best_model_are_kept_and_what_was_measured(tmp_path: Path) -> None:
    model = tiny.bigram()
    text = tiny.text()
    scrambled = type(text)("x", text.train, torch.randint(256, (200,), dtype=torch.uint8), text.test)
    history = train(model, scrambled, StepBudget(40), SMALL, folder=tmp_path)
    assert history.best is history.points[0] and history.points[-1].valid > history.best.valid + 0.1
    assert int(load(tmp_path / "best", member=tiny.bigram).seen) == history.best.step == 10
    assert int(load(tmp_path, member=tiny.bigram).seen) == history.step == 40
    assert History.read(tmp_path) == history


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    first = train(tiny.bigram(), tiny.text(), StepBudget(100), SMALL, folder=tmp_path)
    show = Noted()
    train(load(tmp_path, member=tiny.bigram), tiny.text(), StepBudget(1), SMALL, show=show)
    assert show.seen[0].train == pytest.approx(first.points[-1].valid, rel=0.2)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_stops_before_a_weight_moves(
    tmp_path: Path, value: float, where: str
) -> None:
    model = tiny.bigram()
    forward = model.forward

    def poison(tokens: Tensor, state: Any, progress: float) -> Loss:
        loss = forward(tokens, state, progress)
        if len(model.told) < 3:
            return loss
        if where == "loss":
            return loss._replace(total=loss.total * value)
        loss.total.register_hook(lambda gradient: gradient * value)
        return loss

    model.forward = poison
    settings = replace(SMALL, measures=1)
    with pytest.raises(
        TrainingStopped, match=f"the {where} became .* at step 3, in batch 3: the weights before this step are saved in"
    ) as caught:
        train(model, tiny.text(), StepBudget(10), settings, folder=tmp_path)
    assert "\n" not in str(caught.value) and "lr below 0.03" in str(caught.value)
    loaded = load(tmp_path, member=tiny.bigram)
    assert int(loaded.seen) == 3 and all(bool(p.isfinite().all()) for p in loaded.parameters())


def test_a_measurement_that_is_not_finite_is_no_end(tmp_path: Path) -> None:
    model = tiny.bigram()

    def spoil(line: dict[str, Any]) -> None:
        for weight in model.parameters():
            nn.init.constant_(weight, math.nan)

    message = r"on validation data became nan at step 1: no weights were saved before; try a lr below 0.03"
    with pytest.raises(TrainingStopped, match=message):
        train(model, tiny.text(), StepBudget(1), replace(SMALL, measures=1), folder=tmp_path, on_metrics=spoil)
    assert RunFolder(tmp_path).step is None and not (tmp_path / "best").exists()


def test_after_a_measurement_the_best_so_far_is_kept_beside_the_last_good_weights(tmp_path: Path) -> None:
    model = tiny.bigram()
    forward = model.forward
    model.forward = lambda *arguments: forward(*arguments)._replace(
        total=forward(*arguments).total / (len(model.told) < 3)
    )
    with pytest.raises(TrainingStopped, match="at step 3, in batch 3: the weights before this step are saved in"):
        train(model, tiny.text(), StepBudget(4), replace(SMALL, measures=2), folder=tmp_path)
    assert int(load(tmp_path, member=tiny.bigram).seen) == 3
    assert int(load(tmp_path / "best", member=tiny.bigram).seen) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(tmp_path: Path, number: int) -> None:
    class Sending(ProgressDisplay):
        def status(self, status: Status) -> None:
            if status.step == 3:
                os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match="stopped at step 3; the weights are kept in") as stopped:
        train(tiny.bigram(), tiny.text(), StepBudget(100), SMALL, folder=tmp_path, show=Sending())
    assert isinstance(stopped.value, TrainingInterrupt) and stopped.value.number == number
    assert int(load(tmp_path, member=tiny.bigram).seen) == 3
    assert signal.getsignal(number) is before


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tiny.bigram()
    save(old, tmp_path)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device; nothing was written"):
        train(tiny.bigram(), tiny.text(), StepBudget(4), SMALL, folder=tmp_path)
    assert torch.equal(load(tmp_path, member=tiny.bigram).mix.weight, old.mix.weight)
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["config.json", "metrics.jsonl", "model.safetensors"]


def test_too_little_text_is_said_before_anything_is_trained() -> None:
    text = tiny.text()
    with pytest.raises(ValueError, match="got 10 bytes, but a window of length 16 needs 17"):
        train(tiny.bigram(), type(text)("x", text.train[:10], text.valid, text.test), StepBudget(1), SMALL)
    with pytest.raises(ValueError, match="x leaves 1 bytes of .* for validation, expected at least 2; .*--valid FILE"):
        train(tiny.bigram(), type(text)("x", text.train, text.valid[:1], text.test), StepBudget(1), SMALL)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"length": 0}, {"lr": 0.0}, {"lr": math.nan}, {"seed": -1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)


def test_rows_longer_than_the_learned_positions_are_refused_before_anything_is_trained() -> None:
    model = gpt(d=16, depth=1, heads=2, length=15)
    with pytest.raises(
        ValueError, match=r"^rows have 16 tokens, but this gpt has only 15 learned positions; train it on a le"
    ):
        train(model, tiny.text(), StepBudget(1), SMALL)
    assert model.trained_length is None
    train(gpt(d=16, depth=1, heads=2, length=16), tiny.text(), StepBudget(1), SMALL)
    train(gpt(d=16, depth=1, heads=2, position="rotary"), tiny.text(), StepBudget(1), SMALL)


@pytest.mark.parametrize("make", [tiny.bigram, tiny.lane])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to"),
        MemoryError(),
    ],
)
def test_out_of_memory_is_one_line_with_the_batch_that_fits(
    make: Any, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, model, sizes = type(make()).forward, make(), []

    def narrow(self: Any, tokens: Tensor, state: Any, progress: float) -> Loss:
        sizes.append(len(tokens))
        if len(self.told) == 2 and len(tokens) > 3:
            raise error
        return forward(self, tokens, state, progress)

    monkeypatch.setattr(type(model), "forward", narrow)
    settings = Settings(batch=16, length=8, valid_bytes=50)
    with pytest.raises(
        TrainingStopped, match="out of memory on cpu: the batch of 16 rows at step 2 does not fit"
    ) as stop:
        train(model, tiny.text(), StepBudget(9), settings, folder=tmp_path)
    assert "the weights before this step are saved in" in str(stop.value) and "\n" not in str(stop.value)
    assert str(stop.value).endswith("2 rows fit: give batch=2, or accumulate=8 to split the same batch")
    assert sizes == [16, 16, 16, 8, 4, 2] and int(load(tmp_path, make).seen) == 2
    model = make()
    history = train(model, tiny.text(), StepBudget(3), replace(settings, accumulate=8), folder=tmp_path / "pieces")
    assert history.step == 3 and sizes[6:] == [2] * 24


def test_another_error_is_not_taken_for_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.bigram()
    model.forward = lambda *arguments: (_ for _ in ()).throw(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1 and mat2") as error:
        train(model, tiny.text(), StepBudget(1), SMALL)
    assert not isinstance(error.value, TrainingStopped)
