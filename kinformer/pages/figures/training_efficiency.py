"""The figure `training_efficiency`: activations in memory with and without checkpointing."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import kinformer as kf
from kinformer.lab.train.activation_checkpointing import blocks, checkpointed
from kinformer.pages.pictures.support.diagram import Diagram

STORED, AGAIN = 1, 2
BLOCKS, DEPTHS = 4, (1, 2, 4, 8)
LEFT, INPUT, INSIDE, STEP = 26, 6, 11, 18
# for each moment: numbers of the blocks whose input is stored, whose inside is stored, and the same computed again
MOMENTS = (
    ("no checkpointing", "after the forward pass", (1, 2, 3, 4), (1, 2, 3, 4), (), ()),
    ("every block", "after the forward pass", (1, 2, 3, 4), (), (), ()),
    ("every block", "gradient of block 3", (1, 2, 3), (), (), (3,)),
    ("every second block", "after the forward pass", (1, 3), (), (), ()),
    ("every second block", "gradient of block 4", (1, 3), (), (4,), (3, 4)),
)


def draw() -> Iterator[Diagram]:
    """Yield the activations in memory at several moments, and the numbers that a model stores."""
    yield _moments()
    yield _memory()


def numbers_stored(stack: nn.Module) -> int:
    """Return how many numbers autograd stores for a step over eight tokens, without the weights.

    stack: layers of width 8.
    """
    weights, sizes = {p.data_ptr() for p in stack.parameters()}, []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(0 if tensor.data_ptr() in weights else tensor.numel())
        return tensor

    x = torch.linspace(-1, 1, 64).view(1, 8, 8).requires_grad_()
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        stack(x)
    return sum(sizes)


def _moments() -> Diagram:
    diagram = Diagram(
        "activations in memory: the input x of each of four blocks, and the values inside the block",
        kinds=("stored in the forward pass", "computed again in the backward pass"),
        note="Dashed: not in memory. Inside: norms, queries, keys, values, attention weights, hidden units.",
    )
    for n in range(BLOCKS):
        diagram.words(LEFT + STEP * n, 0, f"block {n + 1}", bold=True)
    for row, (name, moment, inputs, insides, inputs_again, insides_again) in enumerate(MOMENTS):
        y = 1 + 4 * row
        diagram.words(0, y, name, bold=True)
        diagram.words(0, y + 1, moment)
        for n in range(1, BLOCKS + 1):
            x = LEFT + STEP * (n - 1)
            for left, width, text, stored, again in (
                (x, INPUT, f"x{n}", inputs, inputs_again),
                (x + INPUT, INSIDE, "inside", insides, insides_again),
            ):
                kind = STORED if n in stored else AGAIN if n in again else 0
                diagram.box(left, y, width, 3, text if kind else "", kind, dashed=not kind)
    return diagram


def _memory() -> Diagram:
    diagram = Diagram(
        "numbers stored for the backward pass, for eight tokens of width 8",
        kinds=("no checkpointing", "every block"),
        note="Measured with this package. Weights are not counted.",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kf.gpt(d=8, depth=max(DEPTHS), heads=2, length=8, vocab=6)
    layers = blocks(model)
    plain = [numbers_stored(kf.Stack(layers[:n])) for n in DEPTHS]  # type: ignore[arg-type]
    with checkpointed(model):
        fewer = [numbers_stored(kf.Stack(layers[:n])) for n in DEPTHS]  # type: ignore[arg-type]
    scale = 70 / max(plain)
    for row, (depth, *pair) in enumerate(zip(DEPTHS, plain, fewer, strict=True)):
        diagram.words(0, 3 * row, f"{depth} block{'s' if depth > 1 else ''}")
        for n, size in enumerate(pair):
            bar = "█" * max(1, round(scale * size))
            diagram.words(12, 3 * row + n, f"{bar} {size:,}", n + 1)
    return diagram
