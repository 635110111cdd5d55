"""The figure `reversible`: a block forwards and backwards, and the numbers that a step stores."""

from collections.abc import Iterator

import torch
from torch import Tensor

import kinformer as kf
from kinformer.pages.eight_tokens import token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

FIRST, SECOND = 1, 2
DEPTHS = (1, 2, 4, 8)


def draw() -> Iterator[Diagram]:
    """Yield a block forwards, its inverse, and the memory of both kinds of stack."""
    yield _forwards()
    yield _backwards()
    yield _memory()


def numbers_stored(stack: kf.Stack) -> int:
    """Return how many numbers autograd stores for a step over the eight tokens, without the weights.

    stack: the layers.
    """
    weights, sizes = {p.data_ptr() for p in stack.parameters()}, []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(0 if tensor.data_ptr() in weights else tensor.numel())
        return tensor

    x = torch.cat([token_vectors(), token_vectors()], 1)[None].requires_grad_()
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        stack(x)
    return sum(sizes)


def _forwards() -> Diagram:
    diagram = Diagram(
        "a reversible block, forwards: y1 = x1 + F(x2), then y2 = x2 + G(y1)",
        kinds=("first half", "second half"),
        note="F: attention with its norm. G: feed-forward layer with its norm.",
    )
    _rails(diagram, ("x1", "x2"), ("y1", "y2"), ((36, 0), (68, 10)), "+")
    diagram.box(12, 5, 20, 3, "F: attention")
    diagram.box(44, 5, 20, 3, "G: feed-forward")
    diagram.arrow((22, 11), (22, 7.51), kind=SECOND)
    diagram.arrow((31, 6), (38, 6), (38, 2.51))
    diagram.arrow((54, 1), (54, 4.49), kind=FIRST)
    diagram.arrow((63, 6), (70, 6), (70, 9.49))
    return diagram


def _backwards() -> Diagram:
    diagram = Diagram(
        "the same block, backwards: x2 = y2 - G(y1), then x1 = y1 - F(x2)",
        kinds=("first half", "second half"),
        note="F and G are computed once more, in the other order. Neither is inverted.",
    )
    _rails(diagram, ("y1", "y2"), ("x1", "x2"), ((68, 0), (36, 10)), "-")
    diagram.box(12, 5, 20, 3, "G: feed-forward")
    diagram.box(44, 5, 20, 3, "F: attention")
    diagram.arrow((22, 1), (22, 4.49), kind=FIRST)
    diagram.arrow((31, 6), (38, 6), (38, 9.49))
    diagram.arrow((54, 11), (54, 7.51), kind=SECOND)
    diagram.arrow((63, 6), (70, 6), (70, 2.51))
    return diagram


def _rails(
    diagram: Diagram,
    begin: tuple[str, str],
    end: tuple[str, str],
    joins: tuple[tuple[int, int], tuple[int, int]],
    sign: str,
) -> None:
    """Draw both halves from left to right, each with the place where a sublayer changes it."""
    for kind, first, last, (x, y) in zip((FIRST, SECOND), begin, end, joins, strict=True):
        diagram.box(0, y, 8, 3, first, kind)
        diagram.box(x, y, 5, 3, sign, kind)
        diagram.box(84, y, 8, 3, last, kind)
        diagram.arrow((7, y + 1), (x - 0.6, y + 1), kind=kind)
        diagram.arrow((x + 4, y + 1), (83.4, y + 1), kind=kind)


def _memory() -> Diagram:
    diagram = Diagram(
        "numbers stored for the backward pass, for eight tokens of width 4",
        kinds=("plain stack", "reversible stack"),
        note="Measured with this package. Weights are not counted.",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blocks = [
            kf.Coupled(kf.Attention(kf.QKV(2, heads=1), kf.Softmax(kf.Causal())), kf.MLP(2)) for _ in range(max(DEPTHS))
        ]
    sizes = [(numbers_stored(kf.Stack(blocks[:n])), numbers_stored(kf.Reversible(blocks[:n]))) for n in DEPTHS]
    scale = 70 / max(map(max, sizes))
    for row, (depth, pair) in enumerate(zip(DEPTHS, sizes, strict=True)):
        diagram.words(0, 3 * row, f"{depth} block{'s' if depth > 1 else ''}")
        for n, size in enumerate(pair):
            bar = "█" * max(1, round(scale * size))
            diagram.words(12, 3 * row + n, f"{bar} {size:,}", n + 1)
    return diagram
