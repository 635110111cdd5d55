"""Fingerprints: every changed number is noticed, in whatever form the data holds it."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch

from kinformer.lab.data.data import Data
from kinformer.lab.data.images import ImageData
from kinformer.lab.data.labelled import LabelledData
from kinformer.lab.data.pairs import PairData
from kinformer.lab.data.series import SeriesData
from kinformer.lab.data.sets import SetData, StoredSets
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support.series_windows import SeriesSplit
from kinformer.lab.data.text import TextData, read
from kinformer.lab.train.start_record import sampled_fingerprint

COUNT, FEW = 300_000, 1000  # numbers, and those of rows of texts


def text(x: torch.Tensor) -> Data:
    return TextData("text", x, x[:2].clone(), x[:2].clone())


def with_documents(x: torch.Tensor) -> Data:
    return replace(text(torch.zeros(2, dtype=torch.uint8)), begins={"train": x.long()})


def images(x: torch.Tensor) -> Data:
    lot = x.to(torch.uint8).view(-1, 1, 10, 10), torch.zeros(len(x) // 100, dtype=torch.long)
    return ImageData("images", lot, lot, lot)


def labels(x: torch.Tensor) -> Data:
    small = torch.zeros(len(x), 1, 1, 1, dtype=torch.uint8)
    return ImageData("images", (small, x.long()), (small, x.long()), (small, x.long()))


def pairs(x: torch.Tensor) -> Data:
    rows = tuple((bytes(row), row) for row in x[:FEW].view(-1, 100).tolist())
    return PairData("pairs", rows, rows[:1], ())


def labelled(x: torch.Tensor) -> Data:
    rows = tuple((b"text", label) for label in x[:FEW].tolist())
    return LabelledData("labelled", rows, rows[:1], (), ("a", "b"))


def series(x: torch.Tensor) -> Data:
    stretch = SeriesSplit(x.float()[:, None], torch.zeros(len(x), 0), 0)
    return SeriesData("series", stretch, stretch, stretch, ("a",), stretch.values, torch.ones(2, 1), 1)


def sets(x: torch.Tensor) -> Data:
    part = StoredSets(torch.zeros(len(x), 1, 1), torch.zeros(len(x), 1, dtype=torch.long), x.float())
    return SetData("sets", part, part, part, 1, "number", 1)


FORMS: dict[str, Callable[[torch.Tensor], Data]] = {
    "text": text,
    "tokens": lambda x: text(x.to(torch.int32)),
    "documents": with_documents,
    "images": images,
    "labels": labels,
    "pairs": pairs,
    "labelled": labelled,
    "sets": sets,
    "series": series,
}


@pytest.mark.parametrize("form", FORMS)
def test_one_changed_number_is_noticed_wherever_it_is(form: str) -> None:
    numbers = torch.randint(0, 2, (COUNT,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    make, rng = FORMS[form], random.Random(form)
    whole = make(numbers).fingerprint
    assert make(numbers.clone()).fingerprint == whole
    count = FEW if form in ("pairs", "labelled") else COUNT
    for place in (0, count - 1, rng.randrange(count), rng.randrange(count)):
        numbers[place] ^= 1
        assert make(numbers.clone()).fingerprint != whole
        numbers[place] ^= 1


def test_changed_pictures_of_made_up_sets_are_noticed(tmp_path: Path) -> None:
    pixels, numbers = numpy.zeros((40, 4, 4), numpy.uint8), numpy.arange(40) % 2
    prints = []
    for value in (0, 1):
        pixels[17, 2, 2] = value
        numpy.savez(tmp_path / "a.npz", x_train=pixels, y_train=numbers, x_test=pixels[:4], y_test=numbers[:4])
        prints.append(read_spec(f"sets=pictures,images={tmp_path}/a.npz").fingerprint)
    assert prints[0] != prints[1]


def test_it_is_a_hash_of_all_bytes(tmp_path: Path) -> None:
    """Records of runs keep it, so its form does not change."""
    (tmp_path / "text").write_bytes(b"0123456789" * 20)
    header = b"tensor torch.uint8 (%d,);"
    pieces = [header % 180, b"0123456789" * 18, header % 10, b"0123456789", b"mapping 0;"]
    assert read(f"{tmp_path}/text").fingerprint == "sha256:" + hashlib.sha256(b"".join(pieces)).hexdigest()


def test_a_renamed_class_keeps_its_name_in_fingerprints() -> None:
    """Runs saved before a class was renamed resume: these hashes are of the version before it."""
    maxima = read_spec("sets=maximum,most=7")
    assert maxima.fingerprint == "sha256:6f794cb8f163fe84818b3868f80757a52d0cfd9c13249e4bdfeb9ad1f7a4f02e"
    assert sampled_fingerprint(maxima) == "4683531cb53dd89969c2d0369e06f43329716b83215781c447985c627822f07c"
    recall = read_spec("task=recall,pairs=4")
    assert recall.fingerprint == "sha256:6cb1fa383eac44c7d3811b1cdcf3bf73666716e0529979404cce97993839f58e"
    assert sampled_fingerprint(recall) == "9611ae78f4bffcb059638d30da4ff753efc088dd3cfb41ba464c0e001c2c61a8"
