"""Segments of a text: by sentence, line and paragraph."""

from typing import Any

import pytest
import torch

from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from kinformer.models.segments import segments


def numbers(text: str, unit: str) -> str:
    """The segment of each byte, as a digit below it."""
    result = segments(torch.tensor([list(text.encode())]), unit=unit)
    return "".join(str(n) for n in result[0].tolist())


@pytest.mark.parametrize(
    ("unit", "text", "want"),
    [
        ("sentence", "Hi. Pi is 3.1. So?\nYes", "0000111111111112222333"),
        ("sentence", "a... b", "000001"),
        ("line", "a\n\nb\n", "00122"),
        ("paragraph", "a\nb\n\n\nc\n\nd", "00000011" + "12"),
    ],
)
def test_units(unit: str, text: str, want: str) -> None:
    assert numbers(text, unit) == want


@pytest.mark.parametrize("unit", ["sentence", "line", "paragraph"])
def test_padding_belongs_to_no_segment_and_begins_none(unit: str) -> None:
    text = list(b"a. b\n\nc")
    tokens = torch.tensor([text + [-1] * 3, [-1] * 3 + text, [-1] * 10])
    result = segments(tokens, unit=unit)
    assert torch.equal(result[0, :7], result[1, 3:]) and result[0, 0] == 0 and result[0, 6] >= 1
    assert (result[tokens < 0] == -1).all()


def test_what_comes_later_changes_nothing() -> None:
    tokens = torch.randint(0, 12, (1, 40))
    for unit in ("sentence", "line", "paragraph"):
        whole = segments(tokens, unit=unit)
        for cut in (0, 1, 2, 3, 17):
            assert torch.equal(segments(tokens[:, :cut], unit=unit), whole[:, :cut])


@pytest.mark.parametrize("unit", ["sentence", "line", "paragraph"])
def test_a_token_is_of_the_segment_of_its_last_byte(unit: str) -> None:
    text = "Hi. Pi is 3.1. So?\nYes: no\n\nThe end. of it all\n\n\nThe end"
    tokenizer = train_tokenizer([text] * 9, 290)
    tokens = tokenizer.encode(text.encode())
    by_byte = segments(torch.tensor([list(text.encode())]), unit=unit)[0]
    ends = torch.tensor([len(tokenizer.decode([token])) for token in tokens]).cumsum(0)
    want = by_byte[ends - 1]
    rows = torch.tensor([[*tokens, -1, -1], [-1, -1, *tokens]])
    result = segments(rows, tokenizer, unit=unit)
    assert len(tokens) < len(text) and want[-1] > 0
    assert torch.equal(result[0, :-2], want) and torch.equal(result[1, 2:], want) and (result[rows < 0] == -1).all()
    cut = len(tokens) // 2
    assert torch.equal(segments(rows[:1, :cut], tokenizer, unit=unit)[0], want[:cut])


def test_word_pieces_end_sentences_and_lose_lines() -> None:
    """Spaces stand in no piece of BERT's; they come between words as a text is decoded."""
    from tokenizers import Tokenizer as Made
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    words = ["[UNK]", "[MASK]", "the", "cat", "##s", ".", "sat", "!", "3", "5"]
    word_piece: Any = Made(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    word_piece.normalizer, word_piece.decoder = normalizers.BertNormalizer(), decoders.WordPiece()
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = Tokenizer(word_piece.to_str())
    tokens = torch.tensor([tokenizer.encode(b"The cats sat. The cat! sat the cat")])
    assert segments(tokens, tokenizer).tolist() == [[0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]]
    hidden = tokens.masked_fill(tokens == 5, len(words))
    assert segments(hidden, tokenizer).tolist() == [[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]]
    with pytest.raises(ValueError, match="^unit=line cannot be found: tokens of tokenizer.json have no line ends"):
        segments(tokens, tokenizer, unit="line")
