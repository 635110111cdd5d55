"""Labelled texts, for what says of a text which kind it is: a file of lines, label TAB text, or of JSON lines.

Choose `labelled=FILE.tsv` to train a classifier. A token is a byte, or what `tokenizer=bpe:4096` makes of the texts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.checkpoint.tokenizer import Tokenizer, encode_rows, tokenizer_of
from kinformer.core.model import Model
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data, Stream, named
from kinformer.lab.data.support.evaluation_sample import sampled_rows
from kinformer.lab.data.support.length_buckets import Buckets
from kinformer.lab.data.support.text_pair_rows import TextPairRow, refuse_fields, split_rows, two_columns

FORM, SERVES, NAMES = "labelled=FILE.tsv", ("labelled",), ("label", "text")
SPLITS = ("train", "valid", "test")
MEASURED, FEW = 16, 100  # rows of a batch that is measured, and of all of them that tell little
COMMONEST = "the commonest label"
Row = tuple[Sequence[int], int]
Batch = tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]


@dataclass(frozen=True, eq=False)
class LabelledData(Data):
    """Three lots of texts with the number of their label; the same text is in one of them alone.

    labels: the labels by their numbers, in the order of the alphabet.
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
        """The same with texts of their first `length` tokens."""
        train, valid, test = (tuple((text[:length], label) for text, label in getattr(self, name)) for name in SPLITS)
        return replace(self, train=train, valid=valid, test=test)

    def longest_length(self, length: int) -> int:
        return max(len(text) for text, _ in self.truncate(length).train)

    def left_out(self, length: int) -> str | None:
        if not (count := sum(len(text) > length for text, _ in self.train)):
            return None
        return (
            f"{count:,} of {len(self.train):,} texts have more than {length:,} tokens, of which the first are read; "
            "give a larger length to read all"
        )

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        sample = sample_of(getattr(self.truncate(length), split), limit)
        guess = f"always {COMMONEST} scores {self._constant_accuracy(sample):.3f}"
        return f"{len(sample):,} texts of {split}{self._by_task(sample)} ({guess})"

    def levels(self, model: Model, split: str, length: int, limit: int) -> Mapping[str, float]:
        """What an answer that is always the same scores."""
        sample = sample_of(getattr(self.truncate(length), split), limit)
        return {f"always {COMMONEST}": self._constant_accuracy(sample)}

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Stream:
        """Batches of rows of similar length, drawn by seed and step; a sample of at most `limit` bytes of valid."""
        cut = self.truncate(length)
        buckets, sample = Buckets([len(text) for text, _ in cut.train], batch, seed), sample_of(cut.valid, limit)
        lots = [rows(sample[first : first + MEASURED]) for first in range(0, len(sample), MEASURED)]
        return Batches(lambda step: rows([cut.train[n] for n in buckets.at(step)]), lots)

    @property
    def tasks(self) -> tuple[range, ...]:
        """The labels of each task, by their numbers; here there is one."""
        return (range(len(self.labels)),)

    def _constant_accuracy(self, rows: Sequence[Row]) -> float:
        """The share of rows whose label is the commonest of its task in train."""
        counts = Counter(label for _, label in self.train)
        guessed = {max(task, key=lambda label: counts[label]) for task in self.tasks}
        return sum(label in guessed for _, label in rows) / max(len(rows), 1)

    def _by_task(self, rows: Sequence[Row]) -> str:
        return ""


def sample_of(rows: Sequence[Row], limit: int) -> list[Row]:
    """Rows spread over all rows, at most `limit` bytes, and at least one row."""
    return sampled_rows(rows, [len(text) for text, _ in rows], limit)


@named
def read(where: str, *, label: str = "", text: str = "", tokenizer: str = "bytes", valid: str = "") -> LabelledData:
    """The rows of a file or of "hf:NAME", split about 90 : 5 : 5 by the SHA-256 of each text.

    Every line is a label, a tab and a text, neither of them empty; of JSON lines and data sets the fields that `label`
    and `text` name, "label" and "text" unless given. Compressed files are unpacked; all rows are held in memory.
    tokenizer, valid: as in `text.read`.

    Errors: FileNotFoundError for what is not there, and ValueError, in one line, for what is empty or ragged, has one
    text or one label alone, or a label in valid or test that nothing in train has.
    """
    fields, name = (label or NAMES[0], text or NAMES[1]), f"labelled={where}"
    refuse_fields(name, (where, valid), label=label, text=text)
    rows = two_columns("labelled", where, NAMES, fields)
    valid_rows = two_columns("labelled", valid, NAMES, fields) if valid else None
    return split(name, rows, valid_rows, tokenizer)


def split(
    name: str, rows_read: list[TextPairRow], valid_rows: list[TextPairRow] | None, tokenizer: str
) -> LabelledData:
    """Rows of a label and a text in three lots, their texts as tokens; `others` are those of valid, where given.

    Errors: as those of `read`, for what one row alone does not tell.
    """
    if valid_rows is None and len({row.texts[1] for row in rows_read}) < 2:
        raise ValueError(f"{name} has one text alone; give at least two, one to learn from and one to measure")
    lots, rule = split_rows(name, "texts", rows_read, 1, valid_rows)
    labels = sorted({row.texts[0] for row in lots["train"]})
    if len(labels) < 2:
        raise ValueError(f"{name} has one label alone to learn from; give texts of at least two labels")
    for row in (*lots["valid"], *lots["test"]):
        if row.texts[0] not in labels:
            raise ValueError(
                f"{row.place} has a label that train does not have: {row.texts[0].decode(errors='replace')}"
            )
    used_tokenizer = tokenizer_of(tokenizer, (row.texts[1] for row in lots["train"]))
    number = {label: n for n, label in enumerate(labels)}
    rows = [row for lot in lots.values() for row in lot]
    tokens = iter(encode_rows(used_tokenizer, ((row.place, row.texts[1]) for row in rows), name))
    encoded = {split: tuple((next(tokens), number[row.texts[0]]) for row in lot) for split, lot in lots.items()}
    counts = ", ".join(f"{len(lots[split]):,} texts in {split}" for split in SPLITS if lots[split])
    description = f"{name}: {counts}, of {len(labels):,} labels; {rule}{' text' if rule.endswith('each') else ''}"
    if 0 < (valid_count := len(lots["valid"])) < FEW:
        description += f"; a text of valid is {1 / valid_count:.3f} of accuracy, --valid watches others"
    return LabelledData(
        name,
        **encoded,
        labels=tuple(label.decode(errors="replace") for label in labels),
        tokenizer=used_tokenizer,
        split=description,
    )


def rows(texts: Sequence[Row]) -> Batch:
    """Texts as rows of tokens, padded with -1 behind, and the numbers of their labels."""
    tokens = torch.full((len(texts), max(len(text) for text, _ in texts)), -1)
    for row, (text, _) in zip(tokens, texts, strict=True):
        row[: len(text)] = torch.tensor(list(text))
    return tokens, torch.tensor([label for _, label in texts])
