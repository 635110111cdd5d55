"""The figure `bigbird`: window, global and random blocks, a path, and path lengths."""

from collections.abc import Iterator

import torch

from kinformer.core.pattern import Pattern
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.row_random import RowRandom
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.tokens import Tokens
from kinformer.pages.eight_tokens import LABELS
from kinformer.pages.figures.etc import draw_path
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Panel, Picture, numbers

BLOCKS = 16  # blocks of the matrices
MANY = 64  # blocks of the path lengths: 4,096 tokens in blocks of 64
STEP = 2.5  # columns per layer in the bars


def random_blocks(keys: int, length: int, head: int = 0) -> Pattern:
    """Return the random blocks of a head, drawn for each block outside its window and the global ends.

    keys: number of random blocks that each block draws.
    length: number of blocks of the text; a block has one position.
    head: index of the head.
    """
    return RowRandom(torch.tensor([[length - 1]]), keys, first=1, window=1, head=head)


def mean_path(pattern: Pattern, length: int) -> float:
    """Return the mean number of layers after which one position has reached another, over all pairs.

    pattern: keys that each position reads, the same in every layer.
    length: number of positions; all of them must be connected.
    """
    reads, reached = pattern.matrix(length).float(), torch.eye(length)
    layers, missing = 0, length * length
    while missing:
        missing = int((reached == 0).sum())
        layers += missing
        reached = ((reads @ reached) > 0).float()
    return layers / (length * length - length)


def draw() -> Iterator[Diagram | Picture]:
    """Yield the matrices of two heads, a path through a random block, and the mean path lengths."""
    yield Picture(
        f"blocks that each of {BLOCKS} blocks reads in two heads, with 1 random block each",
        ("window", "global", "random"),
        tuple(_matrix(head) for head in (0, 1)),
        "query block",
        "key block",
        note="Each head has its own random blocks. A drawn block does not read the block that drew it.",
    )
    near = Band(1) | random_blocks(1, len(LABELS))
    yield draw_path(
        "cat (1) reaches dog (5) in two layers, without a global token",
        (near, near),
        LABELS,
        (1, 2, 5),
        "Blocks of one token. dog reads its window and the random token 2, which has read its own window.",
    )
    yield _path_lengths()


def _matrix(head: int) -> Panel:
    ends = (0, BLOCKS - 1)
    kind = torch.zeros(BLOCKS, BLOCKS, dtype=torch.long)
    for number, part in ((3, random_blocks(1, BLOCKS, head)), (2, Tokens(ends) | Rows(ends)), (1, Band(1))):
        kind[part.matrix(BLOCKS)] = number
    return Panel(f"head {head}", kind, (kind > 0).float(), numbers(BLOCKS), numbers(BLOCKS))


def _path_lengths() -> Diagram:
    diagram = Diagram(
        f"mean number of layers between two of {MANY} blocks",
        note="Each layer moves information along one edge. A mean over all pairs.",
    )
    patterns: dict[str, Pattern] = {
        "window": Band(1),
        "window, 1 random": Band(1) | random_blocks(1, MANY),
        "window, 3 random": Band(1) | random_blocks(3, MANY),
        "window, 2 global": Band(1) | Tokens((0, MANY - 1)) | Rows((0, MANY - 1)),
    }
    for y, (title, pattern) in enumerate(patterns.items()):
        layers = mean_path(pattern, MANY)
        diagram.words(0, y, title)
        diagram.line((18, y), (18 + STEP * layers, y), kind=1)
        diagram.words(round(20 + STEP * layers), y, f"{layers:.1f}")
    return diagram
