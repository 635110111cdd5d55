"""The figure `collaborative`: columns of single heads, and columns that heads share."""

from collections.abc import Iterator

import torch
from torch import Tensor

import kinformer as kf
from kinformer.pages.pictures.support.diagram import Diagram

KINDS = ("head 1", "head 2", "shared by both heads")
LEFT, STEP = 24, 13


def draw() -> Iterator[Diagram]:
    """Yield the mixing vectors of two heads with columns of their own, and with shared columns."""
    own = kf.Collaborative(2, 2, shared=4, mixing="concatenated", scale="head", content=False)
    yield _columns("multi-head attention: each head has columns of its own", own.mixing.detach(), (1, 1, 2, 2))
    shared = kf.Collaborative(2, 2, shared=2, mixing="ones", scale="head", content=False)
    with torch.no_grad():
        shared.mixing[1, 1] = -1.0
    yield _columns("collaborative attention: the same two heads with shared columns", shared.mixing.detach(), (3, 3))


def _columns(caption: str, mixing: Tensor, kinds: tuple[int, ...]) -> Diagram:
    diagram = Diagram(
        caption, kinds=KINDS, note="A score is the sum over columns of m * query * key. Only the keys are cached."
    )
    titles = ("query, x W^Q", "mixing m_1", "mixing m_2", "key, x W^K")
    for row, title in enumerate(titles):
        diagram.words(0, 4 * row + 1, title, row if row in (1, 2) else 0)
    for n, kind in enumerate(kinds):
        x = LEFT + STEP * n
        diagram.box(x, 0, 9, 3, f"q{n + 1}", kind)
        diagram.box(x, 12, 9, 3, f"k{n + 1}", kind)
        for h in (0, 1):
            weight = float(mixing[h, n])
            diagram.box(x, 4 + 4 * h, 9, 3, f"{weight:g}", h + 1, dashed=not weight)
        diagram.line((x + 4, 2), (x + 4, 4))
        diagram.line((x + 4, 6), (x + 4, 8))
        diagram.line((x + 4, 10), (x + 4, 12))
    return diagram
