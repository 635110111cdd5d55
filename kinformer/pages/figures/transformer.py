"""The figure `transformer`: its architecture, the two orders of norm and sum, and a tree of changes."""

from collections.abc import Iterator

from kinformer.pages.figures.softmax import Branches, draw_tree
from kinformer.pages.pictures.support.diagram import Diagram

ENCODER, DECODER, WIDTH = 16, 56, 24  # first columns of both sides, and the width of a box
BRANCHES: Branches = {
    "parts": {
        "attention": (("longformer", "performer", "nystromformer"),),
        "positions": (("shaw", "transformer_xl", "t5"), ("llama", "bloom", "da_transformer")),
        "norms, residuals": (("transformer", "gpt", "gpt_neox", "gtrxl"), ("reformer",)),
        "feed-forward": (("llama", "universal_transformer"),),
    },
    "whole model": {
        "recurrence, memory": (("transformer_xl", "compressive_transformer"), ("memorizing_transformer", "spalm")),
        "adaptive depth": (("universal_transformer", "depth_adaptive"), ("calm",)),
        "hierarchy": (("bp_transformer", "poolingformer", "informer"),),
        "cheaper layers": (("lazyformer", "average_attention"),),
    },
    "pretraining": {
        "encoder": (("bert", "bigbird", "etc", "longformer"),),
        "decoder": (("gpt", "llama", "bloom"),),
        "encoder-decoder": (("t5",),),
    },
    "application": {
        "translation": (("transformer", "shaw"),),
        "pictures": (("image_transformer", "axial_transformer"),),
        "time series, sets": (("informer", "set_transformer"),),
        "decisions": (("gtrxl", "decision_transformer"),),
    },
}


def draw() -> Iterator[Diagram]:
    """Yield the architecture, the two kinds of blocks, and the places of later changes."""
    yield _architecture()
    yield _norms()
    yield draw_tree(
        "later changes (after Lin et al., 2021, arXiv:2106.04554), and members of this package", "Transformer", BRANCHES
    )


def _sublayer(diagram: Diagram, x: int, y: int, name: str, side: int) -> None:
    """Draw a sublayer with its residual connection and norm, and the arrow that enters it from below."""
    middle, out = x + WIDTH // 2, x - 4 if side < 0 else x + WIDTH + 3
    edge = x - 0.6 if side < 0 else x + WIDTH - 0.4
    diagram.box(x, y, WIDTH, 3, "add & norm", 2)
    diagram.box(x, y + 3, WIDTH, 3, name, 1)
    diagram.arrow((middle, y + 8), (middle, y + 5.51))
    diagram.arrow((middle, y + 7), (out, y + 7), (out, y + 1), (edge, y + 1))


def _architecture() -> Diagram:
    diagram = Diagram(
        "the Transformer of 2017, from the bottom to the top; six blocks on either side",
        kinds=("learned", "norm and residual sum"),
        note="Lines around a sublayer are residual connections. All blocks of the decoder read the last encoder block.",
    )
    for y, name in ((12, "feed-forward"), (20, "self-attention, full")):
        _sublayer(diagram, ENCODER, y, name, -1)
    for y, name in ((12, "feed-forward"), (20, "cross-attention"), (28, "self-attention, causal")):
        _sublayer(diagram, DECODER, y, name, 1)
    left, right = ENCODER + WIDTH // 2, DECODER + WIDTH // 2
    diagram.box(DECODER, 0, WIDTH, 3, "softmax: next token")
    diagram.box(DECODER, 5, WIDTH, 3, "linear", 1)
    diagram.arrow((right, 5), (right, 2.51))
    diagram.arrow((right, 12), (right, 7.51))
    for x, y, text in ((ENCODER, 28, "the cat sat and"), (DECODER, 36, "begin the dog sat")):
        diagram.box(x, y, WIDTH, 3, "embedding + positions", 1)
        diagram.arrow((x + WIDTH // 2, y + 5), (x + WIDTH // 2, y + 2.51))
        diagram.words(x + WIDTH // 2 - len(text) // 2, y + 6, text)
    cross = 24  # line of the middle of cross-attention
    diagram.arrow((left, 12), (left, 10), (47, 10), (47, cross), (DECODER - 0.6, cross))
    diagram.words(49, cross - 1, "K, V")
    for x, bottom, label in ((6, 26, "6 blocks"), (90, 34, "6 blocks")):
        diagram.line((x, 12), (x, bottom), dashed=True)
        diagram.words(x - 4, 11, label)
    diagram.words(left - 14, 9, "output of the encoder")
    return diagram


def _norms() -> Diagram:
    diagram = Diagram(
        "a sublayer f with its residual sum: post-norm (2017) and pre-norm (GPT-2)",
        kinds=("sublayer", "norm"),
        note="With pre-norm a path without any norm leads from input to output. A last norm follows the stack.",
    )
    for y, title, boxes in ((0, "post-norm", ("f", "+", "norm")), (8, "pre-norm", ("norm", "f", "+"))):
        diagram.words(0, y + 1, title)
        diagram.words(14, y + 1, "x")
        for n, text in enumerate(boxes):
            x = 26 + 18 * n
            diagram.box(x, y, 10, 3, text, {"f": 1, "norm": 2}.get(text, 0))
            diagram.arrow((x - 9 if n else 16, y + 1), (x - 0.6, y + 1))
        sum_at = 26 + 18 * boxes.index("+") + 5
        diagram.arrow((20, y + 1), (20, y + 5), (sum_at, y + 5), (sum_at, y + 2.51))
        diagram.arrow((71, y + 1), (76, y + 1))
        diagram.words(78, y + 1, "output")
    return diagram
