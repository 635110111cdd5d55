"""Pictures on the command line: trained, evaluated, compared and drawn; one line for what is wrong."""

import json
from pathlib import Path

import numpy
import pytest
from matplotlib import image

from kinformer.cli.__main__ import run
from kinformer.cli.support.image_generation import write
from kinformer.lab.errors import UserError
from kinformer.members.image_transformer import image_transformer
from tests.cli.test_commands import fails

SMALL = ("d=16", "depth=1", "heads=2")


@pytest.fixture
def data(tmp_path: Path) -> str:
    pixels = numpy.random.default_rng(0).integers(256, size=(30, 4, 4, 3), dtype=numpy.uint8)
    labels = numpy.arange(30) % 10
    numpy.savez(tmp_path / "a.npz", x_train=pixels, y_train=labels, x_test=pixels[:4], y_test=labels[:4])
    return f"images={tmp_path}/a.npz"


def test_a_member_is_trained_on_pictures_measured_and_draws(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, png = str(tmp_path / "run"), tmp_path / "drawn.png"
    common = ["--data", data, "--steps", "3", "--batch", "4", "--out", out]
    assert run(["train", "image_transformer", *SMALL, "upscale=2", "output=logistics", *common]) == 0
    assert "bits per dimension on 3 images of valid" in capsys.readouterr().out
    assert run(["evaluate", out, "--data", data, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["count"] == 4 * 48 and report["metric"]["name"] == "bits per dimension"
    assert run(["generate", out, "--enlarge", data, "--pictures", "2", "--out", str(png)]) == 0
    assert image.imread(png).shape[2] in (3, 4)
    fails(capsys, ["generate", out], "this model generates pictures, but --out is missing. Give --out FILE.png")
    fails(capsys, ["generate", out, "--out", "drawn.jpg"], "got drawn.jpg, expected a name that ends with .png")
    fails(capsys, ["generate", out, "--out", str(png)], "enlarges pictures, but --enlarge is missing. Give --enlarge")
    options = ["--enlarge", data, "--out", str(png)]
    few = f"got 4 pictures [C H W] of (3, 4, 4) in the test split of {data}, expected at least 5 of (3, 4, 4)"
    fails(capsys, ["generate", out, *options, "--pictures", "5"], few)
    fails(capsys, ["generate", out, *options, "--prompt", "a"], "this model generates pictures and reads no prompt")


@pytest.mark.prove
def test_members_are_compared_on_pictures(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = ", ".join(SMALL)
    members = [f"image_transformer({small})", f"image_transformer({small}, form=2d)"]
    out = tmp_path / "compared"
    assert run(["compare", *members, "--data", data, "--steps", "2", "--batch", "2", "--out", str(out)]) == 0
    entries = json.loads((out / "results.json").read_text())["members"]
    assert all(entry["bits_per_dimension"] > 7 for entry in entries) and (out / "report.html").is_file()
    assert all(entry["lengths"] == [] for entry in entries)


def test_a_model_that_enlarges_nothing_says_so_before_pictures_are_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"this model does not enlarge pictures\. Leave out --enlarge"):
        write(image_transformer((1, 4, 4), d=16, depth=1, heads=2), tmp_path / "a.png", 1, "images=nowhere", None, 0)


def test_a_member_that_knows_classes_draws_one_of_them(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, png = str(tmp_path / "run"), tmp_path / "drawn.png"
    common = ["--data", data, "--steps", "1", "--batch", "2", "--out", out]
    fails(
        capsys,
        ["train", "image_transformer", *SMALL, "classes=2", *common],
        "make classes larger than the highest label",
    )
    assert run(["train", "image_transformer", *SMALL, "output=logistics", "classes=10", *common, "--overwrite"]) == 0
    assert run(["generate", out, "--label", "9", "--pictures", "1", "--out", str(png)]) == 0
    capsys.readouterr()
    assert run(["generate", out, "--pictures", "2", "--out", str(png), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(png), "pictures": 2, "shape": [3, 4, 4]}
    fails(capsys, ["generate", out, "--out", str(tmp_path / "no" / "a.png")], "there is no file or folder")
    fails(
        capsys,
        ["generate", out, "--label", "10", "--out", str(png)],
        "got 10, expected a class from 0 to 9. Give one of these",
    )
