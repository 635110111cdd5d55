"""Byte tokenizer, and functions that tokenize texts for any model."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from kinformer.checkpoint.lost_bytes import LostBytes
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.checkpoint.unknown_tokenizer import own_tokenizer

_BREAK = re.compile(rb"[^\s](?: (?=[^\s])|\n(?=[^\s]))")  # between two words, where no tokenizer joins letters
NOT_READ = "the model does not read the bytes without a token"
LEAST = 4096  # smallest number of bytes to cut; fewer may have no break between two words


class ByteTokenizer:
    """Tokenizer with one token per byte; ids above 255, such as the end of a target, decode to nothing."""

    def encode(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text."""
        return list(text.encode(errors="surrogateescape") if isinstance(text, str) else text)

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> bytes:
        """Return the text of tokens; the tokens before them, `after`, change nothing."""
        return bytes(token for token in tokens if 0 <= token < 256)

    def speaker(self, after: Sequence[int] = ()) -> Callable[[int], str]:
        """Return a function that takes the new tokens in turn and returns the text that each one adds.

        A character of several bytes is returned with its last byte.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda token: decoder.decode(self.decode([token]))


def tokenizer_of_model(model: Any) -> Any:
    """Return the tokenizer that a model was trained with, or a `ByteTokenizer`.

    It is an `UnknownTokenizer`, which refuses texts, if the model was trained on token ids alone.

    model: a trained model.
    """
    return own_tokenizer(model) or ByteTokenizer()


def begin_tokens(model: Any, tokenizer: Any, tokens: Sequence[int]) -> Sequence[int]:
    """Return the begin tokens that the tokenizer of a model of another library puts before a text.

    There are none for a model that kinformer trained, because its rows had none, and for a text that begins with them.

    model: the model.
    tokenizer: its tokenizer, by `tokenizer_of_model`.
    tokens: the text; a chat has begin tokens already.
    """
    begins = tokenizer.begins if isinstance(tokenizer, Tokenizer) and model.trained_on is None else ()
    return () if tuple(tokens[:1]) == begins[:1] else begins


def add_special_tokens(model: Any, tokenizer: Any, tokens: Sequence[int]) -> list[int]:
    """Return a whole text with the special tokens that a model of another library was trained with.

    A model that kinformer trained read none. A decoder of another library gets the begin tokens of its tokenizer. A
    masked model or a classifier of another library, such as BERT, gets the tokens before and behind a text, [CLS] and
    [SEP], as its tokenizer in transformers gives them. Tokens that the text already has are not repeated.

    model: the model.
    tokenizer: its tokenizer, by `tokenizer_of_model`.
    tokens: the text.
    """
    row = [*begin_tokens(model, tokenizer, tokens), *tokens]
    reads_both_sides = model.reads in ("masked", "labelled") and model.trained_on is None
    closing = tokenizer.closing if isinstance(tokenizer, Tokenizer) and reads_both_sides else ()
    return row if tuple(row[-1:]) == closing[-1:] else [*row, *closing]


def warn_of_loss(model: Any, texts: Iterable[bytes]) -> None:
    """Warn, in one line, if the model's tokenizer cannot restore all bytes of the input texts.

    model: a trained model.
    texts: texts that the model reads.
    """
    spelled, loss = tokenizer_of_model(model), LostBytes()
    if isinstance(spelled, ByteTokenizer):
        return
    for text in texts:
        read = text.decode(errors="replace")
        (encoded,) = spelled.encode_batch([read])
        loss = loss.plus(encoded.loss._replace(place=f"{read!r:.60}"))
    loss.warn("the input texts", NOT_READ if loss.unread else "")


def tokenize_blocks(model: Any, blocks: Iterable[bytes], name: str = "the text") -> Iterator[list[int]]:
    """Tokenize a text that arrives in blocks; the cuts between the blocks do not change the tokens.

    Only a tokenizer with tokens that span two words can give other tokens than for the whole text. At the end the
    function warns of bytes that the tokenizer cannot restore.

    model: a trained model.
    blocks: consecutive blocks of the text.
    name: name of the text in messages.

    Errors: ValueError if the tokenizer drops characters.
    """
    spelled, rest, loss = tokenizer_of_model(model), b"", LostBytes()
    if isinstance(spelled, ByteTokenizer):
        yield from map(spelled.encode, blocks)
        return
    for block in chain(blocks, [None]):
        rest += block or b""
        if not rest or (block is not None and len(rest) < LEAST):
            continue
        end = len(rest) if block is None else last_break(rest)
        (encoded,) = spelled.encode_batch([rest[:end].decode(errors="replace")])
        loss, rest = loss.plus(encoded.loss), rest[end:]
        yield encoded.tokens.tolist()
    spelled.report(loss, name)


def last_break(data: bytes) -> int:
    """Return the last byte offset at which a text can be cut without changing its tokens.

    The cut is before a single space or after a single newline in the last 64 KiB, otherwise between two characters.

    data: bytes of the text.
    """
    near = max(len(data) - (1 << 16), 0)
    for match in reversed(list(_BREAK.finditer(data, near))):
        return match.end() - (data[match.end() - 1 : match.end()] == b" ")
    end = len(data)
    while end > len(data) - 4 and data[end - 1] & 0xC0 == 0x80:
        end -= 1
    return end - 1 if data[end - 1] >= 0xC0 else len(data)
