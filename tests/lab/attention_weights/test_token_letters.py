r"""Texts of tokens: a letter belongs to the token with its last byte, and earlier bytes are written as \xe2."""

import codecs
import random
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Made
from tokenizers import decoders, models, pre_tokenizers

import kinformer as kf
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.lab.attention_weights.token_letters import token_bytes, token_letters

SNOWMAN = "a ☃é"  # ☃ has the bytes e2 98 83, and é has c3 a9


def shown(tokens: list[bytes]) -> list[str]:
    return [str(text) for text in token_letters(tokens)]


def test_a_letter_stands_at_its_last_byte() -> None:
    tokens = [bytes([byte]) for byte in SNOWMAN.encode()]
    assert shown(tokens) == ["a", " ", r"\xe2", r"\x98", "☃", r"\xc3", "é"]
    assert [text.letters for text in token_letters(tokens)] == ["a", " ", "", "", "☃", "", "é"]
    assert shown([b"a\xe2\x98", b"\x83b\xc3", b"", b"\xa9"]) == [r"a\xe2\x98", r"☃b\xc3", "", "é"]


def test_bytes_of_no_letter_are_written_as_they_are() -> None:
    assert shown([b"\xff", b"a\xe2", b"b", b"\x98", b"\xc3"]) == [r"\xff", r"a\xe2", "b", r"\x98", r"\xc3"]
    assert token_letters([b"a\xe2", b"b"])[0].cut == ""  # no later token ends this letter
    assert shown([b"\xed\xa0\x80"]) == [r"\xed\xa0\x80"]  # a surrogate is no letter in UTF-8
    assert token_letters([]) == []


def test_random_cuts_agree_with_an_incremental_decoder() -> None:
    draw = random.Random(0)
    for _ in range(200):
        text = "".join(draw.choice("ab é\n☃東京\N{GRINNING FACE}") for _ in range(draw.randrange(12))).encode()
        cuts = sorted(draw.randrange(len(text) + 1) for _ in range(draw.randrange(6)))
        tokens = [text[first:last] for first, last in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        decoder = codecs.getincrementaldecoder("utf-8")()
        assert [text.letters for text in token_letters(tokens)] == [decoder.decode(token) for token in tokens]


def byte_level() -> Made:
    """A byte-level BPE that joins the first two bytes of ☃."""
    first, second = (byte_letter(byte) for byte in (0xE2, 0x98))
    vocab = {letter: n for n, letter in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), first + second])}
    tokenizer = Made(models.BPE(vocab, [(first, second)]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_letter(byte: int) -> str:
    """The letter that stands for a byte in a byte-level tokenizer."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [other for other in range(256) if other not in own]
    return chr(byte if byte in own else 256 + others.index(byte))


def with_byte_fallback() -> Made:
    """A tokenizer with "▁" for a space and tokens such as <0xE2> for the bytes of unknown letters."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256, "a": 257, "▁a": 258}
    tokenizer = Made(models.BPE(vocab, [("▁", "a")], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        (byte_level(), [b"a", b" ", b"\xe2\x98", b"\x83", b"\xc3", b"\xa9"]),
        (with_byte_fallback(), [b"a", b" ", b"\xe2", b"\x98", b"\x83", b"\xc3", b"\xa9"]),
    ],
)
def test_tokens_of_bpe_keep_their_bytes(backend: Any, expected: list[bytes]) -> None:
    tokenizer = Tokenizer(backend.to_str())
    assert token_bytes(tokenizer, tokenizer.encode(SNOWMAN)) == expected
    torch.manual_seed(0)
    model = kf.gpt(d=16, depth=1, heads=2, vocab=300)
    model.tokenizer = tokenizer
    assert kf.look(model, SNOWMAN).tokens == expected


@pytest.mark.parametrize("has_decoder", [True, False])
def test_pieces_of_a_word_have_no_marks_and_words_have_spaces(has_decoder: bool) -> None:
    backend = Made(models.WordPiece({"[UNK]": 0, "the": 1, "name": 2, "##s": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if has_decoder:
        backend.decoder = decoders.WordPiece()
    assert token_bytes(Tokenizer(backend.to_str()), [1, 2, 3]) == [b"the", b" name", b"s"]
