"""Segments of a text: by sentence, line and paragraph."""

import pytest
import torch

from kinformer.data.segments import segments


def numbers(text: str, unit: str) -> str:
    """The segment of each byte, as a digit below it."""
    found = segments(torch.tensor([list(text.encode())]), unit)
    return "".join(str(n) for n in found[0].tolist())


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
    found = segments(tokens, unit)
    assert torch.equal(found[0, :7], found[1, 3:]) and found[0, 0] == 0 and found[0, 6] >= 1
    assert (found[tokens < 0] == -1).all()


def test_what_comes_later_changes_nothing() -> None:
    tokens = torch.randint(0, 12, (1, 40))
    for unit in ("sentence", "line", "paragraph"):
        whole = segments(tokens, unit)
        for cut in (0, 1, 2, 3, 17):
            assert torch.equal(segments(tokens[:, :cut], unit), whole[:, :cut])
