"""Longformer: which tokens see which, windows by layer, and what it refuses."""

import pytest
import torch

from kinformer.members.longformer import longformer


def seen(window: int | tuple[int, ...], marked: int, depth: int = 1, length: int = 12) -> torch.Tensor:
    """Which outputs change with which token."""
    model = longformer(d=16, depth=depth, heads=2, window=window, marked=marked, length=length, vocab=11).eval()
    tokens = torch.randint(0, 11, (1, length))
    before, rows = model.logits(tokens).y, []
    for place in range(length):
        changed = tokens.clone()
        changed[0, place] = (changed[0, place] + 1) % 11
        rows.append((model.logits(changed).y - before)[0].abs().amax(-1) > 1e-9)
    return torch.stack(rows, 1)


def test_a_layer_reads_its_window_and_the_marked_tokens() -> None:
    at = torch.arange(12)
    near = (at[:, None] - at).abs() <= 2
    assert torch.equal(seen(2, 0), near)
    marked = at < 2
    assert torch.equal(seen(2, 2), near | marked[:, None] | marked)


def test_windows_add_up_over_layers() -> None:
    at = torch.arange(12)
    assert torch.equal(seen((1, 3), 0, depth=2), (at[:, None] - at).abs() <= 4)


def test_as_many_windows_as_layers() -> None:
    with pytest.raises(ValueError, match=r"window=\(1, 2\) has 2 numbers for depth=3 layers; give one, or one each"):
        longformer(d=16, depth=3, heads=2, window=(1, 2))
