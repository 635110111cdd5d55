"""Several labelled tasks: a folder is read and split as one, tasks are drawn by size, and what is refused."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from kinformer.lab.data.multitask import MultitaskData, read
from kinformer.lab.data.spec import read_spec
from kinformer.members.camtl import camtl

SMALL = {"d": 8, "depth": 1, "heads": 2, "length": 24, "blocks": 4}
FILES = {
    "kind": [f"{'abc'[n % 3]}\ttext {n} of {'abc'[n % 3]}" for n in range(160)],
    "parity": [f"{'even' if n % 2 == 0 else 'odd'}\ttext {n} of {'abc'[n % 3]}" for n in range(40)],
}


def written(folder: Path, files: dict[str, list[str]]) -> str:
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        (folder / f"{name}.tsv").write_text("".join(line + "\n" for line in lines))
    return str(folder)


def test_labels_are_counted_through_all_tasks_and_a_text_is_in_one_split(tmp_path: Path) -> None:
    data = read_spec(f"multitask={written(tmp_path, FILES)},power=0.5")
    assert isinstance(data, MultitaskData) and data.power == 0.5
    assert data.labels == ("kind: a", "kind: b", "kind: c", "parity: even", "parity: odd")
    assert data.classes == (3, 2) and data.keywords == {"classes": (3, 2)} and data.sizes == {"vocab": 256}
    texts = [{bytes(text) for text, _ in lot} for lot in (data.train, data.valid, data.test)]
    assert sum(map(len, texts)) == len(set().union(*texts)) == 160  # those of the second task are the first ones again
    assert sum(len(lot) for lot in (data.train, data.valid, data.test)) == 200
    assert (
        data.split.endswith("tasks: kind (3 labels), parity (2 labels)") and "give more with --valid FILE" in data.split
    )
    counts, rows = Counter(label for _, label in data.train), data.test
    most = [max(task, key=counts.__getitem__) for task in (range(3), range(3, 5))]
    share = sum(label in most for _, label in rows) / len(rows)
    assert data.levels(camtl(**SMALL, classes=(3, 2)), "test", 24, 1 << 16) == {"always the commonest label": share}
    first = sum(label < 3 for _, label in data.valid)
    assert f", {first} of kind, {len(data.valid) - first} of parity (always" in data.describe_sample(
        "valid", 24, 1 << 16
    )


def test_batches_have_rows_of_many_tasks_and_come_again(tmp_path: Path) -> None:
    data = read(written(tmp_path, FILES))
    stream = data.stream(camtl(**SMALL, classes=(3, 2)), 8, 24, 3, 1 << 16)
    tokens, task, labels = stream.at(5)
    assert all(torch.equal(item, repeated) for item, repeated in zip((tokens, task, labels), stream.at(5), strict=True))
    assert set(task.tolist()) == {0, 1} and torch.equal(task, (labels >= 3).long())
    labels_by_text = {bytes(text): label for text, label in data.train if label < 3}
    for row, label in zip(tokens[task == 0], labels[task == 0], strict=True):
        assert labels_by_text[bytes(row[row >= 0].tolist())] == int(label)
    measured = torch.cat([item[1] for item in stream.validation_batches])
    assert len(measured) == len(data.valid) and set(measured.tolist()) == {0, 1}


@pytest.mark.parametrize(("power", "share"), [("1", 0.8), ("0", 0.5)])
def test_tasks_are_drawn_by_size_to_a_power(tmp_path: Path, power: str, share: float) -> None:
    data = read(written(tmp_path, FILES), power=power)
    stream = data.stream(camtl(**SMALL, classes=(3, 2)), 50, 24, 0, 1 << 16)
    count = Counter(task for step in range(80) for task in stream.at(step)[1].tolist())
    size = Counter(int(label >= 3) for _, label in data.train)
    assert abs(size[0] / len(data.train) - 0.8) < 0.03
    assert abs(count[0] / 4000 - (size[0] / len(data.train) if power == "1" else share)) < 0.04


def test_another_folder_is_watched(tmp_path: Path) -> None:
    valid = written(tmp_path / "valid", {name: lines[:9] for name, lines in FILES.items()})
    with pytest.warns(UserWarning, match="18 of 18 texts in valid and test are copies"):
        data = read(written(tmp_path / "train", FILES), valid=valid)
    assert (len(data.train), len(data.valid), len(data.test)) == (200, 18, 0)


def test_what_is_refused(tmp_path: Path) -> None:
    single = written(tmp_path / "one", {"kind": FILES["kind"]})
    same = written(tmp_path / "same", {"poor": ["a\ttext", "a\tother", "a\tmore"], **FILES})
    (tmp_path / "twice").mkdir()
    for name in ("kind.a", "kind.b"):
        (tmp_path / "twice" / name).write_text("a\tb\n")
    (tmp_path / "file").write_text("a\tb\n")
    for where, words, options in (
        (tmp_path / "absent", "there is no file or folder .*write multitask=FOLDER", {}),
        (tmp_path / "file", "is a file; give a folder with a file for each task, or labelled=", {}),
        (single, "has too few tasks: got 1 files, expected at least 2. Give a folder with a file for each task", {}),
        (same, "task 'poor' of .* has only one label in its training texts", {}),
        (
            tmp_path / "twice",
            "cannot name the task 'kind': another file does, or the name contains ': '. Rename the file",
            {},
        ),
        (
            single,
            "power='often' is invalid: give a number from 0 \\(all tasks equally often\\) to 1 \\(by size\\)",
            {"power": "often"},
        ),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words) as refused:
            read(str(where), **options)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=r"has tasks of \(2, 2\) classes, but .* has \(3, 2\); give it classes=3,2"):
        read(written(tmp_path / "two", FILES)).stream(camtl(**SMALL), 4, 24, 0, 99)
