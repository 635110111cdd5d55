"""The figure `sinkhorn`: blocks of keys that each head sorts, and the balancing of the weights."""

from collections.abc import Iterator

import torch
from torch import Tensor

from kinformer.nn.mechanisms.sort_networks import balance_causally, balance_matrix
from kinformer.pages.eight_tokens import TOKENS
from kinformer.pages.pictures.support.diagram import Diagram

LOGITS = (  # of each head: row n has a logit for each block in place n
    ((0.0, 0, 3, 0), (0, 0, 0, 3), (2, 0, 0, 3), (0, 3, 0, 0)),
    ((0.0, 0, 0, 3), (3, 0, 0, 0), (0, 3, 0, 0), (0, 0, 3, 0)),
)
TEMPERATURE, ITERATIONS, BLOCK = 0.75, 7, 2
BLOCKS = [" ".join(TOKENS[n : n + BLOCK]) for n in range(0, len(TOKENS), BLOCK)]


def draw() -> Iterator[Diagram]:
    """Yield the sorted blocks of two heads, and the weights before and after balancing."""
    for head, logits in enumerate(LOGITS):
        yield _sorted_blocks(head, sorting_weights(torch.tensor(logits), ITERATIONS))
    yield _balancing(torch.tensor(LOGITS[0]))


def sorting_weights(logits: Tensor, iterations: int, *, causal: bool = False) -> Tensor:
    """Return the weight of each block in each place after balancing.

    logits: a logit for each place and block.
    iterations: number of balancing steps; 0 is a softmax of each row.
    causal: whether a place gets earlier blocks only.
    """
    real = torch.ones(1, len(logits), dtype=torch.bool)
    logits = logits[None, None] / TEMPERATURE
    if causal:
        return balance_causally(logits, real, iterations)[0, 0]
    return balance_matrix(logits, real, iterations)[0, 0] if iterations else logits.softmax(-1)[0, 0]


def _sorted_blocks(head: int, weights: Tensor) -> Diagram:
    diagram = Diagram(
        f"head {head}: blocks of keys before and after the sort",
        kinds=tuple(f"block {n}" for n in range(len(BLOCKS))),
        note="An arrow is the largest weight of a place. Each place shows its two largest weights. "
        "A block of queries reads its own keys and the sorted keys above it.",
    )
    for y, words in ((1, "keys"), (13, "sorted keys"), (17, "queries")):
        diagram.words(0, y, words)
    for n, words in enumerate(BLOCKS):
        x = 14 + 21 * n
        value, block = (side.tolist() for side in weights[n].topk(2))
        diagram.box(x, 0, 18, 3, f"{n}: {words}", n + 1)
        mixture = f"{value[0]:.2f} × block {block[0]}\n+ {value[1]:.2f} × block {block[1]}"
        diagram.words(x + 6, 10, f"from {block[0]}", block[0] + 1)
        diagram.box(x, 11, 18, 4, mixture, block[0] + 1)
        diagram.box(x, 16, 18, 3, f"{n}: {words}", n + 1)
        diagram.words(21 + 21 * block[0], 3, f"to {n}", block[0] + 1)
        diagram.arrow((22.5 + 21 * block[0], 3.7), (22.5 + 21 * n, 9.3), kind=block[0] + 1)
    return diagram


def _balancing(logits: Tensor) -> Diagram:
    diagram = Diagram(
        "weights of the blocks (head 0)",
        kinds=("largest weight of a place",),
        note="A row is a place, and a column is a block. Balancing makes rows and columns sum to 1. An empty entry is "
        "not allowed: a decoder gets earlier blocks only.",
    )
    titles = ("softmax", f"{ITERATIONS} steps", "causal, softmax", f"causal, {ITERATIONS} steps")
    weights = [sorting_weights(logits, steps, causal=causal) for causal in (False, True) for steps in (0, ITERATIONS)]
    for panel, (title, matrix) in enumerate(zip(titles, weights, strict=True)):
        x = 26 * panel
        diagram.words(x, 0, title, bold=True)
        for n, row in enumerate(matrix.tolist()):
            diagram.words(x + 6 + 5 * n, 1, str(n))
            diagram.words(x, 2 + n, str(n))
            for m, weight in enumerate(row):
                if panel < 2 or m < n:
                    diagram.words(x + 3 + 5 * m, 2 + n, f"{weight:.2f}", int(weight == max(row)))
    return diagram
