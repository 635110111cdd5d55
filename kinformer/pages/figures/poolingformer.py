"""The figure `poolingformer`: a window of single keys, and pooled keys of a wider window above it."""

from collections.abc import Iterator

from kinformer import Band, MeanWindows, Pooling, Softmax
from kinformer.pages.eight_tokens import LABELS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

NEAR, FAR, KERNEL, STRIDE, QUERY, LENGTH = 1, 3, 3, 2, 4, 4.0


def draw() -> Iterator[Diagram | Picture]:
    """Yield the two levels of one query, and the weights of all queries."""
    yield _levels()
    x = token_vectors()
    near = attention_weights(Softmax(Band(NEAR)), LENGTH * x, x)
    y = near @ x  # the second level reads the outputs of the first
    far = attention_weights(Pooling(FAR, MeanWindows(KERNEL), stride=STRIDE), LENGTH * y, y)
    panels = (
        shades("near level", near, LABELS, LABELS),
        shades("far level", far, LABELS, LABELS),
        shades("both", (near + far @ near) / 2, LABELS, LABELS),
    )
    note = "The far level reads outputs of the near level, so the sum of both reaches further than either."
    yield Picture("weights of the tokens", (), panels, note=note)


def _levels() -> Diagram:
    diagram = Diagram(
        f"the two levels of the query {LABELS[QUERY]}",
        kinds=("read by the near level", "read by the far level", "output"),
        note=f"Near: {NEAR} token on either side. Far: {FAR} on either side, "
        f"pooled in kernels of {KERNEL} tokens that start {STRIDE} apart.",
    )

    def column(place: int) -> int:
        return 16 + 10 * place

    for y, words in ((1, "inputs x"), (7, "outputs y"), (11, "pooled keys"), (18, "output")):
        diagram.words(0, y, words)
    middle = column(QUERY) + 4
    for place, name in enumerate(LABELS):
        is_near, is_far = abs(place - QUERY) <= NEAR, abs(place - QUERY) <= FAR
        diagram.box(column(place), 0, 9, 3, name, 1 if is_near else 0)
        diagram.box(column(place), 6, 9, 3, f"y{place}", 2 if is_far else 0)
        if is_near:
            diagram.line((column(place) + 4, 2.6), (middle, 4))
    diagram.arrow((middle, 4), (middle, 5.3))
    ends = []
    for n, first in enumerate(range(QUERY - FAR, QUERY + FAR - KERNEL + 2, STRIDE)):
        last, y = first + KERNEL - 1, 12 - 2 * (n % 2)
        diagram.box(column(first), y, column(last) + 9 - column(first), 1, f"pool of y{first} to y{last}", 2)
        ends.append((column(first) + 14, y + 0.6))
    for end in ends:
        diagram.line(end, (middle, 15))
    diagram.arrow((middle, 15), (middle, 16.3))
    diagram.box(middle - 8, 17, 17, 3, f"y{QUERY} + z{QUERY}", 3)
    diagram.words(middle + 3, 16, f"z{QUERY}")
    return diagram
