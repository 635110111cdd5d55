"""A trained forecaster keeps its columns: their names, and the means and deviations by which later files are read."""

import csv
import json
import re
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.cli.__main__ import run
from kinformer.core.batch import SeriesWindows
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support.dates import calendar
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.fit import fit
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
from kinformer.members.informer import informer
from tests.cli.test_commands import fails

SIZES = ["context=8", "label=4", "horizon=3", "d=16", "depth=1", "heads=2", "hidden=16", "factor=1"]
BEGIN, ROWS, MORE = datetime(2024, 1, 1), 60, 90
LEVELS, MOVES = numpy.array([1e6, 50.0, -3.0]), numpy.array([1.0, 9.0, 0.5])
EVERY = numpy.random.default_rng(0).normal(size=(MORE, 3)) * MOVES + LEVELS
EVERY[ROWS:] = EVERY[ROWS:] * 3 + 7  # later rows have another mean and deviation
DATES = [BEGIN + n * timedelta(hours=6) for n in range(MORE + 3)]


def written(path: Path, columns: dict[str, Any], date: str = "%d.%m.%Y %H:%M") -> str:
    """A series of these columns, with dates."""
    rows = list(zip(*columns.values(), strict=True))
    dated = ([f"{at:{date}}", *row] for at, row in zip(DATES[: len(rows)], rows, strict=True))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["at", *columns], *dated])
    return f"series={path}"


def columns(rows: int, names: str = "abc") -> dict[str, Any]:
    return {name: EVERY[:rows, "abc".index(name)].tolist() for name in names}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of b and c, from b, c and a, that learned from the first rows."""
    folder = tmp_path_factory.mktemp("trained")
    spec = written(folder / "first.csv", columns(ROWS)) + ",target=b+c"
    words = ["train", "informer", *SIZES, "--data", spec, "--steps", "3", "--batch", "2", "--out", f"{folder}/run"]
    assert run(words) == 0
    return f"{folder}/run"


def rows_of(path: Path) -> tuple[list[str], list[list[str]]]:
    names, *rows = csv.reader(path.read_text().splitlines())
    return names, rows


def forecast(folder: str, spec: str, out: Path) -> list[list[float]]:
    assert run(["forecast", folder, "--data", spec, "--out", str(out)]) == 0
    names, rows = rows_of(out)
    assert names == ["at", "b", "c"]
    return [list(map(float, row[1:])) for row in rows]


def scales() -> tuple[numpy.ndarray, numpy.ndarray]:
    """Of a, b and c in the first 60% of the rows that the model learned from."""
    learned = EVERY[: round(0.6 * ROWS)]
    return learned.mean(0), learned.std(0)


def standardized(order: list[int]) -> numpy.ndarray:
    mean, deviation = scales()
    return ((EVERY - mean) / deviation)[:, order].astype(numpy.float32)


def expected(folder: str) -> numpy.ndarray:
    """What the weights say after the last of all rows, by hand: windows by the scale of the training, a first."""
    values = torch.from_numpy(standardized([0, 1, 2])[-8:])
    batch = SeriesWindows(torch.cat([values, torch.zeros(3, 3)])[None], calendar(DATES[MORE - 8 : MORE + 3])[None])
    with torch.inference_mode():
        forecast = load(folder).forecast(batch)[0].double().numpy()
    mean, deviation = scales()
    return forecast * deviation[1:] + mean[1:]


def without_columns(trained: str, folder: Path) -> str:
    """A copy of a run as earlier versions kept it, without names and scales of its columns."""
    old = folder / "old"
    old.mkdir()
    config = json.loads(Path(trained, "config.json").read_text())
    del config["columns"]
    (old / "config.json").write_text(json.dumps(config))
    (old / "model.safetensors").write_bytes(Path(trained, "model.safetensors").read_bytes())
    return str(old)


@pytest.mark.parametrize("names", ["abc", "cab", "bca"])
def test_a_longer_file_is_forecast_by_the_scale_of_the_training_and_columns_by_name(
    names: str, trained: str, tmp_path: Path
) -> None:
    spec = written(tmp_path / "a.csv", {**columns(MORE, names), "other": numpy.arange(MORE) ** 2})
    assert numpy.allclose(forecast(trained, spec, tmp_path / "x.csv"), expected(trained), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [8, 9, 30])
def test_the_last_rows_of_a_file_are_enough_for_the_same_forecast(rows: int, trained: str, tmp_path: Path) -> None:
    spec, out = written(tmp_path / "a.csv", columns(MORE)), tmp_path / "x.csv"
    header, *lines = (tmp_path / "a.csv").read_text().splitlines()
    (tmp_path / "a.csv").write_text("\n".join([header, *lines[-rows:]]))
    assert numpy.allclose(forecast(trained, spec, out), expected(trained), rtol=1e-6, atol=1e-6)
    assert [row[0] for row in rows_of(out)[1]] == [f"{at:%d.%m.%Y %H:%M}" for at in DATES[MORE:]]


@pytest.mark.parametrize("rows", [2, 7])
def test_fewer_rows_than_the_context_are_refused_by_their_number(
    rows: int, trained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = written(tmp_path / "a.csv", columns(rows))
    words = ["forecast", trained, "--data", spec, "--out", str(tmp_path / "x.csv")]
    fails(capsys, words, f"is too short to forecast from: got {rows} rows, expected at least 8, the context of the")


def test_a_short_file_says_how_many_rows_a_split_needs(
    trained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 18 rows 11 are train, 3 valid and 4 test; of 12 rows 7, 3 and 2."""
    enough, short = (written(tmp_path / f"{rows}.csv", columns(rows)) for rows in (18, 12))
    says = f"train of {short} is too short: got 7 rows, expected at least 11. Give more rows, or a smaller context or"
    train = ["train", "informer", *SIZES, "--steps", "1", "--batch", "2", "--out", str(tmp_path / "run")]
    for words in (["evaluate", trained], ["forecast", trained, "--out", str(tmp_path / "f.png")], train):
        fails(capsys, [*words, "--data", short], says)
        assert run([*words, "--data", enough]) == 0


@pytest.mark.parametrize("name", ["i", "index"])
@pytest.mark.parametrize("target", ["", "x"])
def test_a_run_of_row_numbers_reads_them_by_name(name: str, target: str, tmp_path: Path) -> None:
    """The forecast of a file whose column counts rows is that of the same file with the column asked for."""
    rows = "".join(f"{n},{value!r}\n" for n, value in enumerate(EVERY[:, 1].tolist()))
    (tmp_path / "a.csv").write_text(f"{name},x\n{rows}")
    whole, run_folder, outs = f"series={tmp_path / 'a.csv'}", str(tmp_path / "run"), []
    selected = f"{whole},columns={name}+x" + f",target={target}" * bool(target)
    assert (
        run(["train", "informer", *SIZES, "--data", selected, "--steps", "2", "--batch", "2", "--out", run_folder]) == 0
    )
    for spec in (selected, whole):
        outs.append(tmp_path / f"{len(outs)}.csv")
        assert run(["forecast", run_folder, "--data", spec, "--out", str(outs[-1])]) == 0
        assert run(["evaluate", run_folder, "--data", spec]) == 0
    names, rows_ahead = rows_of(outs[1])
    assert names == ([target] if target else [name, "x"]) and len(rows_ahead) == 3
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_errors_of_another_file_are_told_in_the_unit_of_the_training(
    trained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = written(tmp_path / "a.csv", columns(MORE, "cba"))
    capsys.readouterr()
    assert run(["evaluate", trained, "--data", spec, "--json"]) == 0
    report, whole = json.loads(capsys.readouterr().out), standardized([0, 1, 2])
    first = round(0.8 * MORE)
    model, errors, naive = load(trained), [], []
    for begin in range(first - 8, MORE - 10):
        batch = SeriesWindows(
            torch.from_numpy(whole[begin : begin + 11])[None], calendar(DATES[begin : begin + 11])[None]
        )
        with torch.inference_mode():
            forecast = model.forecast(batch)[0].numpy()
        actual = whole[begin + 8 : begin + 11, 1:]
        errors.append((forecast - actual) ** 2)
        naive.append((whole[begin + 4 : begin + 7, 1:] - actual) ** 2)  # the day before
    assert report["value"] == pytest.approx(numpy.mean(errors), rel=1e-4)
    assert report["levels"]["seasonal naive"] == pytest.approx(numpy.mean(naive), rel=1e-4)


def test_errors_of_days_stand_beside_those_of_the_week_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = EVERY[:, 2]
    rows = "".join(f"{BEGIN + n * timedelta(days=1):%Y-%m-%d},{value!r}\n" for n, value in enumerate(values.tolist()))
    (tmp_path / "a.csv").write_text(f"date,x\n{rows}")
    run_folder, spec = str(tmp_path / "run"), f"series={tmp_path / 'a.csv'}"
    assert run(["train", "informer", *SIZES, "--data", spec, "--steps", "1", "--batch", "2", "--out", run_folder]) == 0
    capsys.readouterr()
    assert run(["evaluate", run_folder, "--data", spec, "--json"]) == 0
    levels = json.loads(capsys.readouterr().out)["levels"]
    deviation, begins = values[: round(0.6 * MORE)].std(), range(round(0.8 * MORE), MORE - 2)
    coming = numpy.array([values[begin : begin + 3] for begin in begins])
    week = numpy.array([values[begin - 7 : begin - 4] for begin in begins])
    last = numpy.array([[values[begin - 1]] * 3 for begin in begins])
    assert list(levels) == ["least squares", "last row", "seasonal naive"]
    for name, naive in (("last row", last), ("seasonal naive", week)):
        assert levels[name] == pytest.approx(numpy.square((coming - naive) / deviation).mean(), rel=1e-4)


def test_columns_that_are_missing_or_twice_and_other_targets_are_refused(
    trained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    series = columns(MORE)
    other = written(tmp_path / "other.csv", {"a": series["a"], "b": series["b"], "d": series["c"]})
    whole = written(tmp_path / "whole.csv", columns(MORE))
    twice = written(tmp_path / "twice.csv", {**columns(MORE), "x": series["a"]})
    text = (tmp_path / "twice.csv").read_text()
    (tmp_path / "twice.csv").write_text(text.replace("x", "b", 1))
    for spec, says in (
        (other, "lacks columns of numbers that this informer was trained on: got a, b, d, expected c too"),
        (f"{whole},columns=a+b", "got a, b, expected c too. Give a file, and columns="),
        (twice, "cannot be selected by name: got several columns 'b', expected one"),
        (f"{whole},target=a", "has other targets than this informer: got a, expected b+c. Leave out target="),
    ):
        fails(capsys, ["forecast", trained, "--data", spec, "--out", str(tmp_path / "x.csv")], says)
        fails(capsys, ["evaluate", trained, "--data", spec], says)


def test_a_run_of_an_earlier_version_reads_by_the_file_and_says_so_once(
    trained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that has no names and scales: columns by their order, and the scale of the first 60% of the file."""
    old = without_columns(trained, tmp_path)
    spec = written(tmp_path / "a.csv", columns(MORE)) + ",target=b+c"
    capsys.readouterr()
    actual = forecast(old, spec, tmp_path / "x.csv")
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 1 and "has no stored names and scales of columns" in warned[0]
    learned = EVERY[: round(0.6 * MORE)]
    values = torch.from_numpy(((EVERY - learned.mean(0)) / learned.std(0))[-8:].astype(numpy.float32))
    batch = SeriesWindows(torch.cat([values, torch.zeros(3, 3)])[None], calendar(DATES[MORE - 8 : MORE + 3])[None])
    with torch.inference_mode():
        predicted = load(old).forecast(batch)[0].double().numpy()
    assert numpy.allclose(actual, predicted * learned.std(0)[1:] + learned.mean(0)[1:], rtol=1e-6, atol=1e-6)
    assert run(["evaluate", old, "--data", spec, "--split", "all"]) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 1


def test_damaged_columns_of_a_folder_are_one_line(trained: str, tmp_path: Path) -> None:
    config = json.loads(Path(trained, "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(Path(trained, "model.safetensors").read_bytes())
    saved_columns = config["columns"]
    assert saved_columns["names"] == ["a", "b", "c"]
    for wrong in (
        {**saved_columns, "mean": saved_columns["mean"][1:]},
        {**saved_columns, "deviation": [0.0] * 3},
        {"names": saved_columns["names"]},
        saved_columns["names"],
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, "columns": wrong}))
        with pytest.raises(
            CheckpointError, match=r"config.json is damaged: got columns=.*expected lists of equal leng"
        ):
            load(tmp_path)


def test_a_series_far_from_zero_that_moves_by_little_keeps_its_digits(tmp_path: Path) -> None:
    """All that float32 tells apart is written: every number is the exact one that was restored."""
    level = 1e6 + numpy.sin(numpy.arange(ROWS))
    spec = written(tmp_path / "a.csv", {"x": level.tolist()})
    words = ["train", "informer", *SIZES, "--data", spec, "--steps", "1", "--batch", "2", "--out", f"{tmp_path}/run"]
    assert run(words) == 0
    assert run(["forecast", f"{tmp_path}/run", "--data", spec, "--out", f"{tmp_path}/x.csv"]) == 0
    learned = level[: round(0.6 * ROWS)]
    values = torch.from_numpy(((level - learned.mean()) / learned.std())[-8:, None].astype(numpy.float32))
    batch = SeriesWindows(torch.cat([values, torch.zeros(3, 1)])[None], calendar(DATES[ROWS - 8 : ROWS + 3])[None])
    with torch.inference_mode():
        predicted = load(tmp_path / "run").forecast(batch)[0, :, 0].double().numpy()
    actual = numpy.array([float(row[1]) for row in rows_of(tmp_path / "x.csv")[1]])
    assert numpy.allclose((actual - learned.mean()) / learned.std(), predicted, atol=1e-6)


@pytest.mark.parametrize("date", ["%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d %H:%M"])
def test_forecasts_can_be_appended_to_their_file(date: str, trained: str, tmp_path: Path) -> None:
    spec, out = written(tmp_path / "a.csv", columns(MORE), date), tmp_path / "x.csv"
    forecast(trained, spec, out)
    assert [row[0] for row in rows_of(out)[1]] == [f"{at:{date}}" for at in DATES[MORE:]]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_no_half_file_and_the_retry_works(
    trained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, out = written(tmp_path / "a.csv", columns(MORE)), tmp_path / "x.csv"
    words = ["forecast", trained, "--data", spec, "--out", str(out)]
    with full_disk(40):
        fails(capsys, words, f"cannot write {out}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv"]
    assert run(words) == 0 and re.match(r"at,b,c\n", out.read_text())


SHUFFLED = {**columns(MORE, "cab"), "other": numpy.arange(MORE) ** 2}


def train_from(start: str, spec: str, out: Path, *options: str, steps: int = 2) -> dict[str, torch.Tensor]:
    """The weights of a short training from the weights in a folder."""
    words = ["train", "informer", *SIZES, "--data", spec, "--batch", "2", "--steps", str(steps)]
    assert run([*words, "--out", str(out), "--from", start, *options]) == 0
    return dict(load(out).state_dict())


def equal(weights: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return weights.keys() == other.keys() and all(torch.equal(weights[name], other[name]) for name in weights)


def has_first_scales(folder: Path) -> bool:
    """Does a run have the names and the scales of the first training?"""
    saved, (mean, deviation) = load(folder).columns, scales()
    return saved.names == ("a", "b", "c") and all(map(numpy.allclose, saved[1:], (mean, deviation)))


def test_a_training_from_weights_reads_columns_by_their_names_and_scales(trained: str, tmp_path: Path) -> None:
    """The same weights as from a file in the order of the first training, and as from Python."""
    ordered, other = (
        written(tmp_path / f"{name}.csv", series) for name, series in (("abc", columns(MORE)), ("cab", SHUFFLED))
    )
    weights = train_from(trained, other, tmp_path / "cab")
    assert has_first_scales(tmp_path / "cab")
    assert equal(weights, train_from(trained, f"{ordered},target=b+c", tmp_path / "abc"))
    model = load(trained)
    fit(model, other, steps=2, batch=2, length=128)
    assert equal(weights, dict(model.state_dict()))


def test_every_phase_from_weights_reads_columns_by_their_names_and_scales(trained: str, tmp_path: Path) -> None:
    ordered, other = (
        written(tmp_path / f"{name}.csv", series) for name, series in (("abc", columns(MORE)), ("cab", SHUFFLED))
    )
    weights = train_from(trained, other, tmp_path / "cab", "--then", "steps=1")
    assert has_first_scales(tmp_path / "cab" / "phase-1") and has_first_scales(tmp_path / "cab")
    assert equal(weights, train_from(trained, f"{ordered},target=b+c", tmp_path / "abc", "--then", "steps=1"))
    shutil.rmtree(tmp_path / "cab" / "trainer")  # as if it had been killed before the last phase first saved
    repeated = train_from(trained, other, tmp_path / "cab", "--then", "steps=1", "--resume")
    assert equal(weights, repeated)


def test_a_training_from_weights_of_a_missing_column_is_refused(
    trained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    series = columns(MORE)
    spec = written(tmp_path / "other.csv", {"a": series["a"], "b": series["b"], "d": series["c"]})
    words = ["train", "informer", *SIZES, "--data", spec, "--steps", "1", "--out", str(tmp_path / "x"), "--from"]
    for options in ([], ["--then", "steps=1"]):
        fails(capsys, [*words, trained, *options], "numbers that it was trained on: got a, b, d, expected c too")
    assert not (tmp_path / "x").exists()


def test_a_training_from_weights_without_columns_takes_the_order_and_scale_of_its_file(
    trained: str, tmp_path: Path
) -> None:
    old = without_columns(trained, tmp_path)
    spec = written(tmp_path / "a.csv", columns(MORE, "cab")) + ",target=b+a"
    train_from(old, spec, tmp_path / "run")
    saved, learned = load(tmp_path / "run").columns, EVERY[: round(0.6 * MORE), [2, 1, 0]]
    assert saved.names == ("c", "b", "a")
    assert numpy.allclose(saved.mean, learned.mean(0)) and numpy.allclose(saved.deviation, learned.std(0))


def test_a_training_that_goes_on_keeps_the_scales_that_it_began_with(trained: str, tmp_path: Path) -> None:
    """A fresh model goes on to the weights of a training that never stopped, though it has no columns of its own."""
    spec, settings = written(tmp_path / "cab.csv", SHUFFLED), Settings(batch=2, measures=1)
    whole = load(trained)
    train(whole, read_spec(spec), StepBudget(4), settings)
    train(load(trained), read_spec(spec), StepBudget(4), settings, folder=tmp_path / "run", until=0.5)
    sizes = dict(word.split("=") for word in SIZES)
    fresh = informer(**{name: int(size) for name, size in sizes.items()}, channels=3, targets=2, calendar=5)
    fit(fresh, spec, steps=4, batch=2, measures=1, length=256, out=tmp_path / "run", resume=True)
    assert has_first_scales(tmp_path / "run") and equal(dict(fresh.state_dict()), dict(whole.state_dict()))


def test_a_command_goes_on_by_the_columns_of_its_run(trained: str, tmp_path: Path) -> None:
    """The folder that it started from is named no more."""
    spec, flat = written(tmp_path / "cab.csv", SHUFFLED), ["--schedule", "constant", "--warmup", "0"]
    whole = train_from(trained, spec, tmp_path / "whole", *flat, steps=4)
    train_from(trained, spec, tmp_path / "parts", *flat)
    words = ["train", "informer", *SIZES, "--data", spec, "--batch", "2", "--steps", "4", *flat]
    assert run([*words, "--out", f"{tmp_path}/parts", "--resume"]) == 0
    assert has_first_scales(tmp_path / "parts") and equal(whole, dict(load(tmp_path / "parts").state_dict()))
