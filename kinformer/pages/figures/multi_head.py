"""The figure `multi_head`: the steps of a head, the heads side by side, and the weights of two heads."""

import math
from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.eight_tokens import LABELS, TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

STEPS = ("Q K^T", "/ sqrt(d_k)", "mask", "softmax", "A V")
TITLES = ("head 1: content", "head 2: one back")


def draw() -> Iterator[Diagram | Picture]:
    """Yield scaled dot-product attention, multi-head attention, and the weights of two heads."""
    yield _one_head()
    yield _heads()
    yield _weights()


def head_weights() -> list[torch.Tensor]:
    """Return the weights of a head that compares tokens, and of a head that reads the token before."""
    angles = torch.deg2rad(45.0 * torch.arange(len(TOKENS)))
    keys = token_vectors(), torch.stack([angles.cos(), angles.sin()], -1)
    back = torch.stack([(angles - math.pi / 4).cos(), (angles - math.pi / 4).sin()], -1)
    queries = 4 * keys[0], 12 * back
    return [attention_weights(kf.Softmax(kf.Causal()), q, k) for q, k in zip(queries, keys, strict=True)]


def _one_head() -> Diagram:
    diagram = Diagram(
        "scaled dot-product attention, the computation in each head",
        note="Q, K, V: queries, keys and values of all tokens. The mask sets the scores of forbidden pairs to -inf.",
    )
    for y, name in ((0, "Q"), (4, "K"), (8, "V")):
        diagram.box(0, y, 7, 3, name)
    lefts = [15 + 15 * n for n in range(len(STEPS))]
    for x, step in zip(lefts, STEPS, strict=True):
        diagram.box(x, 2, 13, 3, step)
    diagram.arrow((6, 1), (10, 1), (10, 3), (14.4, 3))
    diagram.line((6, 5), (10, 5), (10, 3))
    for x in lefts[:-1]:
        diagram.arrow((x + 12, 3), (x + 14.4, 3))
    diagram.arrow((6, 9), (lefts[-1] + 6, 9), (lefts[-1] + 6, 4.51))
    diagram.arrow((lefts[-1] + 12, 3), (lefts[-1] + 16, 3))
    diagram.words(lefts[-1] + 18, 3, "head")
    return diagram


def _heads() -> Diagram:
    diagram = Diagram(
        "multi-head attention: h heads in parallel; the paper has d = 512, h = 8 and d_k = d_v = 64",
        kinds=("learned matrices", "no parameters"),
        note="In cross-attention, the keys and values come from a second input.",
    )
    diagram.box(0, 5, 8, 3, "x")
    diagram.box(65, 5, 10, 3, "concat", 2)
    diagram.box(79, 5, 8, 3, "W^o", 1)
    for n, name in enumerate(("1", "2", "h")):
        y = 5 * n
        diagram.box(16, y, 20, 3, f"W^q_{name} W^k_{name} W^v_{name}", 1)
        diagram.box(41, y, 18, 3, f"attention {name}", 2)
        diagram.arrow((7, 6), (11, 6), (11, y + 1), (15.4, y + 1)) if n != 1 else diagram.arrow((7, 6), (15.4, 6))
        diagram.arrow((35, y + 1), (40.4, y + 1))
        diagram.words(37, y, "qkv")
    diagram.words(25, 9, "...")
    diagram.words(49, 9, "...")
    diagram.arrow((58, 6), (64.4, 6))
    diagram.line((58, 1), (61, 1), (61, 6))
    diagram.line((58, 11), (61, 11), (61, 6))
    diagram.arrow((74, 6), (78.4, 6))
    diagram.arrow((86, 6), (90, 6))
    diagram.words(92, 6, "output")
    return diagram


def _weights() -> Picture:
    names = LABELS
    return Picture(
        "attention weights of two heads in one layer, causal",
        (),
        tuple(shades(title, weights, names, names) for title, weights in zip(TITLES, head_weights(), strict=True)),
        note="The heads of the worked example. No single matrix of weights does both.",
    )
