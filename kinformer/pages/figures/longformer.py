"""The figure `longformer`: patterns of heads, a path through a global token, and windows by layer."""

import math
from collections.abc import Iterator

import torch

from kinformer.core.pattern import Pattern
from kinformer.core.patterns.full import Full
from kinformer.members.support.window_sizes import growing_windows
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.dilated import Dilated
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.tokens import Tokens
from kinformer.pages.eight_tokens import LABELS
from kinformer.pages.figures.etc import draw_path
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Panel, Picture, numbers

LENGTH = 12  # tokens of the matrices
LAYERS, SMALL, LARGE = 12, 32, 8192  # layers of the language model, its smallest and its largest window
GAPS = (0,) * 6 + (1,) * 2 + (2,) * 2 + (3,) * 2  # gaps of the dilated heads in each layer, from the bottom
SPAN = 60  # columns of the longest bar


def draw() -> Iterator[Diagram | Picture]:
    """Yield four patterns, a path through a global token, and the windows of the language model."""
    patterns: dict[str, tuple[Pattern, ...]] = {
        "full": (Full(),),
        "window": (Band(2),),
        "dilated window": (Dilated(2, 2),),
        "window and global": (Band(2), Tokens(1), Rows(1)),
    }
    yield Picture(
        "patterns of single heads",
        ("a key that the pattern names", "a global key", "a global query, with its own projections"),
        tuple(_matrix(title, *parts) for title, parts in patterns.items()),
        note=f"{LENGTH} tokens, 2 keys on each side; the dilated window has gaps of one token; token 0 is global.",
    )
    local = Band(1) | Tokens(1) | Rows(1)
    yield draw_path(
        "cat (1) reaches too (7) in two layers, through the global token 0",
        (local, local),
        LABELS,
        (1, 0, 7),
        "In layer 1 the global token reads the whole row. In layer 2 every token reads the global token.",
    )
    yield _windows()


def _matrix(title: str, *parts: Pattern) -> Panel:
    kind = torch.zeros(LENGTH, LENGTH, dtype=torch.long)
    for number, part in enumerate(parts, 1):
        kind[part.matrix(LENGTH)] = number
    return Panel(title, kind, (kind > 0).float(), numbers(LENGTH), numbers(LENGTH))


def _windows() -> Diagram:
    diagram = Diagram(
        f"windows of the {LAYERS} layers of the language model in its first phase of training",
        kinds=("all heads without gaps", "two heads with gaps"),
        note="Bars have a logarithmic scale. Windows grow geometrically from the bottom layer to the top layer.",
    )
    sizes = growing_windows(SMALL, LARGE, LAYERS, 1)
    for layer, (size, gap) in enumerate(zip(sizes, GAPS, strict=True)):
        y, bar = LAYERS - 1 - layer, round(SPAN * math.log2(size) / math.log2(LARGE))
        diagram.words(0, y, f"layer {layer}")
        diagram.line((10, y), (10 + bar, y), kind=1 + (gap > 0))
        diagram.words(12 + bar, y, f"{size:,}" + (f", gaps of {gap}" if gap else ""))
    return diagram
