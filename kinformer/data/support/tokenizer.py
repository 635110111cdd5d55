"""Tokenizers: what turns text into tokens, where a token is no byte. Kept as the JSON that `tokenizers` writes."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy

from kinformer.from_json import from_json

LEAST = 257  # a byte-level vocabulary has all bytes, and one merge
UNKNOWN = b"\xef\xbf\xbd"


class Tokenizer:
    """A tokenizer of `tokenizers`, made when it is first used: a model can be loaded where the package is missing.

    text: its JSON. place: its name in errors. Errors: ValueError for what is no tokenizer, ImportError where the
    package is missing.
    """

    def __init__(self, text: str, place: str = "tokenizer.json") -> None:
        self.text, self.place = text, place

    @cached_property
    def made(self) -> Any:
        """The tokenizer itself."""
        tokenizers = _package()
        try:
            return tokenizers.Tokenizer.from_str(self.text)
        except Exception as error:  # the package raises plain Exceptions
            raise ValueError(f"{self.place} is no tokenizer.json that tokenizers reads: {error}") from error

    @property
    def size(self) -> int:
        """How many tokens a model must know: one more than the largest id."""
        return 1 + max(self.made.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def sha256(self) -> str:
        """A hash of all that it is."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text; bytes that are no UTF-8 are read as U+FFFD."""
        return self.made.encode(text.decode(errors="replace"), add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> bytes:
        """The text of tokens; those above its vocabulary are left out."""
        return self.made.decode([token for token in tokens if 0 <= token < self.size]).encode()

    def widths(self, texts: Sequence[str]) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
        """For each text its tokens, and how many of its bytes each of them stands for; the last takes what is left."""
        encodings = self.made.encode_batch(texts, add_special_tokens=False)
        return [_with_widths(text, found) for text, found in zip(texts, encodings, strict=True)]

    def tokens(self, texts: Sequence[str]) -> list[numpy.ndarray]:
        """For each text its tokens."""
        encode = getattr(self.made, "encode_batch_fast", self.made.encode_batch)
        return [numpy.array(found.ids, dtype=numpy.int64) for found in encode(texts, add_special_tokens=False)]

    def speaker(self) -> Callable[[int], str]:
        """What a new token adds to the text, told token by token."""
        from tokenizers.decoders import DecodeStream

        stream, size = DecodeStream(skip_special_tokens=False), self.size
        return lambda token: (stream.step(self.made, token) or "") if 0 <= token < size else ""


def _with_widths(text: str, encoding: Any) -> tuple[numpy.ndarray, numpy.ndarray]:
    data = numpy.frombuffer(text.encode(), dtype=numpy.uint8)
    place = numpy.append(numpy.flatnonzero((data & 0xC0) != 0x80), len(data))  # of each letter its first byte
    ids = numpy.array(encoding.ids, dtype=numpy.int64)
    ends = place[numpy.array([end for _, end in encoding.offsets], dtype=numpy.int64)]
    if len(ends):
        ends = numpy.maximum.accumulate(ends)
        ends[-1] = len(data)
    return ids, numpy.diff(ends, prepend=0)


def _package() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "a tokenizer needs the package tokenizers, which is not installed; pip install 'kinformer[tokenizers]'"
        ) from error
    return tokenizers


def wanted(text: str) -> Tokenizer | int | None:
    """What "bytes", "bpe:4096" or the path of a tokenizer.json names: nothing, the size of one to train, or itself.

    Raises FileNotFoundError, or ValueError in one line, for what is neither.
    """
    if text == "bytes":
        return None
    kind, colon, size = text.partition(":")
    if kind == "bpe" and colon:
        if not size.isdigit() or int(size) < LEAST:
            raise ValueError(f"tokenizer={text}: a byte-level BPE has at least {LEAST} tokens; write bpe:4096")
        _package()
        return int(size)
    path = Path(text).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"there is no tokenizer {text}; write bytes, bpe:4096 or the path of a tokenizer.json")
    return read(path)


def read(path: Path) -> Tokenizer:
    """The tokenizer of a file; ValueError, in one line, for what is none."""
    try:
        text = path.read_text(encoding="utf-8")
        known = isinstance(from_json(text), dict)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no tokenizer.json: it is no JSON, or cannot be read") from error
    found = Tokenizer(text, str(path))
    if not known or not found.size:
        raise ValueError(f"{path} is no tokenizer.json: it has no vocabulary")
    return found


def trained(texts: Iterable[str], size: int) -> Tokenizer:
    """A byte-level BPE of at most `size` tokens, fewer where the texts have no more pairs to merge.

    Source: Sennrich et al., 2016, arXiv:1508.07909; over bytes: Radford et al., 2019, "Language models are unsupervised
    multitask learners".
    """
    _package()
    from tokenizers import Tokenizer as Made
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = Made(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    return Tokenizer(made.to_str())


def tokenizer_of(spelled: str, texts: Iterable[bytes]) -> Tokenizer | None:
    """What "bytes", "bpe:4096" or the path of a tokenizer.json makes tokens by, learned from these texts."""
    found = wanted(spelled)
    return trained((text.decode(errors="ignore") for text in texts), found) if isinstance(found, int) else found
