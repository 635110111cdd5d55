"""Labelled texts for classifiers: a file of lines, label TAB text, or of JSON lines.

Choose `labelled=FILE.tsv` to train a classifier. A token is a byte, or a token of the tokenizer that
`tokenizer=bpe:4096` trains on the texts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.checkpoint.tokenizer_choice import tokenizer_of
from kinformer.core.model import Model
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data, Stream, named
from kinformer.lab.data.support.encode_rows import encode_rows
from kinformer.lab.data.support.evaluation_sample import sampled_rows
from kinformer.lab.data.support.length_buckets import Buckets
from kinformer.lab.data.support.text_pair_rows import TextPairRow, refuse_fields, split_rows, two_columns

FORM, SERVES, NAMES = "labelled=FILE.tsv", ("labelled",), ("label", "text")
SPLITS = ("train", "valid", "test")
MEASURED, FEW = 16, 100  # rows of a validation batch; fewer rows in valid get a hint
COMMONEST = "the commonest label"
Row = tuple[Sequence[int], int]
Batch = tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]


@dataclass(frozen=True, eq=False)
class LabelledData(Data):
    """Texts in three splits, each text with the number of its label.

    A text is only in one split, unless a data set has its own splits or the validation texts are in another file.

    name: the specification of the data, "labelled=...".
    train, valid, test: pairs of the tokens of a text and the number of its label.
    labels: the names of the labels in the order of their numbers, sorted.
    tokenizer: the tokenizer of the texts; None if the tokens are bytes.
    split: one line about how the data is split in three.
    """

    noun: ClassVar[str] = "labelled text"
    serves: ClassVar[tuple[str, ...]] = SERVES
    name: str
    train: tuple[Row, ...]
    valid: tuple[Row, ...]
    test: tuple[Row, ...]
    labels: tuple[str, ...]
    tokenizer: Tokenizer | None = None
    split: str = ""

    def truncate(self, length: int) -> "LabelledData":
        """Return the same data with each text cut to its first `length` tokens."""
        train, valid, test = (tuple((text[:length], label) for text, label in getattr(self, name)) for name in SPLITS)
        return replace(self, train=train, valid=valid, test=test)

    def longest_length(self, length: int) -> int:
        return max(len(text) for text, _ in self.truncate(length).train)

    def left_out(self, length: int) -> str | None:
        if not (count := sum(len(text) > length for text, _ in self.train)):
            return None
        return (
            f"{count:,} of {len(self.train):,} texts have more than {length:,} tokens, and only their first tokens are "
            "read; give a larger length to read all"
        )

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        sample = sample_of(getattr(self.truncate(length), split), limit)
        guess = f"always {COMMONEST} scores {self._constant_accuracy(sample):.3f}"
        return f"{len(sample):,} texts of {split}{self._by_task(sample)} ({guess})"

    def levels(self, model: Model, split: str, length: int, limit: int) -> Mapping[str, float]:
        """Return the accuracy of always answering the label (of each task) that is commonest in train."""
        sample = sample_of(getattr(self.truncate(length), split), limit)
        return {f"always {COMMONEST}": self._constant_accuracy(sample)}

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Stream:
        """Return random training batches, fixed by seed and step, and a validation sample.

        The rows of a training batch have similar lengths.

        The validation sample has at most `limit` tokens.
        """
        cut = self.truncate(length)
        buckets, sample = Buckets([len(text) for text, _ in cut.train], batch, seed), sample_of(cut.valid, limit)
        lots = [rows(sample[first : first + MEASURED]) for first in range(0, len(sample), MEASURED)]
        return Batches(lambda step: rows([cut.train[n] for n in buckets.at(step)]), lots)

    @property
    def tasks(self) -> tuple[range, ...]:
        """Range of the label numbers of each task; data from `labelled=` has one task with all labels."""
        return (range(len(self.labels)),)

    def _constant_accuracy(self, rows: Sequence[Row]) -> float:
        """Return the share of rows with a label that is the commonest of its task in train."""
        counts = Counter(label for _, label in self.train)
        guessed = {max(task, key=lambda label: counts[label]) for task in self.tasks}
        return sum(label in guessed for _, label in rows) / max(len(rows), 1)

    def _by_task(self, rows: Sequence[Row]) -> str:
        return ""


def sample_of(rows: Sequence[Row], limit: int) -> list[Row]:
    """Return a sample of rows, spread evenly over all rows.

    It has at most `limit` tokens and at least one row.
    """
    return sampled_rows(rows, [len(text) for text, _ in rows], limit)


@named
def read(
    where: str, *, label: str = "", text: str = "", tokenizer: str | Tokenizer = "bytes", valid: str = ""
) -> LabelledData:
    """Read labelled texts from a file or from "hf:NAME", split by the SHA-256 of each text.

    The split is about 90 : 5 : 5. Every line holds a label, a tab and a text; both are non-empty. Compressed files are
    unpacked. All rows are held in memory.

    where: the file, or "hf:NAME" for a data set of Hugging Face.
    label, text: fields of JSON lines and data sets; by default "label" and "text".
    tokenizer, valid: as for `text.read`.

    Errors: FileNotFoundError if a file is missing. ValueError, in one line, if a file is empty or has a line without
    exactly one label and one text, or has only one text or label. ValueError too if valid or test has a label that
    train does not have.
    """
    fields, name = (label or NAMES[0], text or NAMES[1]), f"labelled={where}"
    refuse_fields(name, (where, valid), label=label, text=text)
    rows = two_columns("labelled", where, NAMES, fields)
    valid_rows = two_columns("labelled", valid, NAMES, fields) if valid else None
    return split(name, rows, valid_rows, tokenizer)


def split(
    name: str, rows_read: list[TextPairRow], valid_rows: list[TextPairRow] | None, tokenizer: str | Tokenizer
) -> LabelledData:
    """Split rows in three, each a label and a text, and turn the texts into tokens.

    name: the specification of the data, for its name and for errors.
    rows_read: all rows; they are all for training if `valid_rows` is given.
    valid_rows: rows of another file for validation; None takes them from `rows_read`.
    tokenizer: as for `text.read`, or a tokenizer.

    Errors: ValueError for data with only one text or label, or with a label that is not in train.
    """
    if valid_rows is None and len({row.texts[1] for row in rows_read}) < 2:
        raise ValueError(
            f"{name} has only one distinct text; give at least two, one for training and one for validation"
        )
    lots, rule = split_rows(name, "texts", rows_read, 1, valid_rows)
    labels = sorted({row.texts[0] for row in lots["train"]})
    if len(labels) < 2:
        raise ValueError(
            f"{name} has only one label in its training texts; give more texts that differ, of at least two labels"
        )
    for row in (*lots["valid"], *lots["test"]):
        if row.texts[0] not in labels:
            raise ValueError(
                f"{row.place} has a label that no training text has: {row.texts[0].decode(errors='replace')}. Give "
                "more texts with this label, or remove the row"
            )
    used_tokenizer = tokenizer_of(tokenizer, (row.texts[1] for row in lots["train"]))
    number = {label: n for n, label in enumerate(labels)}
    rows = [row for lot in lots.values() for row in lot]
    tokens = iter(encode_rows(used_tokenizer, ((row.place, row.texts[1]) for row in rows), name))
    encoded = {split: tuple((next(tokens), number[row.texts[0]]) for row in lot) for split, lot in lots.items()}
    counts = ", ".join(f"{len(lots[split]):,} texts in {split}" for split in SPLITS if lots[split])
    description = f"{name}: {counts}, of {len(labels):,} labels; {rule}{' text' if rule.endswith('each') else ''}"
    if 0 < (valid_count := len(lots["valid"])) < FEW:
        description += f"; one text of valid changes the accuracy by {1 / valid_count:.3f}; give more with --valid FILE"
    return LabelledData(
        name,
        **encoded,
        labels=tuple(label.decode(errors="replace") for label in labels),
        tokenizer=used_tokenizer,
        split=description,
    )


def rows(texts: Sequence[Row]) -> Batch:
    """Return the tokens of texts as rows, padded with -1 at the end, and the numbers of their labels."""
    tokens = torch.full((len(texts), max(len(text) for text, _ in texts)), -1)
    for row, (text, _) in zip(tokens, texts, strict=True):
        row[: len(text)] = torch.tensor(list(text))
    return tokens, torch.tensor([label for _, label in texts])
