"""What is measured of documents lies all over a split, and is the same for all who ask."""

import pytest
import torch

from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.data.text import TextData

SIZES = [3 + n % 5 for n in range(200)]
ENDS = torch.tensor(SIZES).cumsum(0)
BEGINS = ENDS - torch.tensor(SIZES)
NUMBERS = torch.repeat_interleave(torch.arange(200), torch.tensor(SIZES)).to(torch.uint8)  # a document's own number


@pytest.mark.parametrize("width", [None, 2])
@pytest.mark.parametrize("limit", [2, 40, 101, 400])
def test_documents_are_from_all_over_and_in_order(limit: int, width: int | None) -> None:
    widths = None if width is None else torch.full_like(NUMBERS, width)
    sample = SplitTokens(NUMBERS, BEGINS, widths).spread(limit)
    assert limit - (width or 1) < sample.bytes <= limit
    starts = sample.tokens[sample.document_starts].tolist()
    assert starts == sorted(set(starts)) and sample.tokens.tolist() == sorted(sample.tokens.tolist())
    gaps = torch.diff(torch.tensor([0, *starts, 199]))
    assert len(starts) < 8 or int(gaps.max()) < 4 * 200 / len(starts)  # no long stretch is passed over
    cut = [int(size) < SIZES[start] for start, size in zip(starts, sample.sizes, strict=True)]
    assert sum(cut) <= 1


def test_more_bytes_have_the_documents_of_fewer_and_enough_are_all() -> None:
    part = SplitTokens(NUMBERS, BEGINS)
    few, many = (set(part.spread(limit).tokens.tolist()) for limit in (60, 300))
    assert few < many
    whole = part.spread(len(NUMBERS) + 1)
    assert torch.equal(whole.tokens, NUMBERS) and whole.begins is not None and torch.equal(whole.begins, BEGINS)


@pytest.mark.parametrize("width", [None, 2])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(
    ("limit", "length"), [(8_192, 0), (20_000, 0), (65_536, 0), (65_536, 500), (5_000, 0), (5_000, 700)]
)
def test_long_texts_are_cut_into_stretches_that_lie_evenly(
    limit: int, length: int, documents: bool, width: int | None
) -> None:
    whole = torch.arange(300_000).to(torch.int32)
    begins = torch.arange(0, 300_000, 60_000) if documents else None
    part = SplitTokens(whole, begins, None if width is None else torch.full_like(whole, width))
    sample, wide = part.spread(limit, length), width or 1
    assert limit - wide < sample.bytes <= limit
    starts = sample.tokens[sample.document_starts].tolist()
    assert starts == sorted(starts) and sample.tokens.tolist() == sorted(sample.tokens.tolist())
    least = max(1024, 4 * length * wide, limit // 16 * documents)
    least = min(least, max(limit // 8, 512))
    sizes = (sample.sizes * wide).tolist()
    assert len(starts) >= 8 and max(sizes) <= least and sum(size < least / 2 for size in sizes) <= 1
    gaps = torch.diff(torch.tensor([0, *starts, 300_000]))
    assert int(gaps.max()) < 4 * 300_000 / len(starts)  # no long stretch is passed over
    if documents:  # none over the end of another
        ends = sample.tokens[torch.cat([sample.document_starts[1:], torch.tensor([len(sample.tokens)])]) - 1]
        assert torch.equal(sample.tokens[sample.document_starts] // 60_000, ends // 60_000)
    assert part.spread(10**9, length) is part


def test_few_bytes_of_one_text_are_the_first() -> None:
    part = SplitTokens(NUMBERS)
    assert torch.equal(part.spread(50).tokens, NUMBERS[:50]) and len(part.spread(50).document_starts) == 1
    assert SplitTokens(NUMBERS, BEGINS).spread(None).tokens is NUMBERS


@pytest.mark.parametrize("limit", [4, 60, 2000])
def test_it_says_of_how_many_documents_it_is(limit: int) -> None:
    text = TextData("toy", NUMBERS, NUMBERS, NUMBERS, begins={"train": BEGINS, "valid": BEGINS, "test": BEGINS})
    sample = text.part("valid").spread(limit)
    count = len(set(sample.tokens.tolist()))
    expected = f"{sample.bytes:,} bytes in {count} pieces of documents, spread over valid"
    if count in (1, 200):
        expected = f"the first {sample.bytes:,} bytes of valid"
    assert text.describe_sample("valid", 16, limit) == expected
