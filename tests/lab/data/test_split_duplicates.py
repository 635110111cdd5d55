"""Copies of texts in several splits: counted in one line, whatever form the data has."""

import json
import warnings
from collections import Counter
from pathlib import Path

import numpy
import pytest

from kinformer.lab.data.images import read as read_images
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support import tokenized_data as tokens
from kinformer.lab.data.support import train_valid_test as splits
from kinformer.lab.data.text import TextData


def counted(lots: dict[str, list[bytes]]) -> tuple[int, int]:
    """How many texts of valid and test are in an earlier split too, and how many there are: two loops."""
    train, valid, test = (lots[name] for name in splits.NAMES)
    copied = [text for text in valid if text in train] + [text for text in test if text in train or text in valid]
    return len(copied), len(valid) + len(test)


@pytest.mark.parametrize("form", ["bytes", "tokenizer", "jsonl"])
def test_copies_in_a_folder_are_counted(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINFORMER_CACHE", str(tmp_path / "cache"))
    folder, lots = tmp_path / "data", {name: list[bytes]() for name in splits.NAMES}
    folder.mkdir()
    for n in range(300):
        name, text = f"{n}.{'jsonl' if form == 'jsonl' else 'txt'}", f"the cat {n % 200} sat on the mat\n"
        (folder / name).write_text(json.dumps({"text": text.rstrip()}) if form == "jsonl" else text)
        lots[splits.split_of(name.encode())].append(text.encode())
    count, total = counted(lots)
    assert count > 5
    warning = f"{count} of {total} documents in valid and test are copies of documents in an earlier split"
    for _ in range(2):  # the second time from the cache
        with pytest.warns(UserWarning, match=warning) as warned:
            data = read_spec(f"text={folder}{',tokenizer=bpe:260' if form == 'tokenizer' else ''}")
        assert len(warned) == 1 and "\n" not in str(warned[0].message)
    assert isinstance(data, TextData) and Counter(map(len, lots.values())) == Counter(map(len, data.begins.values()))


def test_the_same_file_to_learn_from_and_to_watch_is_noticed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"the cat sat on the mat.\n" * 40)
    for valid in ("a", "b"):  # the file itself, and a copy
        with pytest.warns(UserWarning, match="1 of 1 documents in valid and test are copies"):
            read_spec(f"text={tmp_path}/a", valid=f"{tmp_path}/{valid}")


def test_texts_without_copies_in_other_splits_bring_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "ENCODED", 64)
    for n in range(150):
        (tmp_path / f"{n}").write_bytes(b" \n" if n % 2 else b"note %d" % n)  # blank files are no copies
    (tmp_path / "few").mkdir()
    (tmp_path / "rows").write_text("".join(f"note {n % 120}\n" for n in range(300)))
    for name in "ab":  # both are cut at the same places
        (tmp_path / "few" / name).write_bytes(b"the cat sat on the mat. " * 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for spec in (f"{tmp_path}/*", f"{tmp_path}/few", f"{tmp_path}/rows,documents=lines"):
            read_spec(f"text={spec}")


def test_rows_in_several_splits_of_a_data_set_are_counted(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    for name, rows in {"train": range(20), "validation": range(15, 25), "test": range(22, 30)}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"row {n}"}) + "\n" for n in rows))
    with pytest.warns(UserWarning, match="8 of 18 documents in valid and test are copies"):
        read_spec(f"text=hf:{tmp_path}")


@pytest.mark.parametrize(("kind", "items"), [("labelled", "texts"), ("pairs", "sources")])
def test_rows_of_a_file_to_watch_are_counted(tmp_path: Path, kind: str, items: str) -> None:
    row = "{1}\t{0}\n" if kind == "labelled" else "{0}\t{1}\n"
    (tmp_path / "train").write_text("".join(row.format(f"text {n}", "ab"[n % 2]) for n in range(30)))
    (tmp_path / "valid").write_text("".join(row.format(f"text {n}", "ab"[n % 2]) for n in range(23, 40)))
    with pytest.warns(
        UserWarning, match=f"7 of 17 {items} in valid and test are copies of {items} in an earlier split"
    ):
        read_spec(f"{kind}={tmp_path}/train", valid=f"{tmp_path}/valid")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_spec(f"{kind}={tmp_path}/train")


def test_images_of_several_splits_are_counted_in_the_line_about_splits(tmp_path: Path) -> None:
    pixels = numpy.random.default_rng(0).integers(0, 256, (40, 4, 4)).astype(numpy.uint8)
    labels = numpy.arange(40) % 2
    for copied in (0, 3):
        test = pixels[40 - 10 :] // 2
        test[:copied] = pixels[:copied]
        numpy.savez(tmp_path / "a.npz", x_train=pixels, y_train=labels, x_test=test, y_test=labels[:10])
        split = read_images(f"{tmp_path}/a.npz").split
        assert split.endswith("3 of 14 images in valid and test are copies of images in an earlier split") == (
            copied > 0
        )
