"""The figure `blockwise`: key blocks in the order of each head's permutation, and their matrices."""

from collections.abc import Iterator

import torch

from kinformer.nn.patterns.blockwise import Blockwise
from kinformer.pages.eight_tokens import LABELS, TOKENS
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Panel, Picture, numbers

BLOCKS, WIDTH, LEFT = 2, 38, 16  # blocks of the eight tokens; columns of a block, first column of the blocks
SIZE, COUNT = 4, 3  # positions in a block and blocks of the matrices


def draw() -> Iterator[Diagram | Picture]:
    """Yield the blocks of two heads, and the matrices of three heads."""
    yield _blocks()
    shifts = (tuple((block + shift) % COUNT for block in range(COUNT)) for shift in range(COUNT))
    yield Picture(
        f"three heads with {COUNT} blocks of {SIZE} positions: the permutations are shifts by 0, 1 and 2",
        tuple(f"key block {block}" for block in range(COUNT)),
        tuple(_matrix(f"{permutation}", permutation) for permutation in shifts),
        note="A row is a query and a column is a key. The three heads together read every pair of positions once.",
    )


def _blocks() -> Diagram:
    size = len(TOKENS) // BLOCKS
    diagram = Diagram(
        "two heads with two blocks: each query block reads the key block below it",
        kinds=tuple(f"block {block}" for block in range(BLOCKS)),
        note="Keys are put into the order of the permutation. Then all products of blocks are one batched product.",
    )
    for head, permutation in enumerate(((0, 1), (1, 0))):
        y = 9 * head
        diagram.words(0, y, f"head {head}", bold=True)
        diagram.words(0, y + 2, "query block")
        diagram.words(0, y + 6, "key block")
        for place, block in enumerate(permutation):
            x = LEFT + (WIDTH + 4) * place
            diagram.box(x, y + 1, WIDTH, 3, _name(place, size), place + 1)
            diagram.box(x, y + 5, WIDTH, 3, _name(block, size), block + 1)
            diagram.arrow((x + WIDTH // 2, y + 5), (x + WIDTH // 2, y + 3.7), kind=block + 1)
    return diagram


def _name(block: int, size: int) -> str:
    words = ", ".join(LABELS[place] for place in range(block * size, (block + 1) * size))
    return f"block {block}: {words}"


def _matrix(title: str, permutation: tuple[int, ...]) -> Panel:
    length = SIZE * COUNT
    reads = Blockwise(permutation, SIZE).matrix(length)
    kind = reads * (1 + torch.arange(length) // SIZE)
    return Panel(f"permutation {title}", kind, reads.float(), numbers(length), numbers(length))
