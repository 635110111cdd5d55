"""Text: a file, a folder, a glob, rows of a data set, or the source of Python's standard library.

Choose `text=stdlib` to try something at once, because every machine has it. Choose `text=PATH` for your own text. A
token is a byte (0 to 255), so no text is out of vocabulary, and bits per byte of different models can be compared.
`tokenizer=bpe:4096` trains a tokenizer with larger tokens on the text; bits are still reported per byte.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.checkpoint.tokenizer_choice import parse_tokenizer
from kinformer.core.model import Metric, Model
from kinformer.decoding.prompts import Prompts, draw_places
from kinformer.lab.data.data import Data, named
from kinformer.lab.data.lanes import DocumentLanes, Lanes
from kinformer.lab.data.random_windows import RandomWindows
from kinformer.lab.data.support.compression_baselines import compressed_bits, unigram
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.data.support.text_sources import source_of
from kinformer.lab.data.support.tokenized_data import tokens_of
from kinformer.lab.data.support.train_valid_test import NAMES, Split, split

FORM, SERVES = "text=PATH", ("text", "masked")


@dataclass(frozen=True, eq=False)
class TextData(Data):
    """Token sequences of a text in three splits.

    At least 100 documents are split whole; of fewer, every split has a part of each (see `read`). The documents
    of a data set with its own splits, and of a separate validation text, stay whole too. If a document of valid or test
    is also in an earlier split, a warning gives the number of such copies.

    name: the specification of the data, "text=...".
    train, valid, test: tokens of the splits.
    tokenizer: the tokenizer that made the tokens; None if each token is a byte.
    begins: for each split, the index of the first token of each document; empty for a single text.
    widths: for each split, the number of bytes of each token; empty if each token is a byte.
    split: one line about how the data is split in three.
    packed: True lets several documents share a training row; else each document has its own rows. A training decides
        this for its model (`lab/train/startup_decisions.py`).
    """

    noun: ClassVar[str] = "a text"
    serves: ClassVar[tuple[str, ...]] = SERVES
    name: str
    train: Shaped[Tensor, " N"]
    valid: Shaped[Tensor, " V"]
    test: Shaped[Tensor, " E"]
    tokenizer: Tokenizer | None = None
    begins: Mapping[str, Int[Tensor, "_"]] = field(default_factory=dict)
    widths: Mapping[str, Int[Tensor, "_"]] = field(default_factory=dict)
    split: str = ""
    packed: bool = False

    @property
    def bytes_per_token(self) -> float:
        return self.part("train").bytes_per_token

    def metric(self, model: Model) -> Metric:
        """Return the metric of the model's class; bits are reported per byte for any tokenizer."""
        metric = super().metric(model)
        return metric._replace(per="byte") if metric.unit == "bits" else metric

    def part(self, split: str) -> SplitTokens:
        """Return the tokens of a split, with the starts of its documents and the bytes of each token."""
        return SplitTokens(getattr(self, split), self.begins.get(split), self.widths.get(split))

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Lanes | RandomWindows:
        """Return `Lanes` for a model that carries its state from batch to batch, else random windows.

        Lanes are parallel pieces of the text. A random window may hold several documents if `packed` is true.

        Errors: ValueError if valid has fewer than 2 tokens, or if train is shorter than the rows need.
        """
        train, valid = self.part("train"), self.part("valid")
        if len(valid.tokens) < 2:
            shortage = (
                f"{self.name} leaves {len(valid.tokens)} {valid.unit} of {len(train.tokens) + len(valid.tokens):,}"
            )
            advice = "give more text, at least about 60 bytes" if valid.unit == "bytes" else "give more text"
            if train.begins is not None and len(train.tokens) > 60:
                advice = "all copies of a document are in one split: give more documents that differ"
            raise ValueError(
                f"{shortage} for validation, expected at least 2; {advice}, or validation data with "
                "--valid FILE (valid= in Python)"
            )
        if model.lanes:
            if train.begins is None:
                return Lanes(train.tokens, batch, length)
            return DocumentLanes(train, batch, length)
        packed = train.begins is None or self.packed
        return RandomWindows(train, batch, length, seed, after=int(model.predicts_next), packed=packed)

    def prompts(self, model: Model, split: str, count: int, length: int, tokens: int) -> Prompts:
        """Return random windows of a split, without overlap and each within one document."""
        part, width = self.part(split), length + tokens
        rooms = part.sizes // width  # windows that fit side by side into each document
        ends = rooms.cumsum(0)
        description = f"windows of {width:,} {part.unit} of {split}, side by side,"
        at = torch.tensor(draw_places(count, int(ends[-1]) if len(ends) else 0, description))
        document = torch.searchsorted(ends, at, right=True)
        first = part.document_starts[document] + (at - (ends - rooms)[document]) * width
        rows = [part.tokens[place : place + width].tolist() for place in first.tolist()]
        return Prompts([row[:length] for row in rows], [row[length:] for row in rows], tokens)

    def levels(self, model: Model, split: str, length: int, limit: int) -> dict[str, float]:
        """Return the bits per byte of gzip and xz, or the entropy of single bytes for masked models."""
        name = model.metric.name
        if name not in ("bits per byte", "bits per masked byte"):
            return {}
        tokens = self.part(split).spread(limit, length).tokens.tolist()
        data = bytes(tokens) if self.tokenizer is None else self.tokenizer.decode(tokens)
        if name == "bits per byte":
            return compressed_bits(data)
        return {"unigram entropy": unigram(data)} if self.tokenizer is None else {}

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        part = self.part(split)
        sample = part.spread(limit, length)
        count, stretches = min(limit, part.bytes), len(sample.document_starts)
        if stretches == 1 or sample is part:
            return f"the first {count:,} bytes of {split}"
        of = " of documents" if self.begins else ""
        return f"{count:,} bytes in {stretches:,} pieces{of}, spread over {split}"


@named
def read(
    where: str, *, field: str = "", documents: str = "", tokenizer: str | Tokenizer = "bytes", valid: str = ""
) -> TextData:
    """Read text from "stdlib", a file, a folder, a glob or "hf:NAME", split about 90 : 5 : 5.

    Compressed files (gzip, xz, zstandard) are unpacked. JSON lines are read by one field of each row.

    where: "stdlib", a path, a glob, or "hf:NAME" for a data set of Hugging Face.
    field: the field of a row that holds its text; by default "text".
    documents: the separator of documents. By default, each row, each file of a folder or glob, and a single file are
        one document. Documents do not see each other. "lines", "blank" (blank lines) or another text separates the
        documents within a file. "joined" makes one text of all.
    tokenizer: "bytes"; "bpe:4096" for a byte-level BPE of that many tokens, trained on the training text; or the path
        of a tokenizer.json. In Python a tokenizer works too.
    valid: a file or folder of the same form for validation, in place of a split. No test split is then kept.

    A single file is cut at two places. A folder of at least 100 files, and the standard library without its tests, is
    split by the SHA-256 of each file's relative name. At least 100 rows are split by the SHA-256 of each row. A file or
    row then keeps its split when others are added. Fewer files or rows are each cut at two places, so all of them are
    in every split.

    Files are ordered by their hashes, so that the first bytes of a split come from everywhere. Hidden files are left
    out. Tokens are cached on disk under a hash of their inputs, except bytes of plain files of at most 64 MB in total.

    Errors: FileNotFoundError if a file is missing; ValueError if the input has no bytes, is not text, is damaged or has
    another form. ImportError if a package is missing; OSError if a file cannot be read or the cache cannot be written.
    """
    between = "" if documents == "joined" else documents
    chosen = parse_tokenizer(tokenizer)
    splits = [split(source_of(where, field, between))]
    if valid:
        splits = [Split(splits[0].source, "train"), Split(source_of(valid, field, between), "valid")]
    rule = f"valid is text={valid}" if valid else splits[0].by
    return read_splits(splits, rule, chosen, str(tokenizer), joined=documents == "joined")


def read_splits(
    splits: Sequence[Split], rule: str, tokenizer: Tokenizer | int | None, spelled: str = "", *, joined: bool = False
) -> TextData:
    """Read text sources that are split in three.

    splits: the sources with the rules that split them.
    rule: the rule in words, for the description.
    tokenizer: the tokenizer, the size of one to train, or None for bytes.
    spelled: the option `tokenizer=` as it was written.
    joined: True makes one text of all documents.

    Errors: ValueError if the sources have no bytes or are not text; OSError if a file cannot be read.
    """
    data = tokens_of(splits, spelled, tokenizer)
    arrays, name = data.arrays, splits[0].source.name
    if not sum(data.counts.values()):
        raise ValueError(f"{name} holds no byte; give a text")
    if data.tokenizer is not None:
        data.tokenizer.report(data.loss, name)
    data.copies.warn(name, "documents")
    text = TextData(
        name,
        arrays["train"],
        arrays["valid"],
        arrays["test"],
        tokenizer=data.tokenizer,
        widths={split_name: arrays[f"{split_name}.widths"] for split_name in NAMES if f"{split_name}.widths" in arrays},
    )
    several = sum(len(arrays[f"{split_name}.begins"]) for split_name in NAMES) > len(NAMES)
    if not joined and several:
        text = replace(text, begins={split_name: arrays[f"{split_name}.begins"] for split_name in NAMES})
    return replace(text, split=_describe_split(text, rule, data.counts))


def _describe_split(text: TextData, rule: str, counts: Mapping[str, int]) -> str:
    """Describe in one line what was split and by which rule."""
    shares = [f"{counts[name]:,} bytes for {use}" for name, use in zip(NAMES, USES, strict=True) if counts[name]]
    line = f"{text.name}: {', '.join(shares)}; {rule}"
    if text.begins:
        line += f"; {sum(map(len, text.begins.values())):,} documents, each read separately"
    if text.tokenizer is not None:
        line += f"; {sum(len(getattr(text, name)) for name in NAMES):,} tokens from a vocabulary of {text.vocab:,}"
    return line


USES = ("training (train)", "validation (valid)", "the final test (test)")
