"""Constant columns, and numbers that narrower ones do not tell apart: guarded, refused or said, never changed."""

from pathlib import Path
from typing import Any

import h5py
import numpy
import pytest
import torch

from kinformer.lab.data.offline import EpisodeData
from kinformer.lab.data.series import SeriesData
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support.safe_scales import refuse_flattened, scales
from kinformer.members.informer import TINY, informer

CHANCE = numpy.random.default_rng(0)
ROUNDED = numpy.where(numpy.arange(200) % 2, 0.3, 0.1 + 0.2)  # which differ by the last digit of float64


def test_deviations_are_what_one_computes_and_1_where_there_is_rounding_alone() -> None:
    columns = numpy.stack([CHANCE.normal(3, 2, 200), ROUNDED, numpy.full(200, 7.0), 1e9 + numpy.arange(200) % 2], 1)
    deviations, constant = scales(torch.from_numpy(columns))
    assert constant.tolist() == [False, True, True, False]
    assert deviations.tolist() == pytest.approx([columns[:, 0].std(), 1, 1, 0.5])
    deviations, constant = scales(torch.from_numpy(columns).float())
    assert constant.tolist() == [False, True, True, True], "in float32 these differ by rounding"


def test_a_column_of_a_series_that_differs_by_rounding_alone_is_said_and_not_divided(tmp_path: Path) -> None:
    """Behind train it moves, and the errors of forecasts stay of the order of its numbers."""
    load, flat = CHANCE.normal(3, 2, 200), ROUNDED.copy()
    flat[170:] += 1
    rows = (f"{a!r},{b!r},4\n" for a, b in zip(load.tolist(), flat.tolist(), strict=True))
    (tmp_path / "a.csv").write_text("load,flat,four\n" + "".join(rows))
    data = read_spec(f"series={tmp_path}/a.csv")
    assert isinstance(data, SeriesData) and data.split.endswith(", by time; constant in train: flat, four")
    assert data.scale[1].tolist() == pytest.approx([load[:120].std(), 1, 1])
    model = informer(**{**TINY, "channels": 3, "targets": 3, "context": 8})
    assert all(value < 10 for value in data.levels(model, "test", 1, 1 << 20).values())
    assert data.unscale(data.test.values).numpy() == pytest.approx(numpy.stack([load, flat, flat * 0 + 4], 1), abs=1e-5)


def offline(folder: Path, **changes: Any) -> str:
    size, each = 400, 8
    arrays = {
        "obs": CHANCE.normal(size=(size, 3)),
        "actions": CHANCE.integers(0, 3, size),
        "rewards": CHANCE.normal(size=size),
        "episode_starts": numpy.arange(size) % each == 0,
    }
    numpy.savez(folder / "a.npz", **{**arrays, **changes})
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number in range(size // each):
            group, at = file.create_group(f"episode_{number}"), slice(number * each, (number + 1) * each)
            group["observations"], group["actions"], group["rewards"] = (
                {**arrays, **changes}[name][at] for name in ("obs", "actions", "rewards")
            )
    return f"offline={folder}/a.npz"


@pytest.mark.parametrize("kind", ["a.npz", "main_data.hdf5"])
def test_numbers_that_float32_does_not_tell_apart_are_refused(tmp_path: Path, kind: str) -> None:
    near = 1e9 + CHANCE.integers(-1, 2, (400, 3)).astype(float)
    first = CHANCE.normal(size=(400, 3))
    for changes, place in (
        ({"obs": near}, "column 0 of observations: got 999999999 to 1000000001"),
        ({"obs": near.astype(numpy.int64)}, "column 0 of observations"),
        ({"obs": numpy.concatenate([first, near], 1)}, "column 3 of observations"),
        ({"actions": near[:, :2] + 0.25}, "column 0 of actions"),
        ({"rewards": near[:, 0]}, "rewards: got"),
    ):
        offline(tmp_path, **changes)
        with pytest.raises(ValueError, match=f"{kind}: float32 cannot .* of {place}.*. Subtract") as caught:
            read_spec(f"offline={tmp_path}/{kind}")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["a.npz", "main_data.hdf5"])
def test_kinds_of_actions_that_are_stored_as_numbers_are_refused(tmp_path: Path, kind: str) -> None:
    for dtype in (numpy.float32, numpy.float64):
        offline(tmp_path, actions=CHANCE.integers(0, 3, 400).astype(dtype))
        with pytest.raises(ValueError, match=rf"has actions {dtype.__name__}\[400\] that are all whole numbers; store"):
            read_spec(f"offline={tmp_path}/{kind}")
    for actions, kinds in ((CHANCE.normal(size=400), 1), (CHANCE.integers(0, 3, (400, 1)).astype(float), 1)):
        offline(tmp_path, actions=actions)
        data = read_spec(f"offline={tmp_path}/{kind}")
        assert isinstance(data, EpisodeData) and not data.discrete and data.actions == kinds


def test_constant_numbers_of_observations_are_said(tmp_path: Path) -> None:
    observations = CHANCE.normal(size=(400, 3))
    observations[:, 1], observations[:, 2] = 1e9, ROUNDED[0]
    data = read_spec(offline(tmp_path, obs=observations))
    assert isinstance(data, EpisodeData) and data.scales.deviation[1:].tolist() == [1, 1]
    assert data.split.endswith("; 2 of 3 numbers of an observation are constant in train")


def test_sets_and_labels_of_images_are_not_changed(tmp_path: Path) -> None:
    near, plain = 1e9 + CHANCE.integers(-1, 2, (50, 4, 2)).astype(float), CHANCE.normal(size=(50, 4, 2))
    for elements, answers, place in ((near, plain[:, 0, 0], "column 0 of elements"), (plain, near[:, 0, 0], "answers")):
        numpy.savez(tmp_path / "a.npz", elements=elements, answers=answers)
        with pytest.raises(ValueError, match=f"float32 cannot tell apart the values of {place}: got"):
            read_spec(f"sets={tmp_path}/a.npz")
    pixels, labels = numpy.zeros((20, 3, 3), numpy.uint8), numpy.arange(20) / 2
    numpy.savez(tmp_path / "b.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    with pytest.raises(ValueError, match=r"train of .* has invalid labels: got 0.5, expected integers. Number"):
        read_spec(f"images={tmp_path}/b.npz")
    numpy.savez(tmp_path / "b.npz", x_train=pixels, y_train=labels * 2, x_test=pixels, y_test=labels * 2)
    assert read_spec(f"images={tmp_path}/b.npz").train[1].tolist() == list(range(18))  # type: ignore[attr-defined]


@pytest.mark.parametrize("offset", [0, 1e3, 1e5, 1e7, 1e9, 1e11])
def test_what_is_refused_is_what_float32_would_round(offset: float) -> None:
    """By its definition: the root of the mean square of the rounding is more than a hundredth of the deviation."""
    numbers = offset + CHANCE.normal(size=(300, 1))
    rounded = numpy.square(numbers.astype(numpy.float32).astype(float) - numbers).mean() ** 0.5 > 0.01 * numbers.std()
    assert rounded == (offset >= 1e7)
    if rounded:
        with pytest.raises(ValueError, match="it: float32 cannot tell apart the values of numbers: got"):
            refuse_flattened("it", "numbers", numbers)
    else:
        refuse_flattened("it", "numbers", numbers)
    refuse_flattened("it", "constant", numpy.full((300, 1), offset + 0.1))
    refuse_flattened("it", "float32 already", numbers.astype(numpy.float32))
