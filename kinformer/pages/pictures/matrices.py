"""Parameters that are matrices, drawn as they are: mixes of heads, convolutions of scores, tasks and positions."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.position import Position
from kinformer.nn.aggregations.dynamic_routing import DynamicRouting
from kinformer.nn.aggregations.em_routing import EMRouting
from kinformer.nn.biases.camtl import ConditionalBlocks
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.score_convolution import ScoreConvolution
from kinformer.nn.mechanisms.talking_heads import MixHeads
from kinformer.nn.projections.collaborative import Collaborative
from kinformer.pages.pictures.support.drawer import in_turn, of_parts
from kinformer.pages.pictures.support.picture_panels import CELLS, Picture, of_most, shades

FIRST, TOKENS = 4, 16  # heads or tasks that are drawn; random tokens that are routed
NOTE = "sizes, of the greatest; before any training"


@of_parts(ConditionalBlocks, first=True)
@torch.no_grad()
def task_blocks(bias: ConditionalBlocks, where: str, length: int | None) -> Picture:
    """What the task of a row adds to its scores; a panel for each task."""
    size = min(length or bias.length, bias.length)
    cells = min(CELLS, size)
    tasks = range(min(FIRST, len(bias.embedding.weight)))
    level = of_most(F.adaptive_max_pool2d(torch.stack([task_matrix(bias, n, size) for n in tasks]).abs(), cells))
    names = [str(n * size // cells) for n in range(cells)]
    panels = tuple(shades(f"task {n}", level[n], names, names) for n in tasks)
    note = f"sizes, of the greatest; {size} positions in blocks of {bias.size}; before any training"
    return Picture(f"{type(bias).__name__}: what is added to scores", (), panels, note=note)


def task_matrix(bias: ConditionalBlocks, task: int, size: int) -> Float[Tensor, "T T"]:
    """M of a task, for a row of `size` positions."""
    pos = torch.arange(size)
    rows = bias.rows(torch.full((1, 1, size), task), pos[None, None])[0, 0]  # [T n], a row of the block of each
    key = pos // bias.size * bias.size
    matrix = rows.new_zeros(size, max(size, int(key[-1]) + bias.size))
    return matrix.scatter(1, key[:, None] + torch.arange(rows.shape[1]), rows)[:, :size]


@of_parts(ScoreConvolution, first=True)
def score_convolution(part: ScoreConvolution, where: str, length: int | None) -> Picture:
    """The scores that a convolved score is made of, by their distance from it; a panel for each head."""
    size = max(-part.of_queries[0], -part.of_keys[0]) + 1
    steps = range(-size, size + 1)
    level = torch.zeros(part.conv.out_channels, len(steps), len(steps))
    down, across = (torch.tensor([steps.index(step) for step in of]) for of in (part.of_queries, part.of_keys))
    level[:, down[:, None], across] = of_most(part.conv.weight.detach().abs().sum(1), 1, 2)  # over the heads it reads
    names = [f"{step:+d}" if step else "0" for step in steps]
    panels = tuple(shades(f"head {n}", level[n], names, names) for n in range(min(FIRST, len(level))))
    caption = "scores beneath that a pair's are made of, by how far they stand from the pair"
    note = "sizes of the weights that hear all heads, of the greatest; before any training"
    return Picture(caption, (), panels, note=note)


@of_parts(Collaborative, Explicit, DynamicRouting, EMRouting, first=True)
def mixed_heads(part: Any, where: str, length: int | None) -> Picture | None:
    """The lowest part that mixes heads: columns that heads share, talking heads, capsules that heads vote for."""
    if isinstance(part, Collaborative):
        caption = f"Collaborative: how heads weigh the {part.shared} columns of queries and keys that they share"
        note = f"{NOTE}{f'; the first {CELLS}' if part.shared > CELLS else ''}"
        return _mix(caption, {"": part.mixing[:, :CELLS]}, "column", note)
    if isinstance(part, Explicit):
        mixes = {"before the softmax": part.before, "after it": part.after}
        levels = {name: mix.mix.weight for name, mix in mixes.items() if isinstance(mix, MixHeads)}
        return _mix("MixHeads: what each head takes of each", levels, "of head", NOTE) if levels else None
    caption = f"{type(part).__name__}: how far each head moves each capsule"
    note = f"of the greatest; {TOKENS} random tokens, before any training"
    return _mix(caption, {"": capsule_gradients(part)}, "capsule", note)


def capsule_gradients(part: DynamicRouting | EMRouting) -> Float[Tensor, "H N"]:
    """The size of the gradient of every capsule by every head's output, over random tokens."""
    heads, count, width, _ = part.votes.weight.shape
    with torch.enable_grad():
        y = torch.randn(1, heads, TOKENS, width, requires_grad=True)
        capsules = part(y, torch.arange(TOKENS)[None]).unflatten(-1, (count, -1))  # [1 T N W]
        weighted = capsules * torch.randn_like(capsules)
        gradients = [torch.autograd.grad(weighted[:, :, n].sum(), y, retain_graph=True)[0] for n in range(count)]
    return torch.stack([gradient.square().sum((0, 2, 3)).sqrt() for gradient in gradients], 1)


def _mix(caption: str, matrices: dict[str, Tensor], column: str, note: str) -> Picture:
    panels = tuple(shades(name, of_most(matrix.detach().abs())) for name, matrix in matrices.items())
    return Picture(caption, (), panels, "head", column, note)


@of_parts(Position, first=True)
def position_table(position: Position, where: str, length: int | None) -> Picture | None:
    """The vector of each position, from its least number, white, to its greatest."""
    if where:
        return None
    table = position(torch.arange(length or CELLS)[None])[0].detach().float()
    level = (table - table.min()) / (table.max() - table.min()).clamp_min(1e-9)
    note = f"from {table.min():.2g}, the palest, to {table.max():.2g}"
    return Picture("the vector of each position", (), (shades("", level),), "position", "number", note)


pictures = in_turn(task_blocks, score_convolution, mixed_heads, position_table)
