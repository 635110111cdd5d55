"""The figure `nystromformer`: landmarks, the three small matrices, and the weights they yield."""

from collections.abc import Iterator

import torch

from kinformer.core.layer import Context
from kinformer.core.patterns.full import Full
from kinformer.nn.mechanisms.nystrom import Nystrom
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.pages.eight_tokens import LABELS, TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

MECHANISM = Nystrom(4)
BOX = 11  # columns of a token
LINES = {"L": 9, "m": 4}  # height of a matrix with as many rows
COLUMNS = {"L": 20, "m": 10, "d": 10}  # width of a matrix with as many columns


def draw() -> Iterator[Diagram | Picture]:
    """Yield the landmarks, the products with their sizes, and the matrices of the example."""
    yield _landmarks()
    yield _products()
    yield _matrices()


def _landmarks() -> Diagram:
    keys, ctx = token_vectors()[None, None], Context.of_sequence(token_vectors()[None])
    segments = MECHANISM.segments(ctx.pos[:, None], ctx)
    means = segments.means(keys)[0, 0]
    diagram = Diagram(
        "1. landmarks: means of segments of the keys; queries likewise",
        kinds=("token", "landmark"),
        note="A mean of vectors with different directions is short.",
    )
    for landmark, mean in enumerate(means):
        places = (segments.number[0] == landmark).nonzero()[:, 0].tolist()
        angle = torch.rad2deg(torch.atan2(mean[1], mean[0])).item()
        text = f"K~{landmark}: {angle:.0f} degrees\nlength {mean.norm().item():.2f}"
        left, width = BOX * places[0], BOX * len(places)
        diagram.box(left, 0, width, 4, text, 2)
        for place in places:
            middle = BOX * place + BOX // 2
            diagram.arrow((middle, 6), (middle, 3.6))
            diagram.box(BOX * place, 6, BOX, 3, LABELS[place], 1)
    return diagram


def _products() -> Diagram:
    diagram = Diagram(
        "2. products, from the right: B V, then A^+, then F",
        kinds=("softmax of scores", "pseudo-inverse", "values", "output"),
        note="m landmarks; no L x L matrix occurs. Nystromformer adds a convolution of V; CSALR does not.",
    )
    x = 0
    matrices = (("F", "L x m", 1, "x"), ("A^+", "m x m", 2, "x"), ("B", "m x L", 1, "x"), ("V", "L x d", 3, "="))
    for name, size, kind, sign in (*matrices, ("F A^+ B V", "L x d", 4, "")):
        rows, columns = size.split(" x ")
        height, width = LINES[rows], max(COLUMNS[columns], len(name) + 2)
        diagram.box(x, (LINES["L"] - height) // 2, width, height, f"{name}\n{size}", kind)
        diagram.words(x + width + 1, LINES["L"] // 2, sign)
        x += width + 3
    diagram.words(x - 2, LINES["L"] // 2, "+ conv(V) = Y")
    return diagram


def _matrices() -> Picture:
    keys, queries = token_vectors(), 4 * token_vectors()
    ctx = Context.of_sequence(keys[None])
    pos = ctx.pos[:, None]
    segments = MECHANISM.segments(pos, ctx)
    q, k = (segments.means(x[None, None]) for x in (queries, keys))
    count = segments.pos.shape[2]
    f = MECHANISM.attend(queries[None, None], pos, k, torch.eye(count)[None, None], segments.pos, ctx)[0, 0]
    b = MECHANISM.attend(q, segments.pos, keys[None, None], torch.eye(len(keys))[None, None], pos, ctx)[0, 0]
    landmarks = tuple(f"~{n}" for n in range(count))
    exact, estimate = (attention_weights(m, queries, keys) for m in (Softmax(Full()), MECHANISM))
    return Picture(
        "weights of the example: softmax, the matrices B and F (turned), and the estimate F A^+ B",
        (),
        (
            shades("softmax", exact, TOKENS, TOKENS),
            shades("B", b, landmarks, TOKENS),
            shades("F, turned", f.mT, landmarks, TOKENS),
            shades("F A^+ B", estimate.clamp_min(0), TOKENS, TOKENS),
        ),
        line="query or landmark",
        column="token",
        note="The estimate mixes neighbours that share a landmark. Its negative weights are left out here.",
    )
