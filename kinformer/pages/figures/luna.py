"""The figure `luna`: a layer that packs and unpacks a row, and the matrices of both attentions."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.nn.depth.luna import Nested
from kinformer.pages.eight_tokens import TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

ANGLES = (30.0, 195.0)  # of the two initial packs
LEFT, RIGHT, WIDTH = 0, 60, 32  # first columns of tokens and of packs, and the width of a box


def draw() -> Iterator[Diagram | Picture]:
    """Yield one layer of the encoder, then the matrices of packing, of unpacking, and their product."""
    yield _layer()
    yield _matrices()


def read_through_packs() -> tuple[Float[Tensor, "l T"], Float[Tensor, "T l"]]:
    """Return the weights of packing and of unpacking for two packs and the eight tokens."""
    count, tokens = len(ANGLES), len(TOKENS)
    width = 2 + tokens
    nested = Nested(width, 1, bias=False).eval()
    row = torch.cat([token_vectors(), torch.eye(tokens)], 1)
    angles = torch.tensor(ANGLES).deg2rad()
    start = torch.cat([torch.stack([angles.cos(), angles.sin()], 1), torch.zeros(count, tokens)], 1)
    at, places = torch.arange(count)[None], torch.arange(tokens)[None]
    packing = Context(at, run=True, full=True, source_pos=places)
    unpacking = Context(places, run=True, full=True, source_pos=at)
    with torch.no_grad():
        for part in (nested.pack, nested.unpack):
            part.projection.qkv.weight.zero_()  # type: ignore[union-attr, operator]
            q, k, v = part.projection.qkv.weight.view(3, width, width)  # type: ignore[union-attr, operator]
            q[:2, :2], k[:2, :2], v[:] = 10 * torch.eye(2), torch.eye(2), torch.eye(width)
        nested.unpack.aggregation.linear.weight.copy_(torch.eye(width))  # type: ignore[union-attr, operator]
        packed = nested.pack(start[None], None, packing.replace(source=row[None])).y[0]
        named = torch.cat([packed[:, :2], torch.eye(count), torch.zeros(count, tokens - count)], 1)
        unpacked = nested.unpack(row[None], None, unpacking.replace(source=named[None])).y[0]
    return packed[:, 2:], unpacked[:, 2 : 2 + count]


def _layer() -> Diagram:
    diagram = Diagram(
        "one layer of the encoder: packs read the tokens, then tokens read the packs",
        kinds=("tokens", "packs"),
        note="T tokens and l packs of width d. The two attentions compute 2 T l scores instead of T^2.",
    )
    left, right = LEFT + WIDTH // 2, RIGHT + WIDTH // 2
    diagram.box(LEFT, 0, WIDTH, 3, "tokens X, T x d", 1)
    diagram.box(RIGHT, 0, WIDTH, 3, "packs P, l x d", 2)
    diagram.box(RIGHT, 6, WIDTH, 4, "pack: attention of P to X\nsoftmax over T tokens", 2)
    diagram.box(LEFT, 13, WIDTH, 4, "unpack: attention of X to Y_P\nsoftmax over l packs", 1)
    diagram.box(LEFT, 19, WIDTH, 3, "add X, norm, feed-forward", 1)
    diagram.box(RIGHT, 19, WIDTH, 3, "add P, norm", 2)
    diagram.box(LEFT, 24, WIDTH, 3, "X' for the next layer", 1)
    diagram.box(RIGHT, 24, WIDTH, 3, "P' for the next layer", 2)
    diagram.arrow((right, 2), (right, 5.6))
    diagram.words(right + 2, 4, "queries")
    diagram.arrow((left, 7.5), (RIGHT - 0.8, 7.5))
    diagram.words(left + 14, 6, "keys and values from X")
    diagram.arrow((left, 2), (left, 12.6))
    diagram.words(left + 2, 10, "queries")
    diagram.arrow((right, 9), (right, 18.6))
    diagram.arrow((right, 14.5), (LEFT + WIDTH - 0.2, 14.5))
    diagram.words(LEFT + WIDTH + 4, 13, "keys and values from Y_P")
    diagram.words(right + 2, 16, "Y_P, l x d")
    for x in (left, right):
        diagram.arrow((x, 21), (x, 23.6))
    diagram.arrow((left, 16), (left, 18.6))
    diagram.words(left + 2, 17, "Y_X, T x d")
    return diagram


def _matrices() -> Picture:
    pack, unpack = read_through_packs()
    packs = tuple(f"P{n}" for n in range(len(ANGLES)))
    return Picture(
        "weights of the example: pack (2 x 8), unpack (8 x 2, here turned), and unpack times pack (8 x 8)",
        (),
        (
            shades("pack", pack, packs, TOKENS),
            shades("unpack, turned", unpack.mT, packs, TOKENS),
            shades("unpack x pack", unpack @ pack, TOKENS, TOKENS),
        ),
        line="pack, or reading token",
        column="token",
        note="Rows with nearly equal weights over the packs have nearly equal weights over the tokens.",
    )
