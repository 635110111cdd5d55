"""Images and series: what their files hold, what is split, and one line for what is wrong."""

import gzip
import lzma
from datetime import datetime, timedelta
from pathlib import Path

import numpy
import pytest
import torch

from kinformer.lab.data import images, series
from kinformer.lab.data.images import ImageData
from kinformer.lab.data.series import SeriesData
from kinformer.lab.data.spec import read_spec
from kinformer.lab.member_choice import parse_member
from kinformer.lab.train.fit import fit
from kinformer.lab.train.member_fit import fit_keywords
from kinformer.lab.train.start_record import fingerprint
from kinformer.members.image_transformer import image_transformer
from kinformer.members.informer import TINY, informer
from tests.lab.train import tiny


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
    assert isinstance(data, ImageData) and "27 train, 3 valid, 30 test" in data.split
    assert torch.equal(torch.cat([data.train[0], data.valid[0]])[:, 0], torch.from_numpy(pixels))
    labels = numpy.arange(30) % 10
    wide = numpy.repeat(pixels[..., None], 3, -1)
    numpy.savez(tmp_path / "a.npz", x_train=wide, y_train=labels, x_test=wide, y_test=labels)
    colour = images.read(f"{tmp_path}/a.npz")
    assert colour.train[0].shape == (27, 3, 4, 3) and torch.equal(colour.train[0][:, 2], data.train[0][:, 0])
    stream = colour.stream(tiny.classifier(), 5, 1, 0, 1 << 16)
    batch_images, their = stream.at(3)
    assert batch_images.shape == (5, 3, 4, 3) and their.shape == (5,) and torch.equal(batch_images, stream.at(3)[0])
    assert sum(len(lot[0]) for lot in stream.validation_batches) == 3
    levels = data.levels(image_transformer(d=8, depth=1, heads=1, shape=(1, 4, 3)), "test", 1, 5 * 12)
    assert levels["xz -9e"] == 8 * len(lzma.compress(pixels[:5].tobytes(), preset=9 | lzma.PRESET_EXTREME)) / 60
    with pytest.raises(ValueError, match="this classifier reads labelled text, but got images; give labelled=FILE.tsv"):
        fit(tiny.classifier(), f"images={tmp_path}", steps=1)


def test_wrong_images_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no file train-images-idx"):
        images.read(str(tmp_path))
    idx(tmp_path)
    labels = tmp_path / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte is not an idx file of labels, or is cut off"):
        images.read(str(tmp_path))
    (tmp_path / "b.npz").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"b.npz is not a .npz of arrays"):
        images.read(f"{tmp_path}/b.npz")
    numpy.savez(tmp_path / "c.npz", other=numpy.zeros(3))
    with pytest.raises(ValueError, match="lacks arrays: got other, expected x_train"):
        images.read(f"{tmp_path}/c.npz")


def write_series(folder: Path, first: str, step: timedelta) -> tuple[str, numpy.ndarray]:
    values = numpy.random.default_rng(0).normal(3, 7, size=(100, 2)) * [1, 100]
    begin = datetime.fromisoformat(first)
    body = "".join(f"{begin + n * step},{a:.6f},high,{b:.6f}\n" for n, (a, b) in enumerate(values))
    (folder / "a.csv").write_bytes(gzip.compress(f"date,load,level,oil\n{body}".encode()))
    return f"series={folder}/a.csv", values


def test_a_series_is_split_by_time_and_knows_nothing_of_later(tmp_path: Path) -> None:
    spec, values = write_series(tmp_path, "2016-12-31 23:00:00", timedelta(hours=1))
    data = read_spec(spec)
    assert (
        isinstance(data, SeriesData) and data.columns == ("load", "oil") and "60 train, 20 valid, 20 test" in data.split
    )
    assert torch.allclose(data.train.rows.mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(data.train.rows.std(0, correction=0), torch.ones(2), atol=1e-5)
    want = (values - values[:60].mean(0)) / values[:60].std(0)
    lots = torch.cat([lot.rows for lot in (data.train, data.valid, data.test)])
    assert numpy.allclose(lots.numpy(), want, atol=1e-4) and torch.equal(lots, data.test.values)
    assert data.season == 24 and data.keywords == {"channels": 2, "targets": 2, "calendar": 5}
    minute, hour, weekday, of_month, of_year = (data.test.calendar.T + 0.5).numpy()
    assert not minute.any() and numpy.allclose(hour[:3] * 23, [23, 0, 1])
    assert numpy.allclose(weekday[:2] * 6, [5, 6]) and numpy.allclose(of_month[:2] * 30, [30, 0])
    assert numpy.allclose(of_year[:2] * 365, [365, 0])  # 2016 had a day more
    few = read_spec(f"{spec},rows=50")
    assert isinstance(few, SeriesData) and "30 train, 10 valid, 10 test" in few.split
    with pytest.raises(ValueError, match="rows=101 is invalid: the file has 100 rows. Give a number from 2 to 100"):
        read_spec(f"{spec},rows=101")


def test_a_series_has_the_columns_that_are_asked_for_and_its_targets_last(tmp_path: Path) -> None:
    spec, _ = write_series(tmp_path, "2016-12-31 23:00:00", timedelta(hours=1))
    whole, single, from_both = (read_spec(spec + options) for options in ("", ",columns=oil", ",target=load"))
    assert isinstance(whole, SeriesData) and isinstance(single, SeriesData) and isinstance(from_both, SeriesData)
    assert (
        single.columns == ("oil",) and single.targets == 1 and torch.equal(single.train.rows, whole.train.rows[:, 1:])
    )
    assert from_both.columns == ("oil", "load") and from_both.targets == 1
    assert torch.equal(from_both.test.values, whole.test.values.flip(1)) and whole.targets == 2
    turned = read_spec(f"{spec},columns=oil+load,target=oil")
    assert isinstance(turned, SeriesData) and turned.columns == ("load", "oil")
    same = torch.randn(3, 1)
    assert torch.equal(from_both.unscale(same), whole.unscale(same.expand(3, 2))[:, :1])
    # a linear map of the target alone, and its own day before
    model, alone = (
        informer(**{**TINY, "calendar": 5, "context": 24, **options}) for options in ({"targets": 1}, {"channels": 1})
    )
    short = read_spec(f"{spec},columns=load")
    assert isinstance(short, SeriesData)
    assert from_both.levels(model, "test", 1, 1 << 16) == short.levels(alone, "test", 1, 1 << 16)
    for options, says in (
        ("columns=oi", "columns=oi names 'oi', which is no column of numbers; the nearest is 'oil'"),
        ("columns=level", "'level', which is no column of numbers"),
        ("columns=oil,target=load", "target=load names 'load', which is no column of numbers; there are oil"),
        ("target=oil+oil", "names 'oil' twice"),
    ):
        with pytest.raises(ValueError, match=says):
            read_spec(f"{spec},{options}")


def test_windows_of_a_series_forecast_its_own_rows_and_look_back(tmp_path: Path) -> None:
    spec, _ = write_series(tmp_path, "2020-02-28", timedelta(days=1))
    data, model = read_spec(spec), informer(**{**TINY, "calendar": 5})  # 8 rows known, 3 forecast
    assert isinstance(data, SeriesData) and data.season == 7
    stream = data.stream(model, 3, 1, 0, 1 << 16)
    batch = stream.at(5)
    assert batch.values.shape == (3, 11, 2) and batch.calendar.shape == (3, 11, 5)
    assert torch.equal(batch.values, stream.at(5).values)
    assert any(torch.equal(batch.values[0], data.train.rows[n : n + 11]) for n in range(50))
    watched = torch.cat([lot.values for lot in stream.validation_batches])
    assert torch.equal(watched[:, 8:], data.valid.rows.unfold(0, 3, 1).mT) and len(watched) == 18
    assert torch.equal(watched[0, :8], data.train.rows[-8:])
    few = data.stream(model, 3, 1, 0, 4)
    assert [len(lot.values) for lot in few.validation_batches] == [4]
    assert torch.equal(few.validation_batches[0].values[[0, -1]], watched[[0, -1]])
    for options, says in (
        ({"horizon": 21}, "valid of .* is too short: got 20 rows, expected at least 21. Give more rows, or a smaller"),
        ({"context": 58}, "train of .* is too short: got 60 rows, expected at least 61. Give more rows, or a smaller"),
    ):
        with pytest.raises(ValueError, match=says):
            data.stream(informer(**{**TINY, "calendar": 5, **options}), 3, 1, 0, 1 << 16)
        fits = {name: size - 1 for name, size in options.items()}
        data.stream(informer(**{**TINY, "calendar": 5, **fits}), 3, 1, 0, 1 << 16)
    with pytest.raises(ValueError, match="has calendar=5, but this model has 0; give calendar=5"):
        data.stream(informer(**TINY), 3, 1, 0, 1 << 16)


def test_a_model_of_more_columns_is_told_of_row_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("i,x\n" + "".join(f"{n},{n % 7}\n" for n in range(90)))
    data, selected = (read_spec(f"series={tmp_path}/a.csv{options}") for options in ("", ",columns=i+x"))
    with pytest.raises(
        ValueError, match="has channels=1, but this model has 2; .* add the row numbers 'i' to columns="
    ):
        data.stream(informer(**TINY), 3, 1, 0, 1 << 16)
    assert selected.stream(informer(**TINY), 3, 1, 0, 1 << 16)


def test_what_a_forecast_is_read_beside(tmp_path: Path) -> None:
    """Of a series that a linear map says, the linear map errs by nothing, and what was a day ago does not."""
    at = numpy.arange(200)
    values = numpy.stack([numpy.sin(at / 5), numpy.cos(at / 5) + 3], 1)
    body = "".join(f"2020-01-{1 + n // 12:02d}T{n % 12 * 2:02d}:00,{a},{b}\n" for n, (a, b) in enumerate(values))
    (tmp_path / "a.csv").write_text(f"date,x,y\n{body}")
    data, model = read_spec(f"series={tmp_path}/a.csv"), informer(**{**TINY, "calendar": 5, "context": 16})
    assert isinstance(data, SeriesData) and data.season == 12
    levels = data.levels(model, "test", 1, 1 << 16)
    assert list(levels) == ["least squares", "last row", "seasonal naive"] and levels["least squares"] < 1e-10
    rows = data.test.values[data.test.first :]
    apart = [(rows[n + h] - data.test.values[data.test.first + n + h - 12]) for n in range(38) for h in range(3)]
    assert levels["seasonal naive"] == pytest.approx(float(torch.stack(apart).square().mean()), rel=1e-5)
    short = data.levels(informer(**{**TINY, "calendar": 5}), "test", 1, 1 << 16)
    assert list(short) == ["least squares", "last row"]  # 8 known rows hold no day


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "got 0 lines, expected a line of names and at least 2 rows"),
        ("a,b\n" + "1,2\n" * 5 + "3\n", "line 7 of series=.* has 1 column, but its first line has 2 names"),
        ("a,b\n" + "1,2\n" * 5 + "3,\n", "line 7 of .* has '' in the column b, expected a number"),
        ("a,b\n" + "1,\n" * 2 + "1,2\n" * 5, "line 2 of .* has '' in the column b, expected a number"),
        ("a,b\n" + "1,2\n" * 5 + "3,nan\n", "line 7 of .* has 'nan' in the column b"),
        ("a\n" + "x\n" * 6, "has no column of numbers"),
        ("1.5,2\n" + "1,2\n" * 6, "has no names of columns: got the numbers 1.5,2 in line 1, expected names"),
        ("\n7\n" + "1\n" * 6, "got the numbers 7 in line 2, expected names"),
        ("2020-01-01,,3\n" + "2020-01-02,2,3\n" * 6, "got the numbers 2020-01-01,,3 in line 1"),
        ("31.01.2020 10:00,3\n" + "31.01.2020 11:00,3\n" * 6, "got the numbers 31.01.2020 10:00,3 in line 1"),
        ("a,b\n" + "1,2\n3,4\n" * 9 + "1,-1e39\n", "got -1e\\+39 in row 19 of the column b, expected numbers within"),
        ("a,b\n" + "1,2e200\n2,1e200\n" * 9, "got 2e\\+200 in row 1 of the column b, expected numbers small enough"),
        ("a,b\n" + "1,2\n3,1e308\n" * 9, "got 1e\\+308 in row 2 of the column b, expected numbers small enough"),
        ("a,b\n" + "1,2e-200\n2,1e-200\n" * 9, "got 2e-200 in row 1 of the column b, expected numbers large enough"),
    ],
)
def test_wrong_series_are_one_line(tmp_path: Path, body: str, says: str) -> None:
    (tmp_path / "a.csv").write_text(body)
    with pytest.raises(ValueError, match=says) as caught:
        series.read(f"{tmp_path}/a.csv")
    assert "\n" not in str(caught.value)


SEPARATED = [
    "date;temp;walk\n2020-01-0{n};{n}.5;{n}",
    "y;x\n{n},5;{n}",
    "1;2\n{n};{n}",
    "temp, C;walk\n{n},5;{n},5",
    "temp,C;walk\n{n},5;{n}",
]


@pytest.mark.parametrize(("sign", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
@pytest.mark.parametrize("text", SEPARATED)
def test_other_separators_than_commas_are_named(text: str, sign: str, name: str, tmp_path: Path) -> None:
    names, row = text.replace(";", sign).splitlines()
    (tmp_path / "a.csv").write_text("\n".join([names, *(row.format(n=n) for n in range(1, 8))]))
    with pytest.raises(ValueError, match=f"got columns separated by {name}.* in line 1, expected commas. Save") as err:
        series.read(f"{tmp_path}/a.csv")
    assert "\n" not in str(err.value)


def test_signs_within_the_cells_of_commas_separate_nothing(tmp_path: Path) -> None:
    """A name with a semicolon over plain numbers, and words with semicolons."""
    for names, row in (("a;b", "{n}.5"), ("date,note;s,y", "2020-01-0{n},hot;dry,{n}.5"), ("x,y|z", "{n},{n}.5")):
        (tmp_path / "a.csv").write_text("\n".join([names, *(row.format(n=n) for n in range(1, 8))]))
        numbers = series.read(f"{tmp_path}/a.csv").numbers
        assert numbers[:, -1].tolist() == [n + 0.5 for n in range(1, 8)]


def test_numbered_columns_are_names_and_it_is_said_that_they_may_be_a_row(tmp_path: Path) -> None:
    for first in (0, 1):
        names = tuple(str(first + n) for n in range(3))
        (tmp_path / "a.csv").write_text(",".join(names) + "\n" + "5,6,9\n7,7,7\n" * 4)
        with pytest.warns(UserWarning, match=f"begins with {','.join(names)}, which is read as the names of columns"):
            loaded = series.read(f"{tmp_path}/a.csv")
        assert loaded.columns == names and len(loaded.numbers) == 8
    (tmp_path / "a.csv").write_text(",0,4.5\n" + "".join(f"{n},{n % 3},{n % 2}\n" for n in range(9)))
    assert series.read(f"{tmp_path}/a.csv").columns == ("0", "4.5"), "the index of pandas has a blank name"


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 6, encoding="utf-8-sig")
    assert series.read(f"{tmp_path}/a.csv").columns == ("a", "b")


def test_a_run_is_told_from_one_of_other_images(tmp_path: Path) -> None:
    pixels, labels = numpy.zeros((300, 28, 28), numpy.uint8), numpy.arange(300) % 10
    for name, value in (("one", 1), ("two", 2)):
        pixels[:, 9:20, 9:20] = value  # neither border nor corner, which is all that a large array shows of itself
        numpy.savez(tmp_path / name, x_train=pixels, y_train=labels, x_test=pixels[:2], y_test=labels[:2])
    first, second = (fingerprint(images.read(str(tmp_path / f"{name}.npz"))) for name in ("one", "two"))
    assert first != second and first == fingerprint(images.read(str(tmp_path / "one.npz")))


def test_pictures_decide_the_shape_that_a_member_was_not_given(tmp_path: Path) -> None:
    idx(tmp_path)
    data = images.read(str(tmp_path))
    fitted = fit_keywords(parse_member("image_transformer", ["d=16", "depth=1"]), data)
    assert fitted.keywords == {"d": 16, "depth": 1, "shape": (1, 4, 3)}
    specified = parse_member("image_transformer", ["d=16", "depth=1", "shape=1,3,4"])
    assert fit_keywords(specified, data).keywords == specified.keywords
    assert fit_keywords(parse_member("gpt", []), data).keywords == {}
    with pytest.raises(ValueError, match=r"images \[C H W\] of \(1, 4, 3\), but this model reads \(1, 3, 4\)"):
        data.stream(specified.build(0), 2, 1, 0, 100)
