"""Drawers: decorators that find the layers and parts of an example that a function can draw."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

from kinformer.pages.pictures.support.attention_calls import attentions, place_of
from kinformer.pages.pictures.support.picture_panels import Picture

Drawer = Callable[[Any, int | None], Iterator[Picture]]
Draw = Callable[..., Picture | None]


def of_mechanisms(*types: type, first: bool = False) -> Callable[[Draw], Drawer]:
    """Decorate a function that draws an attention layer: it is called for layers with certain mechanisms.

    The result yields a picture for each such layer of an example.

    The function gets the mechanism, its layer, the name of the layer as ", layer 0" or "", and the length.

    types: classes of mechanisms to draw.
    first: stop after the first picture, which shows the lowest layer.
    """

    def find(example: Any) -> Iterator[tuple[Any, ...]]:
        for place, layer in attentions(example).items():
            if isinstance(layer.mechanism, types):
                yield layer.mechanism, layer, suffix(place)

    return _drawer(find, first)


def of_parts(*types: type, first: bool = False) -> Callable[[Draw], Drawer]:
    """Decorate a function that draws a module: it is called for the modules of certain classes.

    The result yields a picture for each such module of an example.

    The function gets the module, its name as ", layer 0" or "", and the length.

    types: classes of modules to draw.
    first: stop after the first picture.
    """

    def find(example: Any) -> Iterator[tuple[Any, ...]]:
        for name, part in example.named_modules() if isinstance(example, nn.Module) else ():
            if isinstance(part, types):
                yield part, suffix(place_of(name))

    return _drawer(find, first)


def in_turn(*drawers: Drawer) -> Drawer:
    """Join several drawers (functions that yield pictures of an example) into one.

    Each of them starts from the same random seed.

    drawers: the drawers, in the order of their pictures.
    """

    def pictures(example: Any, length: int | None) -> Iterator[Picture]:
        for drawer in drawers:
            with fix_seed():
                yield from drawer(example, length)

    return pictures


@contextmanager
def fix_seed() -> Iterator[None]:
    """Fix the random seed on the CPU and switch off gradients, so that drawings are reproducible."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)  # torch.manual_seed also prepares every GPU library, which is slower
        yield


def suffix(place: str) -> str:
    """Return the name of a layer for a caption: ", layer 0", or "" without a name.

    place: name of the layer, such as "layer 0".
    """
    return f", {place}" if place else ""


def _drawer(find: Callable[[Any], Iterator[tuple[Any, ...]]], first: bool) -> Callable[[Draw], Drawer]:
    def decorate(draw: Draw) -> Drawer:
        @wraps(draw)
        def pictures(example: Any, length: int | None) -> Iterator[Picture]:
            for part in find(example):
                picture = draw(*part, length)
                if picture is not None:
                    yield picture
                    if first:
                        return

        return pictures

    return decorate
