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
from kinformer.lab.data.kind import Data, Stream, named
from kinformer.lab.data.support.buckets import Buckets
from kinformer.lab.data.support.columns import Two, refuse_fields, three_lots, two_columns
from kinformer.lab.data.support.sample import sampled_rows

FORM, SERVES, NAMES = "labelled=FILE.tsv", ("labelled",), ("label", "text")
SPLITS = ("train", "valid", "test")
MEASURED, FEW = 16, 100  # rows of a batch that is measured, and of all of them that tell little
COMMONEST = "the commonest label"
Row = tuple[Sequence[int], int]
Batch = tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]


@dataclass(frozen=True, eq=False)
class Labelled(Data):
    """Three lots of texts with the number of their label; the same text is in one of them alone.

    labels: the labels by their numbers, in the order of the alphabet.
    """

    what: ClassVar[str] = "labelled text"
    serves: ClassVar[tuple[str, ...]] = SERVES
    name: str
    train: tuple[Row, ...]
    valid: tuple[Row, ...]
    test: tuple[Row, ...]
    labels: tuple[str, ...]
    tokenizer: Tokenizer | None = None
    split: str = ""

    def within(self, length: int) -> "Labelled":
        """The same with texts of their first `length` tokens."""
        train, valid, test = (tuple((text[:length], label) for text, label in getattr(self, name)) for name in SPLITS)
        return replace(self, train=train, valid=valid, test=test)

    def longest(self, length: int) -> int:
        return max(len(text) for text, _ in self.within(length).train)

    def left_out(self, length: int) -> str | None:
        if not (count := sum(len(text) > length for text, _ in self.train)):
            return None
        return (
            f"{count:,} of {len(self.train):,} texts have more than {length:,} tokens, of which the first are read; "
            "give a larger length to read all"
        )

    def measured(self, split: str, length: int, limit: int) -> str:
        sample = watched(getattr(self.within(length), split), limit)
        guess = f"always {COMMONEST} scores {self._guessing(sample):.3f}"
        return f"{len(sample):,} texts of {split}{self._by_task(sample)} ({guess})"

    def levels(self, model: Model, split: str, length: int, limit: int) -> Mapping[str, float]:
        """What an answer that is always the same scores."""
        sample = watched(getattr(self.within(length), split), limit)
        return {f"always {COMMONEST}": self._guessing(sample)}

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Stream:
        """Batches of rows of similar length, drawn by seed and step; a sample of at most `limit` bytes of valid."""
        kept = self.within(length)
        drawn, some = Buckets([len(text) for text, _ in kept.train], batch, seed), watched(kept.valid, limit)
        lots = [rows(some[first : first + MEASURED]) for first in range(0, len(some), MEASURED)]
        return Batches(lambda step: rows([kept.train[n] for n in drawn.at(step)]), lots)

    @property
    def tasks(self) -> tuple[range, ...]:
        """The labels of each task, by their numbers; here there is one."""
        return (range(len(self.labels)),)

    def _guessing(self, some: Sequence[Row]) -> float:
        """The share of rows whose label is the commonest of its task in train."""
        counts = Counter(label for _, label in self.train)
        guessed = {max(task, key=lambda label: counts[label]) for task in self.tasks}
        return sum(label in guessed for _, label in some) / max(len(some), 1)

    def _by_task(self, some: Sequence[Row]) -> str:
        return ""


def watched(rows: Sequence[Row], limit: int) -> list[Row]:
    """Rows spread over all rows, at most `limit` bytes, and at least one row."""
    return sampled_rows(rows, [len(text) for text, _ in rows], limit)


@named
def read(where: str, *, label: str = "", text: str = "", tokenizer: str = "bytes", valid: str = "") -> Labelled:
    """The rows of a file or of "hf:NAME", split about 90 : 5 : 5 by the SHA-256 of each text.

    Every line is a label, a tab and a text, neither of them empty; of JSON lines and data sets the fields that `label`
    and `text` name, "label" and "text" unless given. Compressed files are unpacked; all rows are held in memory.
    tokenizer, valid: as in `text.read`.

    Errors: FileNotFoundError for what is not there, and ValueError, in one line, for what is empty or ragged, has one
    text or one label alone, or a label in valid or test that nothing in train has.
    """
    fields, name = (label or NAMES[0], text or NAMES[1]), f"labelled={where}"
    refuse_fields(name, (where, valid), label=label, text=text)
    found = two_columns("labelled", where, NAMES, fields)
    others = two_columns("labelled", valid, NAMES, fields) if valid else None
    return split(name, found, others, tokenizer)


def split(name: str, found: list[Two], others: list[Two] | None, tokenizer: str) -> Labelled:
    """Rows of a label and a text in three lots, their texts as tokens; `others` are those of valid, where given.

    Errors: as those of `read`, for what one row alone does not tell.
    """
    if others is None and len({row.texts[1] for row in found}) < 2:
        raise ValueError(f"{name} has one text alone; give at least two, one to learn from and one to measure")
    lots, how = three_lots(name, "texts", found, 1, others)
    labels = sorted({row.texts[0] for row in lots["train"]})
    if len(labels) < 2:
        raise ValueError(f"{name} has one label alone to learn from; give texts of at least two labels")
    for row in (*lots["valid"], *lots["test"]):
        if row.texts[0] not in labels:
            raise ValueError(
                f"{row.place} has a label that train does not have: {row.texts[0].decode(errors='replace')}"
            )
    made = tokenizer_of(tokenizer, (row.texts[1] for row in lots["train"]))
    number = {one: n for n, one in enumerate(labels)}
    rows = [row for lot in lots.values() for row in lot]
    tokens = iter(encode_rows(made, ((row.place, row.texts[1]) for row in rows), name))
    kept = {split: tuple((next(tokens), number[row.texts[0]]) for row in lot) for split, lot in lots.items()}
    said = ", ".join(f"{len(lots[split]):,} texts in {split}" for split in SPLITS if lots[split])
    told = f"{name}: {said}, of {len(labels):,} labels; {how}{' text' if how.endswith('each') else ''}"
    if 0 < (watched := len(lots["valid"])) < FEW:
        told += f"; a text of valid is {1 / watched:.3f} of accuracy, --valid watches others"
    return Labelled(
        name, **kept, labels=tuple(one.decode(errors="replace") for one in labels), tokenizer=made, split=told
    )


def rows(some: Sequence[Row]) -> Batch:
    """Texts as rows of tokens, padded with -1 behind, and the numbers of their labels."""
    found = torch.full((len(some), max(len(text) for text, _ in some)), -1)
    for row, (text, _) in zip(found, some, strict=True):
        row[: len(text)] = torch.tensor(list(text))
    return found, torch.tensor([label for _, label in some])
