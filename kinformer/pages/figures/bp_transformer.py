"""The figure `bp_transformer`: the tree of spans over a row, and the nodes that a token reads."""

from collections.abc import Iterator, Sequence

import torch

from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.span_tree import leaf, node
from kinformer.nn.patterns.tree import Tree
from kinformer.pages.eight_tokens import LABELS
from kinformer.pages.pictures.support.diagram import Diagram

LEFT = 9  # first column of the tree
KINDS = ("the token that reads", "nodes that it reads, with a ●")


def draw() -> Iterator[Diagram]:
    """Yield the tree of the eight tokens in an encoder and in a decoder, and a tree of sixteen positions."""
    words = LABELS
    yield _tree("nodes that dog (5) reads in an encoder; k = 1", Tree(1), 5, words, 10)
    yield _tree("nodes that dog (5) reads in a decoder; k = 1", Causal() & Tree(1), 5, words, 10)
    yield _tree(
        "nodes that token 15 reads in a decoder; k = 2", Causal() & Tree(2), 15, [str(place) for place in range(16)], 5
    )


def _tree(caption: str, pattern: Pattern, token: int, names: Sequence[str], width: int) -> Diagram:
    """Return the tree over some tokens: each span is a box over its tokens.

    caption: caption of the diagram.
    pattern: nodes that a token reads, by their positions in post-order.
    token: index of the token that reads.
    names: names of the tokens; their number is a power of two.
    width: columns of a token's box.
    """
    diagram = Diagram(caption, kinds=KINDS, note="A span is a box over its tokens, and reads these tokens.")
    length = 2 * len(names) - 1
    reader = int(leaf(torch.tensor(token)))
    reads = pattern.matrix(length)[reader]
    levels = (len(names) - 1).bit_length()
    for level in range(levels + 1):
        diagram.words(0, 3 * (levels - level) + 1, f"level {level}")
    for position in range(length):
        level, number = (int(x) for x in node(torch.tensor(position)))
        first, last = number << level, ((number + 1) << level) - 1
        kind = 1 if position == reader else 2 * int(reads[position])
        text = "●" * (kind == 2) + (names[first] if level == 0 else f"{first}-{last}")
        diagram.box(LEFT + width * first, 3 * (levels - level), width << level, 3, text, kind)
    return diagram
