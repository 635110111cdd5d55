"""The figure `etc`: the four pieces of global-local attention, and a path through a global token."""

from collections.abc import Iterator, Sequence

import torch

from kinformer.core.pattern import Pattern
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.own_segment import OwnSegment
from kinformer.nn.patterns.pieces import PIECES, Pieces
from kinformer.pages.eight_tokens import LABELS
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Panel, Picture

SENTENCES = torch.tensor([[0, 1, 0, 0, 0, 0, 1, 1, 1, 1]])  # of S0 and S1, then of the eight tokens
PATTERN = Pieces(2, l2l=Band(1)) & OwnSegment(SENTENCES, 2, ("g2l",))
NAMES = ("S0", "S1", *LABELS)
WIDTH, LEFT, STEP = 8, 9, 6  # columns of a box, first column of the boxes, lines from one layer to the next


def draw() -> Iterator[Diagram | Picture]:
    """Yield the four pieces, then the keys through which a token reaches a distant one in two layers."""
    yield _four_pieces()
    yield draw_path(
        "dog (5) reaches cat (1) in two layers, through the global token of its sentence",
        (PATTERN, PATTERN),
        NAMES,
        (7, 1, 3),
        "In layer 1, S1 reads its sentence and all global tokens. In layer 2, cat reads them and its window.",
    )


def draw_path(
    caption: str, patterns: tuple[Pattern, Pattern], names: Sequence[str], path: tuple[int, int, int], note: str
) -> Diagram:
    """Return two layers of attention, with the keys of the last two tokens on a path.

    caption: caption of the diagram.
    patterns: keys that each token reads in layer 1 and in layer 2.
    names: names of the tokens.
    path: positions of a token in the input, of the token that reads it in layer 1, and of the reader in layer 2.
    note: text below the caption.
    """
    lower, upper = (pattern.matrix(len(names)) for pattern in patterns)
    source, middle, last = path
    if not (lower[middle, source] and upper[last, middle]):
        raise ValueError(f"path={path} has a step that {patterns} do not allow")
    kinds = (f"{names[last]} and its keys", f"{names[middle]} and its keys")
    diagram = Diagram(caption, kinds=kinds, note=note)
    for level, title in enumerate(("layer 2", "layer 1", "input")):
        diagram.words(0, STEP * level + 1, title)
        for place, name in enumerate(names):
            kind = int(place == last) if level == 0 else int(upper[last, place]) if level == 1 else 0
            kind = 2 if (level == 2 and lower[middle, place]) or (level == 1 and place == middle) else kind
            diagram.box(LEFT + WIDTH * place, STEP * level, WIDTH, 3, name, kind)
    for level, (reads, reader) in enumerate(((upper, last), (lower, middle))):
        _draw_bus(diagram, reads[reader].nonzero()[:, 0].tolist(), reader, level)
    return diagram


def _draw_bus(diagram: Diagram, keys: Sequence[int], reader: int, level: int) -> None:
    """Draw a line from each key up to a level line, and an arrow from there to the reader."""
    bus, kind, end = STEP * level + 4, level + 1, _middle(reader)
    columns = sorted({*map(_middle, keys), end})
    diagram.line((columns[0], bus), (columns[-1], bus), kind=kind)
    for key in keys:
        diagram.line((_middle(key), STEP * (level + 1)), (_middle(key), bus), kind=kind)
    diagram.arrow((end, bus), (end, bus - 1.3), kind=kind)


def _middle(place: int) -> int:
    return LEFT + WIDTH * place + WIDTH // 2


def _four_pieces() -> Picture:
    reads, is_long = PATTERN.matrix(len(NAMES)), torch.arange(len(NAMES)) >= 2
    piece = 1 + 2 * is_long[:, None].long() + is_long[None, :].long()
    short = tuple(name.split()[0] for name in NAMES)
    return Picture(
        "the four pieces of the attention matrix; S0 and S1 are the global tokens of the sentences 0-3 and 4-7",
        PIECES,
        (Panel("", piece * reads, reads.float(), short, short),),
        note="A row is a query and a column is a key; the first two of each are S0 and S1. With the hard mask of g2l, "
        "a global token reads only its own sentence. The window of l2l has radius 1.",
    )
