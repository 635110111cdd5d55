from collections import Counter

import pytest
import torch

from kinformer.lab.data.lanes import Lanes
from kinformer.lab.data.random_windows import RandomWindows

TEXT = torch.randint(256, (1000,), dtype=torch.uint8)
COUNT = torch.arange(250, dtype=torch.uint8)


def test_windows_are_pieces_of_the_text_and_come_again_by_seed() -> None:
    stream = RandomWindows(COUNT, batch=8, length=16, seed=3)
    batch = stream.at(5)
    assert batch.shape == (8, 17) and batch.dtype == torch.int64
    assert (batch.diff(dim=1) == 1).all()
    assert torch.equal(batch, RandomWindows(COUNT, 8, 16, seed=3).at(5))
    assert not torch.equal(batch, stream.at(6))
    assert not torch.equal(batch, RandomWindows(COUNT, 8, 16, seed=4).at(5))


def test_windows_reach_both_ends() -> None:
    starts = {int(row[0]) for step in range(60) for row in RandomWindows(COUNT[:20], 4, 16).at(step)}
    assert starts == {0, 1, 2, 3}


@pytest.mark.parametrize(("batch", "length"), [(1, 7), (3, 7), (4, 10), (7, 142), (5, 1)])
def test_lanes_show_every_transition_once_and_share_one_token(batch: int, length: int) -> None:
    lanes = Lanes(TEXT, batch, length)
    chunks = [lanes.at(step) for step in range(lanes.chunks)]
    assert all(torch.equal(a[:, -1], b[:, 0]) for a, b in zip(chunks, chunks[1:], strict=False))
    rows = [torch.cat([chunk[row, :-1] for chunk in chunks]).tolist() for row in range(batch)]
    read = sum(rows, [])
    assert read == TEXT[: len(read)].tolist()
    assert len(TEXT) - 1 - batch < len(read) <= len(TEXT) - 1
    targets = [torch.cat([chunk[row, 1:] for chunk in chunks]) for row in range(batch)]
    assert torch.cat(targets).tolist() == TEXT[1 : len(read) + 1].tolist()


def test_lanes_begin_again_after_a_reading() -> None:
    lanes = Lanes(TEXT, 4, 100)
    assert [step for step in range(10) if lanes.is_at_start(step)] == [0, 3, 6, 9]
    assert torch.equal(lanes.at(0), lanes.at(3))
    assert Counter(chunk.shape[1] - 1 for chunk in map(lanes.at, range(3))) == {100: 2, 49: 1}


def test_lanes_of_a_slice_read_the_slice() -> None:
    assert torch.equal(Lanes(TEXT[100:], 2, 10).at(0)[0], TEXT[100:111].long())


def test_a_text_too_short_says_what_is_there_and_what_is_needed() -> None:
    with pytest.raises(ValueError, match="got 1,000 bytes, but a window of length 1,000 needs 1,001"):
        RandomWindows(TEXT, 2, 1000)
    with pytest.raises(ValueError, match="got 1,000 bytes, but 4 lanes of length 250 need 1,001"):
        Lanes(TEXT, 4, 250)
    assert Lanes(TEXT, 3, 333).at(0).shape == (3, 334)
    assert RandomWindows(TEXT, 2, 999).at(0).shape == (2, 1000)


def test_windows_for_what_fills_in_hold_no_token_more() -> None:
    stream = RandomWindows(COUNT[:16], batch=2, length=16, after=0)
    assert torch.equal(stream.at(3), COUNT[:16].long().expand(2, -1))
    with pytest.raises(ValueError, match="a window of length 16 needs 16"):
        RandomWindows(COUNT[:15], batch=2, length=16, after=0)
