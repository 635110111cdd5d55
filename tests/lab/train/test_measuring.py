"""What is measured is the same whoever asks, on a slow machine too; how often it is keeps to a quarter of the time."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file

from kinformer.cli.__main__ import run
from kinformer.cli.support.training import prepare
from kinformer.lab.data.resolve import resolve
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.data.text import TextData
from kinformer.lab.train import evaluate as module
from kinformer.lab.train.budget import MinuteBudget, StepBudget
from kinformer.lab.train.evaluate import SHARE, evaluate, settle_measuring
from kinformer.lab.train.fit import fit
from kinformer.lab.train.history import History
from kinformer.lab.train.settings import SAMPLE, Settings
from tests.cli.test_commands import BIGRAM
from tests.lab.train import tiny


def text(size: int = 100_000) -> TextData:
    tokens = torch.from_numpy(numpy.random.default_rng(0).integers(256, size=size)).to(torch.uint8)
    return TextData("noise", tokens, tokens, tokens)


@pytest.mark.parametrize("steps", [1, 30, 300, 3_000, 30_000])
@pytest.mark.parametrize("size", [3_000, 100_000])
def test_a_number_of_steps_looks_at_no_clock(steps: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked() -> float:
        raise AssertionError("the clock was looked at")

    monkeypatch.setattr(module, "monotonic", looked)
    settings, size = Settings(batch=16, length=256), min(size, SAMPLE)
    result = settle_measuring([tiny.bigram()], text(size), StepBudget(steps), settings)
    assert result == replace(settings, valid_bytes=SAMPLE, measures=result.measures)
    # a byte that is measured counts as half of one that is learned from
    allowed = SHARE * 2 * steps * settings.batch * settings.length
    assert result.measures == 1 or result.measures * size <= allowed
    assert result.measures == settings.measures or (result.measures + 1) * size > allowed


@pytest.mark.parametrize("speed", [1.0, 2_000.0, 30_000.0, 1e9])
def test_minutes_are_shared_by_the_slowest(speed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [tiny.bigram(), tiny.bigram()]
    speeds = {id(models[0]): 2e9, id(models[1]): speed}
    monkeypatch.setattr(module, "_speed", lambda model, text, length: speeds[id(model)])
    result = settle_measuring(models, text(), MinuteBudget(3), Settings())
    assert result == settle_measuring(models[1:], text(), MinuteBudget(3), Settings())
    assert result.valid_bytes == SAMPLE, "the same bytes on a fast machine and on a slow one"
    allowed = SHARE * 180 * speed
    assert result.measures == min(max(int(allowed / SAMPLE), 1), Settings().measures)


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and another to watch that changes on its way and has more bytes than are measured."""
    folder, rng = tmp_path_factory.mktemp("measured"), numpy.random.default_rng(1)
    (folder / "a").write_bytes(b"abcdefgh" * 500)
    letters = [rng.integers(97, 98 + n // 10_000, size=10_000) for n in range(0, 150_000, 10_000)]
    (folder / "b").write_bytes(numpy.concatenate(letters).astype(numpy.uint8).tobytes())
    return folder


def test_train_fit_compare_and_a_resume_measure_the_same_bytes(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is judged by the weights that it kept: the bytes are cut by hand here, a kilobyte every so often."""
    monkeypatch.setattr("kinformer.lab.train.settings.SAMPLE", 8_192)
    words = ["--data", f"text={where}/a", "--valid", f"{where}/b", "--batch", "2", "--length", "64"]
    assert run(["train", BIGRAM, *words, "--out", f"{tmp_path}/train", "--steps", "30"]) == 0
    assert run(["train", BIGRAM, *words, "--out", f"{tmp_path}/train", "--steps", "40", "--resume"]) == 0
    job = prepare(resolve(f"text={where}/a"), 40, None, valid=f"{where}/b", batch=2, length=64).fix_measurements(
        [tiny.bigram()]
    )
    assert job.settings.sample_bytes == job.valid_bytes == 8_192, "what each member of a comparison is measured by"
    torch.manual_seed(0)
    model, spec = tiny.bigram(), {"data": f"text={where}/a", "valid": f"{where}/b"}
    fit(model, **spec, batch=2, length=64, steps=40, out=tmp_path / "fit")  # type: ignore[arg-type]
    data, count = (where / "b").read_bytes(), -(-150_000 // 1024)
    golden = sorted(range(count), key=lambda n: n * ((5**0.5 - 1) / 2) % 1)[:9]
    pieces = {n: data[150_000 * n // count : 150_000 * (n + 1) // count] for n in golden}
    over = sum(map(len, pieces.values())) - 8_192
    assert 0 <= over < 1024
    pieces[golden[-1]] = pieces[golden[-1]][: len(pieces[golden[-1]]) - over]
    cut = [pieces[n] for n in sorted(pieces)]
    begins = torch.tensor([0, *map(len, cut[:-1])]).cumsum(0)
    part = SplitTokens(torch.tensor(list(b"".join(cut)), dtype=torch.uint8), begins)
    for folder in (tmp_path / "train", tmp_path / "fit"):
        points = History.read(folder, (folder / "metrics.jsonl").stat().st_size).points
        loaded = tiny.bigram()
        loaded.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        assert points[-1].valid == pytest.approx(evaluate(loaded, part, 64).value, rel=1e-6), folder


@pytest.mark.parametrize("kind", ["labelled", "pairs", "images"])
def test_rows_that_are_measured_are_from_all_over(kind: str, tmp_path: Path) -> None:
    """Rows in the order of their labels: a tenth of them has a tenth of each label, and more bytes have these too."""
    labels = [n // 100 for n in range(1000)]
    if kind == "images":
        pixels, of = numpy.zeros((10_000, 2, 2), numpy.uint8), numpy.repeat(numpy.arange(10), 1000)
        pixels[9000:, 0, 0] = labels
        numpy.savez(tmp_path / "a.npz", x_train=pixels, y_train=of, x_test=pixels, y_test=of)
        data, size = read_spec(f"images={tmp_path}/a.npz"), 4
    else:
        for name in "ab":
            rows = (f"{name if kind == 'pairs' else ''}{label}\t{name}{n:03}\n" for n, label in enumerate(labels))
            (tmp_path / name).write_text("".join(rows))
        data, size = read_spec(f"{kind}={tmp_path}/a", valid=f"{tmp_path}/b"), 6 if kind == "pairs" else 4
    model: Any = type("Any", (), {"reads": kind})()
    rows_by_limit = []
    for limit in (100 * size, 250 * size):
        batches = data.stream(model, 2, 64, 0, limit).validation_batches  # type: ignore[union-attr]
        rows, targets = (torch.cat([batch[side] for batch in batches]) for side in (0, 1))
        classes = (targets if kind == "labelled" else rows[:, 1] - 48 if kind == "pairs" else rows[:, 0, 0, 0]).tolist()
        assert len(classes) == limit // size and classes == sorted(classes)
        assert all(abs(classes.count(label) - len(classes) / 10) <= 2 for label in range(10))
        rows_by_limit.append({tuple(row.flatten().tolist()) for row in rows})
    assert rows_by_limit[0] <= rows_by_limit[1]


def test_the_speed_is_that_of_measuring() -> None:
    model, slept = tiny.bigram(), 0.02

    def late(*arguments: Any) -> None:
        time.sleep(slept)

    model.register_forward_pre_hook(late)
    judge = model.judge
    model.judge = lambda *arguments: (late(), judge(*arguments))[1]  # type: ignore[method-assign]
    assert 0 < module._speed(model, text(3_000), 1_000) < 3_000 / slept


def test_bytes_that_are_given_stay() -> None:
    settings = Settings(valid_bytes=100, measures=4)
    assert settle_measuring([tiny.bigram()], text(), StepBudget(3), settings) is settings
