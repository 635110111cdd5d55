"""`kinformer forecast`."""

import csv
from datetime import datetime, timedelta
from pathlib import Path

import numpy
import pytest
import torch
from matplotlib import image

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.lab.data.series import SeriesData
from kinformer.lab.data.spec import read_spec
from kinformer.members.informer import TINY
from tests.cli.folders import SMALL, folder
from tests.cli.test_commands import fails

SIZES = {name: value for name, value in TINY.items() if name not in SMALL}


def a_series(path: Path, columns: int = 2) -> str:
    values = numpy.random.default_rng(0).normal(50, 9, size=(120, columns))
    rows = [[datetime(2020, 2, 25) + n * timedelta(hours=6), *row] for n, row in enumerate(values)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["at", *"abc"[:columns]], *rows])
    return f"series={path}"


def test_the_rows_that_come_are_in_the_file_s_units_with_their_dates(tmp_path: Path) -> None:
    spec, out = a_series(tmp_path / "a.csv"), tmp_path / "next.csv"
    run_folder = folder(tmp_path / "run", "informer", **{**SIZES, "calendar": 5})
    assert run(["forecast", run_folder, "--data", spec, "--out", str(out)]) == 0
    (names, *rows), data, model = csv.reader(out.read_text().splitlines()), read_spec(spec), load(run_folder)
    assert isinstance(data, SeriesData) and names == ["at", "a", "b"]
    assert [row[0] for row in rows] == ["2020-03-26 00:00:00", "2020-03-26 06:00:00", "2020-03-26 12:00:00"]
    with torch.inference_mode():
        forecast = model.eval().forecast(data.future_window(model))[0]  # type: ignore[attr-defined]
    whole = torch.cat([data.train.rows, data.valid.rows, data.test.rows])
    assert torch.equal(data.future_window(model).values[0, :8], whole[-8:])  # type: ignore[arg-type]
    want = data.unscale(forecast).numpy()
    assert numpy.allclose(numpy.array([row[1:] for row in rows], float), want, rtol=1e-4) and want.mean() > 20


def test_windows_are_drawn_beside_what_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, out = a_series(tmp_path / "a.csv"), tmp_path / "f.png"
    run_folder = folder(tmp_path / "run", "informer", **{**SIZES, "calendar": 5})
    assert run(["forecast", run_folder, "--data", spec, "--out", str(out), "--windows", "2"]) == 0
    assert "mean squared error" in capsys.readouterr().out and image.imread(out)[..., :3].std() > 0


def test_what_cannot_be_forecast_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, run_folder = a_series(tmp_path / "a.csv"), folder(tmp_path / "run", "informer", **{**SIZES, "calendar": 5})
    other, existing = folder(tmp_path / "gpt", "gpt"), str(tmp_path / "a.csv")
    ask = ["forecast", run_folder, "--data", spec, "--out"]
    fails(capsys, [*ask, existing], "a.csv already exists; give another name")
    fails(capsys, [*ask, str(tmp_path / "a.txt")], "expected FILE.csv for the next rows or FILE.png for a picture")
    fails(capsys, ["forecast", other, *ask[2:], str(tmp_path / "b.csv")], "reads text data and cannot forecast")
    wide = a_series(tmp_path / "wide.csv", 3)
    fails(
        capsys,
        ["forecast", run_folder, "--data", wide, "--out", str(tmp_path / "b.csv")],
        "channels=3, but this model has 2",
    )
    fails(capsys, [*ask, str(tmp_path / "none" / "b.csv")], "there is no file or folder")
    fails(capsys, ["forecast", run_folder, "--data", "text=stdlib", "--out", str(tmp_path / "b.csv")], "reads a series")
    for words in (["generate", run_folder, "--prompt", "x"], ["fill", run_folder, "--text", "_"]):
        fails(capsys, words, "forecast with `kinformer forecast DIR --data series=FILE.csv --out next.csv`")


def test_a_target_is_forecast_from_all_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It alone is in the file and in the picture, in its own units, wherever its column stands."""
    spec, out = a_series(tmp_path / "a.csv", 3) + ",target=a", tmp_path / "next.csv"
    run_folder = folder(tmp_path / "run", "informer", **{**SIZES, "channels": 3, "targets": 1, "calendar": 5})
    assert run(["forecast", run_folder, "--data", spec, "--out", str(out)]) == 0
    (names, *rows), data, model = csv.reader(out.read_text().splitlines()), read_spec(spec), load(run_folder)
    assert isinstance(data, SeriesData) and names == ["at", "a"] and data.columns == ("b", "c", "a")
    with torch.inference_mode():
        forecast = model.eval().forecast(data.future_window(model))[0]  # type: ignore[attr-defined, arg-type]
    mean, deviation = data.scale[:, 2]
    assert numpy.allclose(numpy.array([row[1] for row in rows], float), forecast[:, 0] * deviation + mean, rtol=1e-4)
    assert run(["forecast", run_folder, "--data", spec, "--out", str(tmp_path / "f.png"), "--windows", "1"]) == 0
    assert "mean squared error" in capsys.readouterr().out
    other = [*spec.split(",target"), "b.png"]
    fails(
        capsys,
        ["forecast", run_folder, "--data", other[0], "--out", str(tmp_path / other[-1])],
        "has targets=3, but this model has 1",
    )
