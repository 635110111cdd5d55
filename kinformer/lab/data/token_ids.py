"""Token ids: a text that another library has already turned into tokens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy
import torch

from kinformer.checkpoint.atomic_files import digest
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.core.model import Metric, Model
from kinformer.lab.data.support.text_sources import FEW
from kinformer.lab.data.support.train_valid_test import NAMES, TEST, VALID, split_of
from kinformer.lab.data.text import TextData

LARGEST = 2**31 - 1  # ids are stored in 32 bits


def per_token(metric: Metric) -> Metric:
    """Return a metric of bytes as a metric of tokens; other metrics stay.

    metric: the metric.
    """
    return metric._replace(name=metric.name.replace("byte", "token"), per="token") if "byte" in metric.name else metric


@dataclass(frozen=True, eq=False)
class TokenIdData(TextData):
    """Sequences of token ids in three splits, each a document; their tokenizer is unknown.

    Choose it for ids from a tokenizer of another library. Bits are reported per token, because the number of bytes of a
    token is unknown. It has the fields of `TextData`.
    """

    noun: ClassVar[str] = "data of token ids"

    @cached_property
    def vocab(self) -> int:
        """One more than the largest token id."""
        return 1 + max(int(getattr(self, name).max()) for name in NAMES if len(getattr(self, name)))

    def metric(self, model: Model) -> Metric:
        """Return the metric of the model's class, per token."""
        return per_token(super().metric(model))


Row = numpy.ndarray  # token ids of a document


def split_token_ids(
    name: str, splits: Mapping[str | None, Iterable[Row]], tokenizer: Tokenizer | None = None
) -> TokenIdData:
    """Return the data of rows of token ids; rows without a split are split about 90 : 5 : 5.

    At least 100 rows are split by the SHA-256 of each row. Of fewer rows, every split has a part of each.

    name: the name of the data.
    splits: the rows of "train", "valid" and "test", and under None the rows that are still to be split.
    tokenizer: the tokenizer of the model, if it is known.

    Errors: ValueError if there are no tokens, or if an id is negative or needs more than 32 bits.
    """
    lots: dict[str, list[Row]] = {split: [row for row in splits.get(split, ()) if len(row)] for split in NAMES}
    rest = [row for row in splits.get(None, ()) if len(row)]
    for row in rest:
        pieces = _cut(row) if len(rest) < FEW else {split_of(digest(row.tobytes())): row}
        for split, piece in pieces.items():
            lots[split] += [piece] if len(piece) else []
    if not lots["train"]:
        raise ValueError(f"{name} has no token ids for training; give more rows")
    if (least := min(int(row.min()) for rows in lots.values() for row in rows)) < 0:
        raise ValueError(f"{name} has the token id {least}, expected 0 or more; leave padding out by attention_mask")
    if (most := max(int(row.max()) for rows in lots.values() for row in rows)) > LARGEST:
        raise ValueError(f"{name} has the token id {most:,}, expected at most {LARGEST:,}. Correct the ids")
    several = sum(map(len, lots.values())) > len(NAMES)
    begins = {split: _starts(rows) for split, rows in lots.items()} if several else {}
    counts = ", ".join(f"{sum(map(len, lots[split])):,} tokens in {split}" for split in NAMES if lots[split])
    train, valid, test = (_join(lots[split]) for split in NAMES)
    return TokenIdData(name, train, valid, test, tokenizer, begins, split=f"{name}: {counts}")


def _cut(row: Row) -> dict[str, Row]:
    ends = round(len(row) * (1 - VALID - TEST)), round(len(row) * (1 - TEST))
    return dict(zip(NAMES, numpy.split(row, ends), strict=True))


def _starts(rows: Sequence[Row]) -> torch.Tensor:
    return torch.from_numpy(numpy.cumsum([0, *map(len, rows[:-1])], dtype=numpy.int64)[: len(rows)])


def _join(rows: Sequence[Row]) -> torch.Tensor:
    return torch.from_numpy(numpy.concatenate([numpy.empty(0, numpy.int32), *rows]).astype(numpy.int32))
