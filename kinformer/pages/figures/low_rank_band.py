"""The figure `low_rank_band`: a narrow part over all keys and a wide part in a window, with a gate."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.nn.mechanisms.low_rank_band import LowRankBand
from kinformer.nn.patterns.band import Band
from kinformer.pages.eight_tokens import TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, of_most, shades

WIDTH, RIGHT = 36, 54  # width of a box, and first column of the right part
OPEN = 200.0  # b of a gate that is open


def draw() -> Iterator[Diagram | Picture]:
    """Yield the two parts of a head, then their weights and the gated mean."""
    yield _parts()
    yield _weights()


def _parts() -> Diagram:
    diagram = Diagram(
        "one head: two softmaxes, one set of values, one gate",
        kinds=("input", "low-rank part", "band"),
        note="r is smaller than d. In decoding, the left part keeps narrow keys, the right part only its window.",
    )
    left, right, middle = WIDTH // 2, RIGHT + WIDTH // 2, (RIGHT + WIDTH) // 2
    diagram.box(middle - 15, 0, 30, 3, "tokens x", 1)
    diagram.box(0, 5, WIDTH, 3, "q', k' of width r", 2)
    diagram.box(RIGHT, 5, WIDTH, 3, "q, k of width d", 3)
    diagram.box(0, 10, WIDTH, 4, "softmax over all keys\nT x T scores of rank r", 2)
    diagram.box(RIGHT, 10, WIDTH, 4, "softmax in the window\nT x (w + 1) scores", 3)
    diagram.box(middle - 15, 17, 30, 3, "g low + (1 - g) band")
    for x, side in ((left, -1), (right, 1)):
        diagram.arrow((middle + (14 if side > 0 else -15), 1), (x, 1), (x, 4.6))
        diagram.arrow((middle, 12), (middle + (8.2 if side > 0 else -9.2), 12))
        diagram.arrow((x, 7), (x, 9.6))
        diagram.arrow((x, 13), (x, 18), (middle + (14.8 if side > 0 else -15.8), 18))
    diagram.line((middle, 2), (middle, 12))
    diagram.words(middle + 1, 4, "values v")
    diagram.words(left - 6, 15, "low")
    diagram.words(right + 3, 15, "band")
    return diagram


def _weights() -> Picture:
    mechanism = LowRankBand(1, Causal() & Band(1), Causal(), rank=1).eval()
    parts = (("low-rank part", OPEN), ("band, w = 1", -OPEN), ("g = 0.5", 0.0))
    panels = tuple(shades(title, of_most(_read(mechanism, gate), 1), TOKENS, TOKENS) for title, gate in parts)
    return Picture(
        "causal weights of the example: r = 1, a window of 1 earlier token",
        (),
        panels,
        note="Each row is divided by its largest weight.",
    )


def _read(mechanism: LowRankBand, gate: float) -> Float[Tensor, "T T"]:
    x = token_vectors()
    narrow, ctx = x[None, None, :, :1], Context.of_sequence(x[None])
    queries = Queries(4 * x[None, None], ctx.pos[:, None], {"low_q": 4 * narrow})
    keys = Keys(x[None, None], torch.eye(len(x))[None, None], ctx.pos[:, None], {"low_k": narrow})
    assert mechanism.gate is not None
    with torch.no_grad():
        mechanism.gate.fill_(gate)
        return mechanism(queries, keys, None, ctx).y.y[0, 0]
