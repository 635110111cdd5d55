"""Draws the strip of attention patterns in README.md, docs/patterns.svg: `python -m tests.patterns_picture`."""

import textwrap
from pathlib import Path

from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse

PICTURE = Path(__file__).parents[1] / "docs" / "patterns.svg"
TOKENS = 24  # rows and columns of a matrix
CELL = 7  # pixels of a pair of query and key
ACROSS = 4  # matrices side by side
PANEL = 240, 232  # width and height of a matrix with its texts
MARGIN = 14
PATTERNS = {
    "decoder": "Causal()",
    "sliding window": "Causal() & Band(5)",
    "window and sinks": "Causal() & (Band(5) | Tokens(2))",
    "Sparse Transformer, strided": "Causal() & (Band(6) | Strided(6))",
    "Sparse Transformer, fixed": "Causal() & Fixed(6, 1)",
    "Transformer-XL": "Causal() & Segment(6, 6)",
    "Longformer": "Band(3) | Tokens(2) | Rows(2)",
    "BigBird": "Block(3, 1, 1) | Tokens(3) | Rows(3) | Random(1, 3, symmetric=True)",
}
STYLE = """
  text { font-family: system-ui, sans-serif; text-anchor: middle; fill: #1f2328 }
  .name { font-size: 14px; font-weight: 600 }
  .code { font-family: ui-monospace, monospace; font-size: 11px; fill: #57606a }
  .card { fill: #ffffff; stroke: #d0d7de }
  .pairs { fill: #eaeef2 }
  .read { fill: #0969da }"""


def picture() -> str:
    """The strip as SVG. It brings its own light card, so that it is readable on light and on dark pages."""
    rows = -(-len(PATTERNS) // ACROSS)
    width, height = ACROSS * PANEL[0] + 2 * MARGIN, rows * PANEL[1] + 2 * MARGIN
    panels = [
        _panel(name, expression, MARGIN + n % ACROSS * PANEL[0], MARGIN + n // ACROSS * PANEL[1])
        for n, (name, expression) in enumerate(PATTERNS.items())
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            f"<title>Attention patterns: {', '.join(PATTERNS)}</title>",
            f"<style>{STYLE}\n</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *panels,
            "</svg>\n",
        ]
    )


def _panel(name: str, expression: str, x: int, y: int) -> str:
    side = TOKENS * CELL
    left, middle = x + (PANEL[0] - side) // 2, x + PANEL[0] // 2
    lines = textwrap.wrap(expression, 36)
    return "\n".join(
        [
            f'<rect class="pairs" x="{left}" y="{y}" width="{side}" height="{side}"/>',
            f'<path class="read" d="{_cells(parse(expression), left, y)}"/>',
            f'<text class="name" x="{middle}" y="{y + side + 22}">{name}</text>',
            *(
                f'<text class="code" x="{middle}" y="{y + side + 40 + 14 * n}">{line.replace("&", "&amp;")}</text>'
                for n, line in enumerate(lines)
            ),
        ]
    )


def _cells(pattern: Pattern, left: int, top: int) -> str:
    """A square for each pair of a query (row) and a key (column) that it reads, with a gap of a pixel."""
    size = CELL - 1
    pairs = pattern.matrix(TOKENS).nonzero().tolist()
    return "".join(f"M{left + CELL * key} {top + CELL * query}h{size}v{size}h-{size}z" for query, key in pairs)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
