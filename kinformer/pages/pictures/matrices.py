"""Pictures of learned matrices: mixed heads, score convolutions, task biases and position tables."""

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

FIRST, TOKENS = 4, 16  # most heads or tasks that are drawn; number of random tokens that are routed
NOTE = "absolute values, relative to the largest; untrained weights"


@of_parts(ConditionalBlocks, first=True)
@torch.no_grad()
def task_blocks(bias: ConditionalBlocks, where: str, length: int | None) -> Picture:
    """Draw the bias matrix that each task adds to attention scores, with one panel per task."""
    size = min(length or bias.length, bias.length)
    cells = min(CELLS, size)
    tasks = range(min(FIRST, len(bias.embedding.weight)))
    level = of_most(F.adaptive_max_pool2d(torch.stack([task_matrix(bias, n, size) for n in tasks]).abs(), cells))
    names = [str(n * size // cells) for n in range(cells)]
    panels = tuple(shades(f"task {n}", level[n], names, names) for n in tasks)
    note = f"{size} positions in blocks of {bias.size}; absolute values, relative to the largest; untrained weights"
    return Picture(f"{type(bias).__name__}: bias of the scores for each task", (), panels, note=note)


def task_matrix(bias: ConditionalBlocks, task: int, size: int) -> Float[Tensor, "T T"]:
    """Return the bias matrix M of one task for a row of `size` positions.

    bias: the bias with one set of blocks per task.
    task: index of the task.
    size: number of positions.
    """
    pos = torch.arange(size)
    rows = bias.rows(torch.full((1, 1, size), task), pos[None, None])[0, 0]  # [T, n], one row of a block for each query
    key = pos // bias.size * bias.size
    matrix = rows.new_zeros(size, max(size, int(key[-1]) + bias.size))
    return matrix.scatter(1, key[:, None] + torch.arange(rows.shape[1]), rows)[:, :size]


@of_parts(ScoreConvolution, first=True)
def score_convolution(part: ScoreConvolution, where: str, length: int | None) -> Picture:
    """Draw the kernel of a convolution over attention scores, with one panel per output head."""
    size = max(-part.of_queries[0], -part.of_keys[0]) + 1
    steps = range(-size, size + 1)
    level = torch.zeros(part.conv.out_channels, len(steps), len(steps))
    down, across = (torch.tensor([steps.index(step) for step in of]) for of in (part.of_queries, part.of_keys))
    level[:, down[:, None], across] = of_most(part.conv.weight.detach().abs().sum(1), 1, 2)  # summed over input heads
    names = [f"{step:+d}" if step else "0" for step in steps]
    panels = tuple(shades(f"head {n}", level[n], names, names) for n in range(min(FIRST, len(level))))
    caption = "score convolution: weight of each input score, by its offset from the query and key"
    note = "absolute weights summed over input heads, relative to the largest; untrained weights"
    return Picture(caption, (), panels, note=note)


@of_parts(Collaborative, Explicit, DynamicRouting, EMRouting, first=True)
def mixed_heads(part: Any, where: str, length: int | None) -> Picture | None:
    """Draw how the lowest part that mixes heads weights each head.

    Such parts are heads with shared query and key coordinates (`Collaborative`), talking heads, and routing to
    capsules.
    """
    if isinstance(part, Collaborative):
        caption = f"Collaborative: weight of each head for the {part.shared} shared coordinates of queries and keys"
        note = f"{NOTE}{f'; the first {CELLS} coordinates' if part.shared > CELLS else ''}"
        return _mix(caption, {"": part.mixing[:, :CELLS]}, "coordinate", note)
    if isinstance(part, Explicit):
        mixes = {"before the softmax": part.before, "after the softmax": part.after}
        levels = {name: mix.mix.weight for name, mix in mixes.items() if isinstance(mix, MixHeads)}
        return _mix("MixHeads: weight of each input head in each head", levels, "input head", NOTE) if levels else None
    caption = f"{type(part).__name__}: influence of each head on each capsule"
    note = f"size of the gradient, relative to the largest; {TOKENS} random tokens, untrained weights"
    return _mix(caption, {"": capsule_gradients(part)}, "capsule", note)


def capsule_gradients(part: DynamicRouting | EMRouting) -> Float[Tensor, "H N"]:
    """Return the size of the gradient of each capsule with respect to each head, for random tokens.

    part: the routing of head outputs to capsules (output vectors).
    """
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
    """Draw the vector that encodes each position: small numbers are white, large numbers dark."""
    if where:
        return None
    table = position(torch.arange(length or CELLS)[None])[0].detach().float()
    level = (table - table.min()) / (table.max() - table.min()).clamp_min(1e-9)
    note = f"from {table.min():.2g} (white) to {table.max():.2g} (dark)"
    return Picture("vector of each position", (), (shades("", level),), "position", "component", note)


pictures = in_turn(task_blocks, score_convolution, mixed_heads, position_table)
