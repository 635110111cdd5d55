"""Drawers: how a file of pictures finds the layers and parts of an example that it draws."""

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
    """Draw the attention layers whose mechanism has one of these types.

    The function gets the mechanism, its layer, the layer's place as ", layer 0" or "", and the length.

    first: stop after the first picture, which is that of the lowest layer.
    """

    def find(example: Any) -> Iterator[tuple[Any, ...]]:
        for place, layer in attentions(example).items():
            if isinstance(layer.mechanism, types):
                yield layer.mechanism, layer, suffix(place)

    return _drawer(find, first)


def of_parts(*types: type, first: bool = False) -> Callable[[Draw], Drawer]:
    """Draw the modules of an example that have one of these types.

    The function gets the module, its place as ", layer 0" or "", and the length. first: stop after the first picture.
    """

    def find(example: Any) -> Iterator[tuple[Any, ...]]:
        for name, part in example.named_modules() if isinstance(example, nn.Module) else ():
            if isinstance(part, types):
                yield part, suffix(place_of(name))

    return _drawer(find, first)


def in_turn(*drawers: Drawer) -> Drawer:
    """One drawer that draws everything that several draw, each from the same seed."""

    def pictures(example: Any, length: int | None) -> Iterator[Picture]:
        for drawer in drawers:
            with fix_seed():
                yield from drawer(example, length)

    return pictures


@contextmanager
def fix_seed() -> Iterator[None]:
    """Random tokens and weights that are the same each time; nothing needs a gradient."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        yield


def suffix(place: str) -> str:
    """What a caption says of a place: ", layer 0", or nothing."""
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
