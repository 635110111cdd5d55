"""Entries: what is found does not depend on how many queries are looked at together, nor on their precision."""

import pytest
import torch

from kinformer.core import neighbours
from kinformer.core.neighbours import Entries


def test_few_differences_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    store = Entries(torch.randn(20, 3, generator=generator), torch.arange(20))
    queries = torch.randn(7, 3, generator=generator)
    whole, sizes = store.search(queries, 4), list[int]()
    sort = torch.Tensor.sort

    def watched(self: torch.Tensor, **options: bool) -> object:
        sizes.append(len(self))
        return sort(self, **options)

    monkeypatch.setattr(neighbours, "NUMBERS", 150)
    monkeypatch.setattr(torch.Tensor, "sort", watched)
    nearest_found = store.search(queries, 4)
    assert sizes == [2, 2, 2, 1]
    assert all(a.equal(b) for a, b in zip(nearest_found, whole, strict=True))
    assert store.search(queries[:0], 4).tokens.shape == (0, 4)


def test_distances_are_in_float32_or_better() -> None:
    store = Entries(torch.tensor([[1.0, 0.0], [1.001, 0.0]]), torch.arange(2))
    neighbours = store.search(torch.tensor([[1.0005, 0.0], [2.0, 0.0]], dtype=torch.bfloat16), 2)
    assert neighbours.distances.dtype == torch.float32 and neighbours.places.tolist() == [[0, 1], [1, 0]]
    assert store.search(torch.zeros(1, 2, dtype=torch.float64), 1).distances.dtype == torch.float64
