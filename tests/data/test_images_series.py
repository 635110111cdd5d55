"""Images and series: what their files hold, what is split, and one line for what is wrong."""

import gzip
import lzma
from pathlib import Path

import numpy
import pytest
import torch

from kinformer.cli.support.training import fitting
from kinformer.cli.support.wanted import wanted
from kinformer.data import images, series
from kinformer.data.images import Images
from kinformer.data.series import Series
from kinformer.data.spec import read_spec
from kinformer.members.image_transformer import image_transformer
from kinformer.train.begun import fingerprint
from kinformer.train.fit import fit
from tests.train import tiny


def idx(folder: Path, count: int = 30) -> numpy.ndarray:
    pixels = numpy.random.default_rng(0).integers(256, size=(count, 4, 3), dtype=numpy.uint8)
    for split in ("train", "t10k"):
        head = b"\x00\x00\x08\x03" + b"".join(size.to_bytes(4) for size in pixels.shape)
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pixels.tobytes()))
        labels = b"\x00\x00\x08\x01" + count.to_bytes(4) + bytes(n % 10 for n in range(count))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(labels)
    return pixels


def test_idx_files_and_arrays_are_the_same_images(tmp_path: Path) -> None:
    pixels = idx(tmp_path)
    data = read_spec(f"images={tmp_path}")
    assert isinstance(data, Images) and "27 train, 3 valid, 30 test" in data.split
    assert torch.equal(torch.cat([data.train[0], data.valid[0]])[:, 0], torch.from_numpy(pixels))
    labels = numpy.arange(30) % 10
    wide = numpy.repeat(pixels[..., None], 3, -1)
    numpy.savez(tmp_path / "a.npz", x_train=wide, y_train=labels, x_test=wide, y_test=labels)
    colour = images.read(f"{tmp_path}/a.npz")
    assert colour.train[0].shape == (27, 3, 4, 3) and torch.equal(colour.train[0][:, 2], data.train[0][:, 0])
    stream = colour.stream(tiny.classifier(), 5, 1, 0, 1 << 16)
    some, their = stream.at(3)
    assert some.shape == (5, 3, 4, 3) and their.shape == (5,) and torch.equal(some, stream.at(3)[0])
    assert sum(len(lot[0]) for lot in stream.measured) == 3
    beside = data.levels(image_transformer(d=8, depth=1, heads=1, shape=(1, 4, 3)), "test", 1, 5 * 12)
    assert beside["xz -9e"] == 8 * len(lzma.compress(pixels[:5].tobytes(), preset=9 | lzma.PRESET_EXTREME)) / 60
    with pytest.raises(ValueError, match="a Classifier reads labelled, and images came; give labelled=FILE.tsv"):
        fit(tiny.classifier(), f"images={tmp_path}", steps=1)


def test_wrong_images_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no file train-images-idx"):
        images.read(str(tmp_path))
    idx(tmp_path)
    labels = tmp_path / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte is cut off, or no idx file of labels"):
        images.read(str(tmp_path))
    (tmp_path / "b.npz").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"b.npz is no .npz of arrays"):
        images.read(f"{tmp_path}/b.npz")
    numpy.savez(tmp_path / "c.npz", other=numpy.zeros(3))
    with pytest.raises(ValueError, match="has the arrays other; x_train"):
        images.read(f"{tmp_path}/c.npz")


def test_a_series_is_split_by_time_and_knows_nothing_of_later(tmp_path: Path) -> None:
    values = numpy.random.default_rng(0).normal(3, 7, size=(100, 2)) * [1, 100]
    body = "".join(f"2016-07-{n},{a:.6f},{b:.6f}\n" for n, (a, b) in enumerate(values))
    (tmp_path / "a.csv").write_bytes(gzip.compress(f"date,load,oil\n{body}".encode()))
    data = read_spec(f"series={tmp_path}/a.csv")
    assert isinstance(data, Series) and data.columns == ("load", "oil") and "60 train, 20 valid, 20 test" in data.split
    assert torch.allclose(data.train.mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(data.train.std(0, correction=0), torch.ones(2), atol=1e-5)
    want = (values - values[:60].mean(0)) / values[:60].std(0)
    assert numpy.allclose(torch.cat([data.train, data.valid, data.test]).numpy(), want, atol=1e-4)
    stream = data.stream(tiny.classifier(), 3, 8, 0, 1 << 16)
    batch = stream.at(5)
    assert batch.shape == (3, 8, 2) and torch.equal(batch, stream.at(5))
    assert any(torch.equal(batch[0], data.train[n : n + 8]) for n in range(53))
    assert torch.equal(torch.cat(list(stream.measured)).flatten(0, 1), data.valid[:16])
    with pytest.raises(ValueError, match="has 20 rows in valid, and a window has 21"):
        data.stream(tiny.classifier(), 3, 21, 0, 1 << 16)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "has 0 lines"),
        ("a,b\n" + "1,2\n" * 5 + "3\n", "line 7 of series=.* has 1 column where 2 are wanted"),
        ("a,b\n" + "1,2\n" * 5 + "3,\n", "line 7 of .* has '' in the column b; a number is wanted"),
        ("a,b\n" + "1,2\n" * 5 + "3,nan\n", "line 7 of .* has 'nan' in the column b"),
        ("a\n" + "x\n" * 6, "has no column of numbers"),
    ],
)
def test_wrong_series_are_one_line(tmp_path: Path, body: str, says: str) -> None:
    (tmp_path / "a.csv").write_text(body)
    with pytest.raises(ValueError, match=says) as caught:
        series.read(f"{tmp_path}/a.csv")
    assert "\n" not in str(caught.value)


def test_a_run_is_told_from_one_of_other_images(tmp_path: Path) -> None:
    pixels, labels = numpy.zeros((300, 28, 28), numpy.uint8), numpy.arange(300) % 10
    for name, value in (("one", 1), ("two", 2)):
        pixels[:, 9:20, 9:20] = value  # neither border nor corner, which is all that a large array shows of itself
        numpy.savez(tmp_path / name, x_train=pixels, y_train=labels, x_test=pixels[:2], y_test=labels[:2])
    one, two = (fingerprint(images.read(str(tmp_path / f"{name}.npz"))) for name in ("one", "two"))
    assert one != two and one == fingerprint(images.read(str(tmp_path / "one.npz")))


def test_pictures_decide_the_shape_that_a_member_was_not_given(tmp_path: Path) -> None:
    idx(tmp_path)
    data = images.read(str(tmp_path))
    one = fitting(wanted("image_transformer", ["d=16", "depth=1"]), data)
    assert one.keywords == {"d": 16, "depth": 1, "shape": (1, 4, 3)}
    given = wanted("image_transformer", ["d=16", "depth=1", "shape=1,3,4"])
    assert fitting(given, data).keywords == given.keywords
    assert fitting(wanted("gpt", []), data).keywords == {}
    with pytest.raises(ValueError, match=r"pictures \[C H W\] of \(1, 4, 3\), and this model reads \(1, 3, 4\)"):
        data.stream(given.build(0), 2, 1, 0, 100)
