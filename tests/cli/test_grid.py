"""compare --grid: the product of settings and keywords for each member, the best point on test data, and resuming."""

import json
import signal
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinformer.cli.__main__ import run
from kinformer.cli.support.grid import parse_grid
from kinformer.cli.support.trials import DistinctFolders, with_grid
from kinformer.lab.errors import UserError
from kinformer.lab.train.history import History
from kinformer.lab.train.loop import Training
from kinformer.pages.comparison import grid_plots
from tests.cli.test_commands import BIGRAM, QUICK, fails

SMALL = "gpt(depth=1, heads=1, length=8)"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 200 + b"a dog sat on me. " * 20)
    return tmp_path


def compared(*words: str, out: str = "all") -> list[str]:
    return ["compare", *words, "--data", "text=text", *QUICK, "--out", out]


def results(out: str = "all") -> Any:
    return json.loads(Path(out, "results.json").read_text())


def test_every_member_is_trained_at_every_point_and_the_best_one_is_measured_on_test_data(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A keyword, a setting and the length of rows, which is neither the same for training nor for validation."""
    axes = ["--grid", "d=4,8", "--lrs", "3e-2", "--grid", "length=4"]
    members = [SMALL, SMALL.replace("gpt", "linear_transformer")]
    words = ["--data", "text=text", "--batch", "2", "--steps", "12", "--out", "all"]
    assert run(["compare", *members, *axes, *words]) == 0
    captured, report = capsys.readouterr(), results()
    assert "4 trainings of 12 steps each: 0:0" in captured.err and " at the end" in captured.err
    assert report["settings"]["grid"] == {"lr": [0.03], "d": [4, 8], "length": [4]}
    assert report["settings"]["split"] == "test" and report["settings"]["length"] is report["settings"]["lr"] is None
    for row in report["members"]:
        assert len(row["grid"]) == 2 and len({tuple(entry["point"].values()) for entry in row["grid"]}) == 2
        best = min(row["grid"], key=lambda entry: entry["mean"])
        assert row["point"] == best["point"] and row["keywords"]["d"] == best["point"]["d"]
        assert row["lr"] == best["point"]["lr"]
        for entry in row["grid"]:
            place_of = "+".join(f"{name}={value:g}" for name, value in entry["point"].items())
            folder = next(Path("all").glob(f"{row['member']}*/{place_of}"))
            config = json.loads((folder / "config.json").read_text())
            assert (
                config["keywords"]["d"] == entry["point"]["d"] and config["trained_length"] == entry["point"]["length"]
            )
            assert History.read(folder).best.valid == entry["mean"]
    text = captured.out
    assert text.count("*") - 1 == 2, "one star for each member, beside the one in the title"
    assert "A better d may lie outside the grid." in " ".join(text.split()) and "grid.png" in text
    page = Path("all/report.html").read_text()
    assert all(f"{entry['mean']:.3f}" in page for row in report["members"] for entry in row["grid"])
    assert page.count("at each point.") == 2, "the label and the caption of a plot, because one value varies"
    assert Path("all/grid.png").read_bytes().startswith(b"\x89PNG")


def test_a_grid_is_resumed_and_refuses_another_grid(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["--grid", "clip=0.5,1", "--steps", "4"]
    assert run(compared(BIGRAM, *grid, out="whole")) == 0
    step, count = Training.step, 0

    def stop(training: Training, spent: float) -> None:
        nonlocal count
        step(training, spent)
        count += 1
        if count == 6:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", stop)
        assert run(compared(BIGRAM, *grid)) == 128 + signal.SIGTERM
    other = [word.replace("0.5,1", "0.5,2") for word in grid]
    fails(
        capsys,
        [*compared(BIGRAM, *other), "--resume"],
        "got --grid clip=0.5,2, expected --grid clip=0.5,1. Pass --grid",
    )
    fails(
        capsys,
        [*compared(BIGRAM, *grid[2:]), "--resume"],
        "got no --grid clip, expected --grid clip=0.5,1. Pass --grid",
    )
    assert run([*compared(BIGRAM, *grid), "--resume", "--tensorboard"]) == 0
    assert len(list(Path("all").glob("bigram/clip=*/tensorboard/events*"))) == 1, "the one that went on"
    said = capsys.readouterr().err
    assert "bigram clip=1 (2 of 2): continues from step 2" in said and "1 training of 4 steps each: 0:0" in said
    assert results()["members"][0]["grid"] == results("whole")["members"][0]["grid"]


@pytest.mark.prove
def test_a_comparison_of_an_earlier_version_is_resumed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It recorded rates instead of a grid."""
    for options, rates in ((["--lrs", "0.01,0.1"], [0.01, 0.1]), ([], [None])):
        words = [*compared(BIGRAM, "--steps", "2", *options), "--overwrite"]
        assert run(words) == 0
        plan = json.loads(Path("all/comparison.json").read_text())
        assert plan.pop("grid") == ({"lr": ["0.01", "0.1"]} if options else {})
        Path("all/comparison.json").write_text(json.dumps({**plan, "rates": rates}))
        assert run([*words[:-1], "--resume"]) == 0


def test_every_point_has_a_folder_of_its_own() -> None:
    folders = DistinctFolders()
    patterns = ["pattern=Causal() & Band(8)", "pattern=Causal() & ~Band(8)", "pattern=Causal() | Band(8)"]
    names = [folders.of("lr=0.1", pattern) for pattern in patterns]
    assert names[0] == "lr=0.1+pattern=Causal-Band-8" and len(set(names)) == 3
    assert all(name.startswith(f"{names[0]}-") for name in names[1:])
    assert [folders.of("lr=0.1", pattern) for pattern in patterns] == names and folders.of() == ""
    long = [folders.of(*("pattern=" + "é" * 100 for _ in range(3)), word) for word in ("d=1", "d=2")]
    assert len(set(long)) == 2 and all(len(name.encode()) <= 255 for name in long)


def test_a_record_of_rates_is_one_of_a_grid() -> None:
    assert with_grid({"lr": 0.01, "rates": [0.01, 0.1]}) == {"lr": 0.01, "grid": {"lr": ["0.01", "0.1"]}}
    assert with_grid({"lr": None, "rates": [None]}) == {"lr": None, "grid": {}} == with_grid({"lr": None, "grid": {}})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["gpt", "llama", "--grid", "per_layer=true,false"],
            "--grid per_layer: llama has no keyword 'per_layer', but gpt has it",
        ),
        (
            ["gpt", "llama", "--grid", "windw=1,2"],
            "--grid windw: no compared member has a keyword 'windw', and there is no setting",
        ),
        (["longformer_lm", "--grid", "windw=1,2"], "there is no setting of that name; the nearest is 'window'"),
        (["gpt", "--grid", "learning_rate=1,2"], "there is no setting of that name; use 'lr' instead"),
        (["gpt(d=8)", "--grid", "d=8,16"], "--grid d: gpt(d=8) gives d too, expected only one of them"),
        (["gpt", "--grid", "d=8,two"], "the keyword 'd' of 'gpt' must be int, got 'two'"),
        (["gpt", "--grid", "lr"], "wrong --grid: got 'lr', expected NAME=VALUE,VALUE, such as lr=1e-3,3e-3"),
        (
            ["gpt", "--grid", "batch=1.5"],
            "wrong --grid: got '1.5' for batch, expected whole numbers separated by commas",
        ),
        (["gpt", "--grid", "lr=1,2", "--lrs", "1,2"], "got lr twice in --grid and --lrs, expected one list of values"),
        (["gpt", "--grid", "lr=1,2", "--lr", "1"], "got both --lr and --grid lr, expected only one of them"),
        (["gpt", "--grid", "batch=1,2"], "got both --batch and --grid batch, expected only one of them"),
        (["gpt", "--grid", "seed=1,2"], "a grid cannot vary seed: --seeds N trains each point with several seeds"),
        (
            ["gpt", "--grid", "steps=1,2"],
            "a grid cannot vary steps: every training of a comparison has the same budget",
        ),
        (["gpt", "--grid", "schedule=flat"], "schedule"),
        (["gpt", "--grid", "precision=half"], "wrong precision: got 'half'"),
        (["gpt", "--grid", "d=10,7", "--grid", "heads=2"], "d=7 is not a multiple of heads=2"),
    ],
)
def test_a_wrong_grid_is_one_line_before_anything_is_trained(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    fails(capsys, compared(*words, "--steps", "2"), message)
    assert not Path("all").exists()


def test_values_with_commas_have_brackets_and_equal_values_are_one() -> None:
    grid = parse_grid(["betas=(0.9,0.95),(0.9,0.98)", "window=(2,4)", "schedule=linear"], "1e-3,.01", ())
    assert grid.record == {
        "lr": ["0.001", "0.01"],
        "betas": ["(0.9,0.95)", "(0.9,0.98)"],
        "window": ["(2,4)"],
        "schedule": ["linear"],
    }
    first = grid.points[0]
    assert len(grid.points) == 4 and first.settings == {"lr": 0.001, "betas": (0.9, 0.95), "schedule": "linear"}
    assert first.keywords == ["window=(2,4)"] and first.record["lr"] == 0.001 and first.record["window"] == "(2,4)"
    for text in ("lr=1e-3,0.001", "dropout=0.10,0.1"):
        with pytest.raises(UserError, match=r"--grid has the value 0\.(001|1) of (lr|dropout) twice"):
            parse_grid([text], None, ())


def test_a_value_keeps_all_its_digits() -> None:
    grid = parse_grid(["lr=0.00123456789,0.00123456711,1e-3", "eps=1e-08"], None, ())
    assert [point.settings["lr"] for point in grid.points] == [0.00123456789, 0.00123456711, 0.001]
    assert grid.record == {"lr": ["0.00123456789", "0.00123456711", "0.001"], "eps": ["1e-08"]}


def test_operations_are_the_same_for_points_of_another_size(place: Path) -> None:
    assert run(compared(BIGRAM, "--flops", "1e6", "--grid", "d=2,8")) == 0
    steps = {path.parent.name: History.read(path.parent).step for path in Path("all").glob("bigram/*/metrics.jsonl")}
    assert steps["d=2"] > 2 * steps["d=8"] > 0


def test_a_comparison_that_learns_nothing_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(compared(SMALL, "--steps", "20", "--lr", "20", "--grid", "schedule=constant")) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Warning: {SMALL}: " in out and "is not better than a uniform guess (8.000). Train longer, or with a" in out
    assert "is not better than a uniform guess" in Path("all/report.html").read_text()


@pytest.mark.parametrize(
    ("axes", "plots"),
    [
        ({"lr": [1.0, 2.0], "d": [8]}, [("", "lr", ["1", "2"], 1)]),
        ({"lr": [1.0, 2.0], "d": [8, 16]}, [("gpt", "lr", ["1", "2"], 2)]),
        ({"lr": [1.0, 2.0], "d": [8, 16], "e": ["a", "b"]}, [("gpt", "bits per byte", None, 0)]),
        ({"lr": [1.0]}, []),
    ],
)
def test_a_grid_is_drawn_by_the_values_that_vary(axes: dict[str, list[Any]], plots: list[Any]) -> None:
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    grid = [{"point": point, "mean": None if n == 1 else float(n)} for n, point in enumerate(points)]
    row = SimpleNamespace(name="gpt", measures={"bits per byte": 1.0}, grid=grid)
    drawn = list(grid_plots(SimpleNamespace(settings={"grid": axes}, members=[row])))  # type: ignore[arg-type]
    assert len(drawn) == len(plots)
    for plot, (title, xlabel, categories, lines) in zip(drawn, plots, strict=True):
        assert (plot.title, plot.xlabel, len(plot.lines)) == (title, xlabel, lines)
        if categories is None:
            assert len(plot.categories) == len(points) - 1 and plot.categories[0] == "lr=1, d=8, e=a"
        else:
            assert plot.categories == categories
            assert sum(len(line.y) for line in plot.lines) == len(points) - 1, "without the loss that was not finite"
