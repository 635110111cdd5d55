"""Tokens of the rows of a data set, and the text of UTF-8 bytes."""

from collections.abc import Iterable

from kinformer.checkpoint.lost_bytes import LostBytes
from kinformer.checkpoint.tokenizer import Tokenizer


def decode_utf8(data: bytes, place: str) -> str:
    """Return the text of UTF-8 bytes.

    data: bytes of the text.
    place: name of the text in messages.

    Errors: ValueError, with the place, for other bytes.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{place} is not UTF-8: got the byte 0x{data[error.start]:02x}, but a tokenizer reads only UTF-8; "
            "convert the text, or use tokenizer=bytes"
        ) from error


def encode_rows(
    tokenizer: Tokenizer | None, rows: Iterable[tuple[str, bytes]], name: str
) -> list[bytes] | list[list[int]]:
    """Tokenize many short texts; without a tokenizer, return their bytes.

    It warns of lost bytes, with the name of the data.

    tokenizer: tokenizer to use; None for bytes.
    rows: for each text its place in the data, for messages, and its bytes.
    name: name of the data.

    Errors: ValueError for a text without any token.
    """
    places, texts = zip(*rows, strict=True)
    if tokenizer is None:
        return list(texts)
    encodings = tokenizer.encode_batch([decode_utf8(text, place) for place, text in zip(places, texts, strict=True)])
    whole = LostBytes()
    for place, encoding in zip(places, encodings, strict=True):
        if not len(encoding.tokens):
            raise ValueError(f"{place} has a text for which the tokenizer returns no token; give another tokenizer")
        whole = whole.plus(encoding.loss._replace(place=place))
    tokenizer.report(whole, name)
    return [encoding.tokens.tolist() for encoding in encodings]
