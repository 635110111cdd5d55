"""read_table: the data of a model from rows with named columns, such as a data set of Hugging Face."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy

from kinformer.checkpoint.atomic_files import digest
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.core.model import Model
from kinformer.core.quote import quote
from kinformer.core.warn import warn
from kinformer.decoding.pad_sequences import pad_sequences
from kinformer.lab.data import labelled, pairs
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data
from kinformer.lab.data.support.data_tokenizer import ids_tokenizer, text_tokenizer
from kinformer.lab.data.support.evaluation_sample import sampled_rows
from kinformer.lab.data.support.length_buckets import Buckets
from kinformer.lab.data.support.model_batch import IGNORED, TEXT, model_batch
from kinformer.lab.data.support.python_table import PythonTable
from kinformer.lab.data.support.text_pair_rows import TextPairRow, checked_texts
from kinformer.lab.data.support.text_sources import TextSource
from kinformer.lab.data.support.train_valid_test import VALID, Split, split
from kinformer.lab.data.text import read_splits
from kinformer.lab.data.token_ids import split_token_ids

MEASURED, SAMPLE = 16, 65_536  # rows of a validation batch, and tokens of all of them
UNLABELLED = -1  # the class of rows without a label in data sets of Hugging Face, such as a secret test split
TokenRow = dict[str, Any]  # input_ids without padding, and labels of the row if it has any


def read_table(
    model: Model,
    table: PythonTable,
    valid: PythonTable | None,
    batch: int,
    length: int,
    seed: int,
    tokenizer: Any = None,
) -> Data | Batches:
    """Read rows with named columns for a model.

    With a column `input_ids` the rows are already tokens. Otherwise a language model reads the column `text`, a model
    of pairs `source` and `target`, and a classifier `text` and `label`.

    model: the model.
    table: the rows.
    valid: rows for validation; None takes them from the splits of `table`, or a part of all rows.
    batch, length, seed: as in the `Settings` of the training, for rows of tokens.
    tokenizer: the tokenizer of the texts or of the token ids; None takes the model's own.

    Errors: ValueError, in one line, if the columns have no clear meaning for the model.
    """
    valid = None if valid is None else _split_for_validation(valid)
    if "input_ids" in table.columns:
        tokens = _read_tokens(model, table, valid, batch, length, seed, tokenizer)
        return replace(tokens, tokenizer=tokenizer) if isinstance(tokens, Batches) else tokens
    words = text_tokenizer(model, tokenizer)
    if model.reads in TEXT:
        return _read_text(table, valid, words)
    names = {"pairs": ("source", "target"), "labelled": ("label", "text")}[model.reads]
    classes = table.label_names if model.reads == "labelled" else None
    rows, valid_rows = (None if part is None else _text_pairs(part, names, classes) for part in (table, valid))
    reader = pairs.split if model.reads == "pairs" else labelled.split
    return reader(f"{model.reads}={table.name}", rows or [], valid_rows, words or "bytes")


def _split_for_validation(valid: PythonTable) -> PythonTable:
    """Return the validation data with a single split."""
    if len(valid.splits) == 1:
        return valid
    if "valid" not in valid.splits:
        raise ValueError("valid has several splits and none for validation. Pass one of them, as in valid=data['test']")
    return replace(valid, splits={"valid": valid.splits["valid"]})


# Texts ---------------------------------------------------------------------------------------------------------------


def _read_text(table: PythonTable, valid: PythonTable | None, tokenizer: Tokenizer | None) -> Data:
    """Read the texts of a table; each is a document."""
    sources = [TextSource(f"text={part.name}", rows=_documents(part)) for part in (table, valid) if part is not None]
    splits = [split(sources[0])] if len(sources) == 1 else [Split(sources[0], "train"), Split(sources[1], "valid")]
    return read_splits(splits, splits[0].by if valid is None else "valid is given", tokenizer)


def _documents(table: PythonTable) -> Any:
    """Return the rows of texts that can be read any number of times; a list if they are in memory."""
    rows = table.named_rows(text=_text_column(table))
    return list(rows) if all(isinstance(part, list) for part in table.splits.values()) else rows


def _text_column(table: PythonTable) -> str:
    """Return the column "text", or the only column of texts."""
    if "text" in table.columns:
        return "text"
    first = dict(zip(table.columns, next(table.rows(next(iter(table.splits)), *table.columns)), strict=True))
    texts = [name for name, value in first.items() if isinstance(value, str)]
    if len(texts) != 1:
        raise ValueError(
            f"the column of texts is unknown: got the columns {_listed(table)}, expected text or input_ids. "
            "Rename one, as in dataset.rename_column(NAME, 'text')"
        )
    return texts[0]


def _text_pairs(table: PythonTable, names: Sequence[str], classes: Sequence[str] | None) -> list[TextPairRow]:
    """Return the rows of two texts; numbers of classes are replaced by their names, and rows without one left out."""
    rows, unlabelled, columns = [], 0, {name: _column(table, name) for name in names}
    known = table.label_names or classes if "label" in names else None
    for record in table.named_rows(**columns):
        if known is not None and isinstance(record.fields["label"], Integral):
            number = int(record.fields["label"])
            if number == UNLABELLED:
                unlabelled += 1
                continue
            if not 0 <= number < len(known):
                raise ValueError(
                    f"{record.place} has the label {number}, expected 0 to {len(known) - 1}, the number of a class. "
                    "Correct the label"
                )
            record.fields["label"] = known[number]
        rows.append(TextPairRow(record.place, checked_texts(record, names, names), record.split))
    _warn_of_unlabelled(unlabelled)
    return rows


def _warn_of_unlabelled(count: int) -> None:
    if count:
        warn(f"{count:,} rows have the label {UNLABELLED}, which stands for an unknown class, and are left out")


def _column(table: PythonTable, name: str) -> str:
    """Return the name of a column, in the singular or the plural."""
    for column in (name, f"{name}s"):
        if column in table.columns:
            return column
    raise ValueError(
        f"the data has no column {name}: got the columns {_listed(table)}. Rename one, as in "
        f"dataset.rename_column(NAME, {name!r})"
    )


def _listed(table: PythonTable) -> str:
    return ", ".join(table.columns)[:120]


# Tokens --------------------------------------------------------------------------------------------------------------


def _read_tokens(
    model: Model, table: PythonTable, valid: PythonTable | None, batch: int, length: int, seed: int, tokenizer: Any
) -> Data | Batches:
    """Read rows of token ids; rows with labels of their own become batches."""
    splits = {split: _token_rows(model, table, split) for split in table.splits}
    if valid is not None:
        (valid_rows,) = (_token_rows(model, valid, split) for split in valid.splits)
        splits = {"train": [row for rows in splits.values() for row in rows], "valid": valid_rows}
    if model.reads in TEXT and not any("labels" in row for rows in splits.values() for row in rows):
        ids = {name: [row["input_ids"] for row in rows] for name, rows in splits.items()}
        return split_token_ids(table.name, ids, ids_tokenizer(model, tokenizer))
    return _row_batches(model, _two_splits(splits), batch, length, seed)


def _token_rows(model: Model, table: PythonTable, split: str | None) -> list[TokenRow]:
    """Return the rows of a split that have tokens, without padding; labels that are the tokens are left out."""
    if "input_ids" not in table.columns:
        raise ValueError(f"the validation data has no column input_ids: got {_listed(table)}")
    # the class of a row means nothing to a model of tokens
    known = ("labels", "label") if model.reads == "labelled" else ("labels",)
    label = next((name for name in known if name in table.columns), None)
    if label is None and model.reads not in TEXT:
        raise ValueError(f"the data has no column labels, which a model of {model.reads} needs: got {_listed(table)}")
    names = [name for name in ("input_ids", "attention_mask", label) if name in table.columns]
    rows, unlabelled = [], 0
    for number, values in enumerate(table.rows(split, *names), 1):
        columns, place = dict(zip(names, values, strict=True)), f"row {number:,} of {table.name}"
        row = {"input_ids": _integers(f"input_ids of {place}", columns["input_ids"], 1)}
        if label is not None:
            row["labels"] = _integers(f"{label} of {place}", columns[label], int(model.reads != "labelled"))
        kept = numpy.asarray(columns.get("attention_mask", numpy.ones(len(row["input_ids"])))).astype(bool)
        for name in ("input_ids", "labels") if model.reads in TEXT and label is not None else ("input_ids",):
            if row[name].shape != kept.shape:
                raise ValueError(f"the columns of {place} have different lengths; give a number for each token")
            row[name] = row[name][kept]
        if model.reads == "text" and "labels" in row and numpy.array_equal(row["labels"], row["input_ids"]):
            del row["labels"]
        if model.reads == "labelled" and row["labels"] == UNLABELLED:
            unlabelled += 1
        elif len(row["input_ids"]):
            rows.append(row)
    _warn_of_unlabelled(unlabelled)
    return rows


def _integers(name: str, value: Any, axes: int) -> numpy.ndarray:
    """Return the numbers of a column in a row, without an axis for a class or with one for tokens."""
    try:
        numbers = numpy.asarray(value)
    except ValueError:  # lists of different lengths
        numbers = numpy.asarray(None)
    if axes and not numbers.size:
        return numpy.empty(0, numpy.int64)
    if numbers.ndim != axes or not numpy.issubdtype(numbers.dtype, numpy.integer):
        expected = "a list of integers" if axes else "the number of a class"
        raise ValueError(f"{name}: got {quote(value)}, expected {expected}")
    return numbers


def _two_splits(splits: Mapping[str | None, list[TokenRow]]) -> tuple[list[TokenRow], list[TokenRow]]:
    """Return rows for training and for validation; a twentieth of the rows, by their hashes, if there is no split."""
    if "valid" in splits:
        for name in ("train", "valid"):
            if not splits.get(name):
                raise ValueError(f"no row of {name} has tokens; give at least one to train on and one to measure")
        return list(splits["train"]), list(splits["valid"])
    rows = sorted(splits.get(None, splits.get("train", [])), key=lambda row: digest(row["input_ids"].tobytes()))
    if len(rows) < 2:
        raise ValueError("the data has only one row; give at least two, one for training and one for validation")
    count = max(1, round(len(rows) * VALID))
    return rows[count:], rows[:count]


def _row_batches(
    model: Model, splits: tuple[list[TokenRow], list[TokenRow]], batch: int, length: int, seed: int
) -> Batches:
    """Return random batches of training rows of similar lengths, and a sample of validation rows."""
    train, valid = (_shorten_rows(model, rows, length) for rows in splits)
    buckets = Buckets([len(row["input_ids"]) for row in train], batch, seed)
    sample = sampled_rows(valid, [len(row["input_ids"]) for row in valid], SAMPLE)
    lots = [_collate(model, sample[first : first + MEASURED]) for first in range(0, len(sample), MEASURED)]
    return Batches(lambda step: _collate(model, [train[number] for number in buckets.at(step)]), lots)


def _shorten_rows(model: Model, rows: list[TokenRow], length: int) -> list[TokenRow]:
    """Leave out pairs with a side longer than `length`, and cut other rows to it; a warning says how many."""
    sides = ("input_ids", "labels") if model.reads == "pairs" else ("input_ids",)
    length += int(model.reads == "text")  # the last token of a row is only predicted
    long = [max(len(row[side]) for side in sides) > length for row in rows]
    if any(long):
        fate = "left out" if model.reads == "pairs" else "cut"
        warn(
            f"{sum(long):,} of {len(rows):,} rows have more than {length:,} tokens and are {fate}; give a larger length"
        )
    if model.reads == "pairs":
        rows = [row for row, is_long in zip(rows, long, strict=True) if not is_long]
        if not rows:
            raise ValueError(f"no pair has at most {length:,} tokens on each side; give a larger length")
        return rows
    return [{name: value[:length] if value.ndim else value for name, value in row.items()} for row in rows]


def _collate(model: Model, rows: Sequence[TokenRow]) -> Any:
    """Return the batch of some rows."""
    ids = pad_sequences([row["input_ids"].tolist() for row in rows])
    columns: dict[str, Any] = {"input_ids": ids.clamp_min(0), "attention_mask": ids >= 0}
    labels = [row["labels"] if "labels" in row else row["input_ids"] for row in rows]
    if model.reads == "labelled":
        columns["labels"] = [int(label) for label in labels]
    else:
        columns["labels"] = pad_sequences([label.tolist() for label in labels], IGNORED)
    return model_batch(columns, model.reads)
