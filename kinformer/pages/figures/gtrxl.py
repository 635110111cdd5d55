"""The figure `gtrxl`: a layer of TrXL, TrXL-I and GTrXL, and the share of x that the gates keep."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.pictures.support.diagram import Diagram

PANEL, WIDE, NARROW = 33, 29, 22  # columns of a panel, of a box on the stream and of a box beside it
BIASES, SUBLAYERS, BAR = (0.0, 1.0, 2.0, 5.0), 8, 60
TRXL = (("attention", 1), ("add", 3), ("norm", 2), ("feed-forward", 1), ("add", 3), ("norm", 2))
TRXL_I = (("norm", 2), ("attention, ReLU", 1), ("add", 3), ("norm", 2), ("feed-forward, ReLU", 1), ("add", 3))
GTRXL = tuple((text, 4) if text == "add" else (text, kind) for text, kind in TRXL_I)


def draw() -> Iterator[Diagram]:
    """Yield the three layers side by side, and the share of the stream that the gates keep at the start."""
    yield _layers()
    yield _shares()


def share(b_g: float) -> float:
    """Return the factor of x after one gate whose matrices are still 0.

    b_g: initial bias of the gate.
    """
    gate = kf.GRUGate(1, b_g)
    for matrix in (gate.w, gate.u, gate.u_g):
        torch.nn.init.zeros_(matrix.weight)
    with torch.no_grad():
        return gate.gate(torch.ones(1, 1, 1), torch.zeros(1, 1, 1)).item()


def _layers() -> Diagram:
    diagram = Diagram(
        "one layer of TrXL, TrXL-I and GTrXL; the residual stream x is the line on the left",
        kinds=("sublayer", "norm", "sum", "gate"),
        note="In TrXL a norm acts on the stream itself. In the others it acts only on the input of a sublayer. "
        "The norm before attention also norms the memory.",
    )
    panels = {"TrXL": TRXL, "TrXL-I": TRXL_I, "GTrXL": GTRXL}
    for panel, (title, boxes) in enumerate(panels.items()):
        x, y = PANEL * panel, 26
        stream, path = x + 2, x + WIDE - NARROW // 2
        diagram.words(x, 0, title, bold=True)
        diagram.words(x, y, "x")
        for n, (text, kind) in enumerate(boxes):
            on_stream = kind > 2 or (kind == 2 and title == "TrXL")
            begins = not n or (not on_stream and boxes[n - 1][1] > 2) or (title == "TrXL" and n == 3)
            if begins:
                diagram.line((stream, y), (path, y))
            top = y - 3
            if on_stream:
                text = "gate g(x, y)" if kind == 4 else "x + y" if kind == 3 else text
                diagram.line((stream, y + 1), (stream, y - 1))
                if kind > 2:
                    diagram.arrow((path, y + 1), (path, y))
                diagram.box(x, top, WIDE, 3, text, kind)
            else:
                diagram.line((path, y if begins else y + 1), (path, y - 1))
                diagram.line((stream, y), (stream, y - 4))
                diagram.box(x + WIDE - NARROW, top, NARROW, 3, text, kind)
            y -= 4
        diagram.arrow((stream, y + 1), (stream, y))
    return diagram


def _shares() -> Diagram:
    diagram = Diagram(
        f"share of x that remains at the start, by the bias b_g: after 1 gate and after {SUBLAYERS}",
        kinds=("1 gate", f"{SUBLAYERS} gates, as in 4 layers"),
        note="All matrices of the gates are 0 here. The rest of a gate's output is h, which depends on y.",
    )
    for row, b_g in enumerate(BIASES):
        diagram.words(0, 3 * row, f"b_g = {b_g:g}")
        for gates, kind in ((1, 1), (SUBLAYERS, 2)):
            remaining = share(b_g) ** gates
            length = max(2, round(BAR * remaining))
            diagram.box(10, 3 * row + kind - 1, length, 1, "", kind)
            diagram.words(11 + length, 3 * row + kind - 1, f"{remaining:.2f}", kind)
    return diagram
