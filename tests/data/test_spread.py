"""What is measured of documents lies all over a split, and is the same for all who ask."""

import pytest
import torch

from kinformer.data.support.part import Part
from kinformer.data.text import Text

SIZES = [3 + n % 5 for n in range(200)]
ENDS = torch.tensor(SIZES).cumsum(0)
BEGINS = ENDS - torch.tensor(SIZES)
NUMBERS = torch.repeat_interleave(torch.arange(200), torch.tensor(SIZES)).to(torch.uint8)  # a document's own number


@pytest.mark.parametrize("width", [None, 2])
@pytest.mark.parametrize("limit", [2, 40, 101, 400])
def test_documents_are_from_all_over_and_in_order(limit: int, width: int | None) -> None:
    widths = None if width is None else torch.full_like(NUMBERS, width)
    found = Part(NUMBERS, BEGINS, widths).spread(limit)
    assert limit - (width or 1) < found.bytes <= limit
    there = found.tokens[found.firsts].tolist()
    assert there == sorted(set(there)) and found.tokens.tolist() == sorted(found.tokens.tolist())
    gaps = torch.diff(torch.tensor([0, *there, 199]))
    assert len(there) < 8 or int(gaps.max()) < 4 * 200 / len(there)  # no long stretch is passed over
    cut = [int(size) < SIZES[one] for one, size in zip(there, found.sizes, strict=True)]
    assert sum(cut) <= 1


def test_more_bytes_have_the_documents_of_fewer_and_enough_are_all() -> None:
    part = Part(NUMBERS, BEGINS)
    some, more = (set(part.spread(limit).tokens.tolist()) for limit in (60, 300))
    assert some < more
    whole = part.spread(len(NUMBERS) + 1)
    assert torch.equal(whole.tokens, NUMBERS) and whole.begins is not None and torch.equal(whole.begins, BEGINS)


def test_of_one_text_it_is_stretches_that_lie_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinformer.data.support.part.STRETCH", 20)
    whole = torch.arange(1000).to(torch.int32)
    for width in (None, 2):
        part = Part(whole, None, None if width is None else torch.full_like(whole, width))
        found = part.spread(110)
        assert len(found.firsts) == part.stretches(110) == 5 and found.bytes == 110
        assert found.tokens[found.firsts].tolist() == [0, 200, 400, 600, 800]
        assert torch.diff(found.tokens).sort().values[:-4].unique().tolist() == [1]  # each in one piece
        every = part.spread(2000)
        assert every is part and part.stretches(2000) == 1


def test_few_bytes_of_one_text_are_the_first() -> None:
    part = Part(NUMBERS)
    assert torch.equal(part.spread(50).tokens, NUMBERS[:50]) and part.stretches(50) == 1
    assert Part(NUMBERS, BEGINS).spread(None).tokens is NUMBERS


@pytest.mark.parametrize("limit", [4, 60, 2000])
def test_it_says_of_how_many_documents_it_is(limit: int) -> None:
    text = Text("toy", NUMBERS, NUMBERS, NUMBERS, begins={"train": BEGINS, "valid": BEGINS, "test": BEGINS})
    found = text.part("valid").spread(limit)
    count = len(set(found.tokens.tolist()))
    of = "one document of" if count == 1 else f"{count} documents from all over"
    assert text.measured("valid", 16, limit) == f"{found.bytes:,} bytes of {of} valid"
