"""The order in which a picture is generated block by block, and what lies around a block, in plain Python."""

import functools


@functools.cache
def generation_order(width: int, block: tuple[int, int], rows: int) -> list[tuple[int, int]]:
    """The places (row, column) of a picture in the order of generation: by blocks, and in each block by rows."""
    height, breadth = block
    corners = [(top, left) for top in range(0, rows, height) for left in range(0, width, breadth)]
    return [(top + r, left + c) for top, left in corners for r in range(height) for c in range(breadth)]


def is_around(i: int, j: int, width: int, block: tuple[int, int], memory: tuple[int, int], rows: int = 60) -> bool:
    """Is place j at most so many rows above or below the block of place i, and columns to its left or right?"""
    order = generation_order(width, block, rows)
    corner = order[i][0] // block[0] * block[0], order[i][1] // block[1] * block[1]
    return all(-memory[n] <= order[j][n] - corner[n] < block[n] + memory[n] for n in (0, 1))
