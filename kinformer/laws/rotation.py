"""Law rotation: a rotation keeps the lengths of vectors, and depends on positions only by distances.

The dot product of a rotated query and a rotated key depends on the distance of their positions.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from kinformer.core.position import Rotation
from kinformer.laws.support.comparisons import agree
from kinformer.laws.support.findings import findings
from kinformer.laws.support.subject import build_module

SAYS = "the rotation keeps lengths, does nothing at position 0, and makes products depend only on the distance"
OVER = "rotation"
WIDTH, LENGTH = 8, 9  # width of a head, and number of positions
LATER = (1, 5, 900)


def judge(rotation: Rotation) -> Iterator[str]:
    """Compare dot products of rotated queries and keys before and after all positions grow by a number.

    rotation: the rotation to test, such as rotary positions.

    The test yields a sentence for each difference. A rotation must also keep the length of vectors, do nothing at
    position 0, and turn all heads equally.
    """
    rotation = build_module(lambda: rotation)
    yield from findings(_lengths, rotation)
    yield from findings(_distances, rotation)


@torch.no_grad()
def _lengths(rotation: Rotation) -> None:
    x, first = _numbers(0), torch.zeros(2, LENGTH, dtype=torch.long)
    agree(rotation(x, first), x, "the rotation changes a vector at position 0")
    agree(rotation(x, _positions()).norm(dim=-1), x.norm(dim=-1), "the rotation changes the length of a vector")


@torch.no_grad()
def _distances(rotation: Rotation) -> None:
    q, k, pos = _numbers(1), _numbers(2), _positions()
    products = _products(rotation, q, k, pos)
    for offset in LATER:
        sentence = f"products of queries and keys at equal distances change if positions grow by {offset}"
        agree(_products(rotation, q, k, pos + offset), products, sentence)
    agree(rotation(q.flip(1), pos), rotation(q, pos).flip(1), "the rotation turns one head differently from another")


def _products(rotation: Rotation, q: Tensor, k: Tensor, pos: Tensor) -> Tensor:
    return rotation(q, pos) @ rotation(k, pos).mT


def _positions() -> Tensor:
    """Return the positions of two rows; the second row is backwards."""
    at = torch.arange(LENGTH)
    return torch.stack([at, at.flip(0)])


def _numbers(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 2, LENGTH, WIDTH, generator=generator, dtype=torch.float64)
