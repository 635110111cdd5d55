"""The figure `realformer`: the path of scores, and attention weights with and without it."""

from collections.abc import Iterator

import torch
from torch import Tensor

import kinformer as kf
from kinformer.pages.eight_tokens import LABELS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

KINDS = ("hidden states", "scores before the softmax")


def draw() -> Iterator[Diagram | Picture]:
    """Yield the two paths through three layers, and the attention weights of two layers."""
    yield _paths()
    lower, plain, residual = layers()
    panels = (
        shades("layer 1", lower, LABELS, LABELS),
        shades("layer 2, own", plain, LABELS, LABELS),
        shades("layer 2, sum", residual, LABELS, LABELS),
    )
    note = "Layer 2 asks for directions 90 degrees lower. The sum keeps a part of the attention of layer 1."
    yield Picture("attention weights of two layers, without and with residual scores", (), panels, note=note)


def layers() -> list[Tensor]:
    """Return the weights of layer 1, and of layer 2 without and with the scores of layer 1."""
    x, turn = token_vectors(), torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    ctx = kf.Context.of_sequence(torch.zeros(1, len(x), 1))
    pos = ctx.pos[:, None]
    keys = kf.Keys(x[None, None], torch.eye(len(x))[None, None], pos)
    first = kf.Explicit(kf.Full(), score=kf.ResidualScores(), up=True)
    lower = first(kf.Queries(4 * x[None, None], pos), keys, None, ctx)
    weights = [lower.y.y[0, 0]]
    for below in (0, 1):
        second = kf.Explicit(kf.Full(), score=kf.ResidualScores(1, below))
        upper = second(kf.Queries(4 * (x @ turn)[None, None], pos), keys, None, ctx.replace(below=lower.up))
        weights.append(upper.y.y[0, 0])
    return weights


def _paths() -> Diagram:
    diagram = Diagram(
        "three layers of RealFormer, from left to right",
        kinds=KINDS,
        note="Each layer adds its own products of queries and keys to the scores of the layer below.",
    )
    diagram.words(0, 1, "scores", 2)
    diagram.words(0, 9, "hidden", 1)
    diagram.words(0, 10, "states", 1)
    for n in range(3):
        x = 10 + 29 * n
        diagram.words(x + 2, 13, f"layer {n + 1}", bold=True)
        diagram.box(x, 4, 10, 3, "q.k", 2)
        diagram.box(x + 3, 0, 5, 3, "+", 2)
        diagram.box(x + 14, 4, 11, 3, "softmax", 2)
        diagram.box(x + 14, 8, 11, 4, "times V,\nMLP", 1)
        diagram.arrow((x + 5, 4), (x + 5, 2.6), kind=2)
        diagram.arrow((x + 7, 1), (x + 19, 1), (x + 19, 3.4), kind=2)
        diagram.arrow((x + 19, 6), (x + 19, 7.4), kind=2)
        diagram.arrow((x + 5, 10), (x + 5, 6.6), kind=1)
        diagram.arrow((x - 3, 10), (x + 13.4, 10), kind=1)
        if n < 2:
            diagram.arrow((x + 19, 1), (x + 31.4, 1), kind=2)
            diagram.line((x + 25, 10), (x + 26, 10), kind=1)
    return diagram
