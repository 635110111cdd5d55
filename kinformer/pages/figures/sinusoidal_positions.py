"""The figure `sinusoidal_positions`: vectors of 32 positions, three waves, and products."""

import math
from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Panel, Picture, numbers

LENGTH, WIDTH = 32, 128
EVERY = 4  # one of so many pairs of dimensions is shown
WAVES = (0, 8, 24)  # pairs of dimensions whose sines are drawn as curves
LEFT, BOTTOM = 10, 10
ACROSS = 2.6  # columns for a position


def draw() -> Iterator[Diagram | Picture]:
    """Yield the vectors as a grey picture, sines of three pairs, and the product of two positions."""
    yield _picture()
    yield _waves()
    yield _products()


def vectors() -> torch.Tensor:
    """Return the vectors of 32 positions, of width 128."""
    return kf.Sinusoidal(WIDTH)(torch.arange(LENGTH)[None])[0]


def _picture() -> Picture:
    shown = [n for n in range(WIDTH) if n // 2 % EVERY == 0]
    level = (vectors()[:, shown].mT + 1) / 2
    panel = Panel("", (level > 0).long(), level, tuple(map(str, shown)), numbers(LENGTH))
    return Picture(
        f"position vectors, L = {LENGTH}, d = {WIDTH}: every fourth pair of sine (even) and cosine (odd)",
        (),
        (panel,),
        "dimension",
        "position",
        note="Darkest: 1. Palest: -1. Low dimensions change fast, high dimensions hardly change.",
    )


def _axes(diagram: Diagram, top: str, middle: str, bottom: str, name: str) -> None:
    diagram.line((LEFT, 0), (LEFT, BOTTOM), (LEFT + ACROSS * LENGTH, BOTTOM))
    for y, text in ((0, top), (5, middle), (BOTTOM, bottom)):
        diagram.words(LEFT - 2 - len(text), y, text)
    for n in range(0, LENGTH, 4):
        diagram.words(round(LEFT + ACROSS * n), BOTTOM + 1, str(n))
    diagram.words(round(LEFT + ACROSS * (LENGTH - 3)), BOTTOM + 2, name)


def _waves() -> Diagram:
    lengths = [2 * math.pi * 10000 ** (2 * n / WIDTH) for n in WAVES]
    diagram = Diagram(
        "sines of three pairs of dimensions over the position",
        kinds=tuple(f"pair {n}: wavelength {size:.1f}" for n, size in zip(WAVES, lengths, strict=True)),
        note="Wavelengths grow geometrically, from 2 pi for pair 0 to nearly 10000 * 2 pi for the last pair.",
    )
    _axes(diagram, "1", "0", "-1", "position")
    for kind, n in enumerate(WAVES, 1):
        heights = vectors()[:, 2 * n].tolist()
        diagram.line(*((LEFT + ACROSS * i, 5 - 5 * y) for i, y in enumerate(heights)), kind=kind)
    return diagram


def _products() -> Diagram:
    diagram = Diagram(
        "product of two position vectors over their distance, divided by d / 2",
        note="It depends only on the distance, and not on its sign.",
    )
    products = (vectors() @ vectors()[0] / (WIDTH / 2)).tolist()
    _axes(diagram, "1", "0.5", "0", "distance")
    diagram.line(*((LEFT + ACROSS * n, BOTTOM - BOTTOM * y) for n, y in enumerate(products)))
    return diagram
