"""Rows of two texts, held in memory: lines with a tab, JSON lines, or rows of a data set."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kinformer.checkpoint.atomic_files import digest, existing_path
from kinformer.checkpoint.decompress import lines
from kinformer.lab.data.support.dataset_rows import DatasetRow, hugging_face, is_json_lines, json_lines
from kinformer.lab.data.support.split_duplicates import count_copies
from kinformer.lab.data.support.train_valid_test import TEST, VALID


class TextPairRow(NamedTuple):
    """A row of two texts, such as a source and a target, or a label and a text.

    place: file and line of the row, or the like, for errors.
    texts: the two texts.
    split: the split that the data set gives it; None if it gives none.
    """

    place: str
    texts: tuple[bytes, bytes]
    split: str | None


def two_columns(kind: str, where: str, names: tuple[str, str], fields: tuple[str, str]) -> list[TextPairRow]:
    """Read all rows of two texts from "hf:NAME" or a file.

    The texts are two fields of JSON lines or data sets, or both sides of the tab in a line.

    kind: the kind of data, for messages.
    where: the file, or "hf:NAME".
    names: names of the two texts, for messages.
    fields: fields of JSON lines and data sets.

    Errors: FileNotFoundError if the file is missing; ValueError, in one line, if it is empty or ragged.
    """
    rows = list(_rows(kind, where, names, fields))
    if not rows:
        raise ValueError(f"{kind}={where} is empty; write a line for each row: {names[0]}, a tab, {names[1]}")
    return rows


def _rows(kind: str, where: str, names: tuple[str, str], fields: tuple[str, str]) -> Iterator[TextPairRow]:
    if where.startswith("hf:") or is_json_lines(Path(where)):
        advice = f"write {kind}=FILE.jsonl"
        records = (
            hugging_face(where.removeprefix("hf:"))
            if where.startswith("hf:")
            else json_lines(existing_path(where, advice))
        )
        for record in records:
            yield TextPairRow(record.place, checked_texts(record, fields, names), record.split)
        return
    advice = f"write {kind}=FILE.tsv"
    path = existing_path(where, advice)
    if path.is_dir():
        raise OSError(f"cannot read {path}: Is a directory; {advice}")
    for number, line in enumerate(lines(path), 1):
        place, parts = f"line {number:,} of {kind}={where}", line.split(b"\t")
        if len(parts) != 2:
            width = "1 column" if len(parts) == 1 else f"{len(parts)} columns"
            advice = f"write {names[0]}, one tab, {names[1]}"
            if path.suffix == ".csv":
                advice = f"write {kind}=hf:{where} for a CSV with the columns {names[0]} and {names[1]}"
            raise ValueError(f"{place} has {width}, expected 2; {advice}")
        _refuse_empty((parts[0], parts[1]), names, place)
        yield TextPairRow(place, (parts[0], parts[1]), None)


def refuse_fields(kind: str, files: Sequence[str], **fields: str) -> None:
    """Raise ValueError if options name fields, but the lines of the files have tabs and thus no fields.

    kind: name of the data, for the message.
    files: the files.
    fields: the options that name fields.
    """
    if not any(where.startswith("hf:") or is_json_lines(Path(where)) for where in files):
        for name, value in fields.items():
            if value:
                raise ValueError(f"{name}={value} has no effect on {kind}: it holds no JSON lines; leave it out")


def checked_texts(record: DatasetRow, fields: Sequence[str], names: Sequence[str]) -> tuple[bytes, bytes]:
    """Return the two texts of a row with named fields.

    record: the row.
    fields: names of the fields of both texts.
    names: words for them in messages.

    Errors: ValueError, in one line, for a field that is missing, empty or not a text.
    """
    texts = (record.value_bytes(fields[0], names[0]), record.value_bytes(fields[1], names[1]))
    _refuse_empty(texts, names, record.place)
    return texts


def _refuse_empty(texts: tuple[bytes, bytes], names: Sequence[str], place: str) -> None:
    for name, text in zip(names, texts, strict=True):
        if not text:
            raise ValueError(f"{place} has an empty {name}; give both sides at least one character")


def split_rows(
    name: str, items: str, rows: list[TextPairRow], key: int, valid_rows: list[TextPairRow] | None
) -> tuple[dict[str, list[TextPairRow]], str]:
    """Split rows into train, valid and test, and return the splits with a description of the rule.

    If `valid_rows` is given, these rows are valid, all others are train, and test is empty. Otherwise a data set's own
    splits are kept if they include valid. All other rows are split by the SHA-256 of a key (a source or a text), about
    90 : 5 : 5, with all rows of one key in one split; a data set's own test is kept. In the first two cases a key may
    be in several splits; a warning gives the number of such rows.

    name, items: names of the data and of its rows, for the warning.
    rows: all rows.
    key: index of the text that is the key.
    valid_rows: rows for validation; None splits `rows`.
    """
    lots, rule = _split_rows(rows, key, valid_rows)
    count_copies({split: (row.texts[key] for row in lot) for split, lot in lots.items()}).warn(name, items)
    return lots, rule


def _split_rows(
    rows: list[TextPairRow], key: int, valid_rows: list[TextPairRow] | None
) -> tuple[dict[str, list[TextPairRow]], str]:
    if valid_rows is not None:
        return {"train": rows, "valid": valid_rows, "test": []}, "valid is given"
    lots: dict[str, list[TextPairRow]] = {"train": [], "valid": [], "test": []}
    if any(row.split for row in rows):
        for row in rows:
            lots[row.split or "train"].append(row)
        if lots["valid"]:
            return lots, "as the data set itself is split"
        rows, lots["train"] = lots["train"], []
    by_key: dict[bytes, list[TextPairRow]] = {}
    for row in rows:
        by_key.setdefault(row.texts[key], []).append(row)
    keys = sorted(by_key, key=digest)
    valid, test = max(1, round(len(keys) * VALID)), 0 if lots["test"] else round(len(keys) * TEST)
    for name, lot_keys in (
        ("train", keys[: len(keys) - valid - test]),
        ("valid", keys[len(keys) - valid - test : len(keys) - test]),
        ("test", keys[len(keys) - test :]),
    ):
        lots[name] += [row for row_key in lot_keys for row in by_key[row_key]]
    return lots, "by the SHA-256 of each"
