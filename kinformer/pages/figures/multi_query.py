"""The figure `multi_query`: query heads that share keys and values, and the size of the cache."""

from collections.abc import Iterator

import kinformer as kf
from kinformer.pages.pictures.support.diagram import Diagram

HEADS, WIDTH, D = 8, 128, 1024  # of the paper's translation model
FORMS = {8: "multi-head: G = 8", 2: "grouped-query: G = 2", 1: "multi-query: G = 1"}
LEFT, STEP, ROW = 30, 8, 10  # column of the first head, columns for each head, lines for each form


def draw() -> Iterator[Diagram]:
    """Yield the sharing of key heads in three forms of attention."""
    diagram = Diagram(
        f"{HEADS} query heads and G heads of keys and values",
        kinds=("query head, not cached", "head of keys and values, cached"),
        note=f"Numbers are for heads of width {WIDTH}. Each query head has its own scores in all three forms.",
    )
    for row, (groups, title) in enumerate(FORMS.items()):
        y, share = ROW * row, HEADS // groups
        projection = kf.QKV(D, HEADS, key_heads=groups, head_dim=WIDTH)
        diagram.words(0, y + 1, title, bold=True)
        diagram.words(0, y + 3, "cache for each token:")
        diagram.words(0, y + 4, f"{sum(projection.widths[1:]):,} numbers", 2)
        for h in range(HEADS):
            x = LEFT + STEP * h
            diagram.box(x, y, 6, 3, f"q{h + 1}", 1)
            first = LEFT + STEP * share * (h // share)
            middle = first + (STEP * share - 2) // 2
            bend = (x + 3, y + 4), (middle, y + 4)
            diagram.line((x + 3, y + 2), *(bend if bend[0] != bend[1] else bend[:1]), kind=1)
        for g in range(groups):
            x = LEFT + STEP * share * g
            diagram.arrow((x + (STEP * share - 2) // 2, y + 4), (x + (STEP * share - 2) // 2, y + 5.4), kind=1)
            text = f"k{g + 1} v{g + 1}" if share == 1 else f"k{g + 1} and v{g + 1}"
            diagram.box(x, y + 6, STEP * share - 2, 3, text if share > 1 else f"kv{g + 1}", 2)
    yield diagram
