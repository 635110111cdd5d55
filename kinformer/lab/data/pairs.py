"""Pairs of a source and a target text: a file of lines, source TAB target, or of JSON lines.

Choose `pairs=FILE.tsv` to train a sequence-to-sequence member (a model of the library), such as transformer. A token is
a byte, or a token of the tokenizer that `tokenizer=bpe:4096` trains on both sides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Int
from torch import Tensor

from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.checkpoint.tokenizer_choice import tokenizer_of
from kinformer.core.model import Model
from kinformer.decoding.pad_sequences import pad_sequences
from kinformer.decoding.prompts import Prompts, draw_places
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data, named
from kinformer.lab.data.support.encode_rows import encode_rows
from kinformer.lab.data.support.evaluation_sample import sampled_rows
from kinformer.lab.data.support.length_buckets import Buckets
from kinformer.lab.data.support.text_pair_rows import TextPairRow, refuse_fields, split_rows, two_columns

FORM, SERVES, NAMES = "pairs=FILE.tsv", ("pairs",), ("source", "target")
MEASURED = 16  # pairs in a validation batch
Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, eq=False)
class PairData(Data):
    """Pairs of a source and a target, each a sequence of tokens, in three splits.

    The splits share no source, unless a data set has its own splits or the validation pairs are in another file.

    name: the specification of the data, "pairs=...".
    train, valid, test: pairs of source tokens and target tokens.
    tokenizer: the tokenizer of both sides; None if the tokens are bytes.
    split: one line about how the data is split in three.
    """

    noun: ClassVar[str] = "pairs"
    serves: ClassVar[tuple[str, ...]] = SERVES
    name: str
    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    test: tuple[Pair, ...]
    tokenizer: Tokenizer | None = None
    split: str = ""

    def up_to_length(self, length: int) -> "PairData":
        """Return the same data with only those pairs that have at most `length` tokens on each side.

        Errors: ValueError if train or valid keeps no pair.
        """
        short = {name: tuple(pair for pair in getattr(self, name) if max(map(len, pair)) <= length) for name in SPLITS}
        for name in ("train", "valid"):
            if not short[name]:
                raise ValueError(
                    f"{self.name} has no {'training' if name == 'train' else 'validation'} pair with at most "
                    f"{length:,} {self.unit} on each side; give a larger length, or more pairs"
                )
        return replace(self, train=short["train"], valid=short["valid"], test=short["test"])

    @property
    def unit(self) -> str:
        """Unit of the tokens: "bytes" or "tokens"."""
        return "bytes" if self.tokenizer is None else "tokens"

    def longest_length(self, length: int) -> int:
        """Return the number of tokens in the longest training row; the end of a target counts as a token."""
        return max(max(len(source), len(target) + 1) for source, target in self.up_to_length(length).train)

    def left_out(self, length: int) -> str | None:
        if not (count := len(self.train) - len(self.up_to_length(length).train)):
            return None
        return (
            f"{count:,} of {len(self.train):,} pairs have a side with more than {length:,} {self.unit} and are "
            "left out; give a larger length to keep them"
        )

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        return f"{sum(map(len, self.up_to_length(length).sample_batches(limit, split))):,} pairs of {split}"

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Batches:
        return self.batches(batch, length, seed, limit)

    def batches(self, batch: int, length: int, seed: int, limit: int) -> Batches:
        """Return random training batches, each with pairs of similar length, and a validation sample.

        batch: pairs per batch.
        length: maximum number of tokens on each side; longer pairs are left out.
        seed: seed of the batches; the same seed and step give the same batch.
        limit: maximum number of tokens in the validation sample.
        """
        short = self.up_to_length(length)
        buckets = Buckets([len(source) + len(target) for source, target in short.train], batch, seed)

        def draw_batch(step: int) -> tuple[Tensor, Tensor]:
            return rows([short.train[n] for n in buckets.at(step)])

        return Batches(draw_batch, [rows(lot) for lot in short.sample_batches(limit)])

    def prompts(self, model: Model, split: str, count: int, length: int, tokens: int) -> Prompts:
        """Return random pairs of a split, each once: the model reads a source and continues an empty target."""
        rows = getattr(self, split)
        chosen = [rows[n] for n in draw_places(count, len(rows), f"pairs of {split}")]
        targets = [target for _, target in chosen]
        return Prompts([b""] * count, targets, max(map(len, targets)), [source for source, _ in chosen])

    def sample_batches(self, limit: int, split: str = "valid") -> Iterator[Sequence[Pair]]:
        """Return batches of a sample of pairs, spread evenly over a split.

        The sample has at most `limit` tokens and at least one pair.
        """
        pairs = getattr(self, split)
        sample = sampled_rows(pairs, [len(source) + len(target) for source, target in pairs], limit)
        return (sample[first : first + MEASURED] for first in range(0, len(sample), MEASURED))


SPLITS = ("train", "valid", "test")


@named
def read(
    where: str, *, source: str = "", target: str = "", tokenizer: str | Tokenizer = "bytes", valid: str = ""
) -> PairData:
    """Read pairs from a file or from "hf:NAME", split about 90 : 5 : 5 by the SHA-256 of each source.

    No source is therefore in two splits. If a data set has its own splits, they are kept instead. Every line holds a
    source, a tab and a target; both are non-empty. Compressed files are unpacked. All pairs are held in memory.

    where: the file, or "hf:NAME" for a data set of Hugging Face.
    source, target: fields of JSON lines and data sets; by default "source" and "target".
    tokenizer, valid: as for `text.read`.

    Errors: FileNotFoundError if a file is missing; OSError if it cannot be read. ValueError, in one line, if the file
    is empty or ragged, or has fewer than two sources.
    """
    fields, name = (source or NAMES[0], target or NAMES[1]), f"pairs={where}"
    refuse_fields(name, (where, valid), source=source, target=target)
    rows_read = two_columns("pairs", where, NAMES, fields)
    valid_rows = two_columns("pairs", valid, NAMES, fields) if valid else None
    return split(name, rows_read, valid_rows, tokenizer)


def split(
    name: str, rows_read: list[TextPairRow], valid_rows: list[TextPairRow] | None, tokenizer: str | Tokenizer
) -> PairData:
    """Split rows in three, each a source and a target, and turn the texts into tokens.

    name: the specification of the data, for its name and for errors.
    rows_read: all rows; they are all for training if `valid_rows` is given.
    valid_rows: rows for validation; None takes them from `rows_read`.
    tokenizer: as for `text.read`, or a tokenizer.

    Errors: ValueError for data with only one source.
    """
    if valid_rows is None and len({row.texts[0] for row in rows_read}) < 2:
        raise ValueError(f"{name} has only one distinct source; give at least two, for training and for validation")
    lots, rule = split_rows(name, "sources", rows_read, 0, valid_rows)
    counts = ", ".join(f"{len(lots[split]):,} pairs in {split}" for split in SPLITS if lots[split])
    used_tokenizer = tokenizer_of(tokenizer, (text for row in lots["train"] for text in row.texts))
    sides = ((row.place, text) for rows in lots.values() for row in rows for text in row.texts)
    tokens = iter(encode_rows(used_tokenizer, sides, name))
    encoded = {split: tuple((next(tokens), next(tokens)) for _ in rows) for split, rows in lots.items()}
    description = f"{name}: {counts}; {rule}{' source' if rule.endswith('each') else ''}"
    return PairData(name, **encoded, tokenizer=used_tokenizer, split=description)


def rows(pairs: Sequence[Pair]) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B T"]]:
    """Return sources and targets of pairs as rows of tokens, padded with -1 at the end."""
    sides = (tuple(pair[side] for pair in pairs) for side in (0, 1))
    sources, targets = (pad_sequences(side) for side in sides)
    return sources, targets
