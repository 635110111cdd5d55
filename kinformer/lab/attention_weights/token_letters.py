r"""token_letters: readable text of each token, also where a token cuts a letter."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.checkpoint.unknown_tokenizer import UnknownTokenizer

LONGEST = 4  # bytes of a letter in UTF-8
BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # name of the token of a byte in a tokenizer with byte fallback


class TokenText(NamedTuple):
    r"""Text of a token.

    letters: the letters whose last byte belongs to the token. A byte that belongs to no letter is written as `\xff`.
    cut: bytes at the end of the token, written as `\xe2`, whose letter ends in a later token.
    """

    letters: str
    cut: str = ""

    def __str__(self) -> str:
        return self.letters + self.cut


def token_letters(tokens: Iterable[bytes]) -> list[TokenText]:
    r"""Return the text of each token; a letter of several bytes belongs to the token with its last byte.

        token_letters([b"a", b"\xc3", b"\xa9"])  # texts "a", "\xc3" as four characters, and "é"

    tokens: the bytes of each token, in the order of the text.
    """
    pieces = list(tokens)
    text, ends = b"".join(pieces), list(accumulate(map(len, pieces)))
    letters, cuts = [""] * len(pieces), [""] * len(pieces)
    place = 0
    while place < len(text):
        size, letter = _letter(text, place)
        last = bisect_right(ends, place + size - 1)
        for byte in range(place, place + size):
            token = bisect_right(ends, byte)
            if token != last:
                cuts[token] += _escape(text[byte])
        letters[last] += letter
        place += size
    return [TokenText(*pair) for pair in zip(letters, cuts, strict=True)]


def _letter(text: bytes, place: int) -> tuple[int, str]:
    """Return the number of bytes and the text of the letter at a place, or of one byte that begins no letter."""
    for size in range(1, LONGEST + 1):
        try:
            return size, text[place : place + size].decode()
        except UnicodeDecodeError:
            continue
    return 1, _escape(text[place])


def _escape(byte: int) -> str:
    return f"\\x{byte:02x}"


def token_bytes(tokenizer: Any, tokens: Sequence[int]) -> list[bytes]:
    """Return the bytes of each token of a text.

    A token of a byte-level tokenizer, or of one with byte fallback, may hold only some bytes of a letter.

    tokenizer: the tokenizer of a model, as `tokenizer_of_model` returns it.
    tokens: ids of the tokens.
    """
    if not isinstance(tokenizer, Tokenizer) or isinstance(tokenizer, UnknownTokenizer):
        return [tokenizer.decode([token]) for token in tokens]
    table = tokenizer.token_bytes
    if table is not None:  # a byte-level tokenizer
        return [table[token] if 0 <= token < len(table) else b"" for token in tokens]
    texts = []
    for place, token in enumerate(tokens):
        # some tokenizers drop the first space of a text
        piece = tokenizer.decode([token], after=tokens[max(place - 1, 0) : place])
        name: str = tokenizer.backend.id_to_token(token) or "" if token >= 0 else ""
        is_byte = BYTE.fullmatch(name) is not None and tokenizer.decode([token]) != name.encode()
        within = tokenizer.backend.decoder is None and getattr(
            tokenizer.backend.model, "continuing_subword_prefix", None
        )
        if within and name.startswith(within):  # WordPiece without a decoder
            piece = name.removeprefix(within).encode()
        texts.append(bytes.fromhex(name[3:5]) if is_byte else piece)
    return texts
