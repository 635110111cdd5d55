"""layer_attention: the attention map of a layer on one text, and the numbers of its heads."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.request import Request
from kinformer.lab.attention_weights.head_numbers import HeadNumbers, HeadSums
from kinformer.lab.attention_weights.query_tile import by_query_head, query_tile
from kinformer.lab.attention_weights.sum_blocks import sum_key_blocks
from kinformer.nn.attention import Attention, extras_by_name

CLOSE = 1e-3  # largest difference by rounding in float32, relative to the largest number of a layer's output
PAIRS = 1 << 19  # pairs of queries and keys, over all heads, whose weights are in memory at a time


class LayerAttention(NamedTuple):
    """The attention of a layer on one text.

    cells: the map. A cell holds the weight of a block of keys, as a mean over a block of queries.
    numbers: distance, entropy and weight on the first tokens, of each head.
    """

    cells: Float[Tensor, "H C C"]
    numbers: HeadNumbers


def layer_attention(
    layer: Attention,
    calls: Sequence[Request],
    inputs: Sequence[Float[Tensor, "B T D"]],
    outputs: Sequence[Float[Tensor, "B H t V"]],
    count: int | None,
    cell: int = 1,
) -> LayerAttention | str:
    """Merge the attention calls of a layer into one map, or return why they give none.

    The weights of all queries are compared with the output of the layer, whatever the size of a cell.

    layer: the layer.
    calls: its attention calls.
    inputs, outputs: inputs of the layer, and inputs of its aggregation: one for each call of these modules.
    count: number of tokens that the layer should read; None for the length of its input.
    cell: tokens in a block of queries and in a block of keys.
    """
    name, heads = type(layer.mechanism).__name__, layer.sizes.heads
    if layer.cross:
        return "its keys are another sequence"
    if not outputs:
        return "the layer was not called"
    if len(inputs) > 1:
        return "the layer is called several times"
    if len(inputs[0]) > 1:
        return f"its input has {len(inputs[0]):,} rows, and a map is of one row"
    if not calls:
        return f"{name} computes its weights itself, so they cannot be computed again"
    output = torch.cat(list(outputs), 2)[0].double().cpu()  # an output for each segment
    if not bool(output.isfinite().all()):
        return "its output is not finite"
    count = inputs[0].shape[1] if count is None else count
    last = max(int(max(call.queries.pos.max(), call.keys.pos.max())) for call in calls)
    has_all_tokens = last < count == inputs[0].shape[1] == output.shape[1] and all(
        call.keys.own and call.queries.head + call.queries.q.shape[1] <= heads for call in calls
    )
    if not has_all_tokens or not _reads_single_tokens(layer, calls, inputs[0]):
        return f"the queries or keys of {name} are not single tokens of the text"
    side = -(-count // cell)
    cells, sums = torch.zeros(heads, side, side), HeadSums(heads)
    wrong = torch.zeros((), dtype=torch.float64)
    size = max(PAIRS // (heads * count), 1)
    rows = torch.arange(count) // cell
    for first in range(0, count, size):
        tile = query_tile(calls, heads, count, output.shape[-1], first, size, cell)
        part = output[:, first : first + tile.y.shape[1]]
        wrong = torch.maximum(wrong, ((tile.y - part).abs().amax(-1) * tile.has_values).max())
        blocks, start = sum_key_blocks(tile.weights, cell).float(), tile.start // cell
        cells[..., start : start + blocks.shape[2]].index_add_(1, rows[first : first + size], blocks)
        sums.add(tile.weights, first, tile.start)
    if not bool(wrong <= tolerance(outputs[0]) * output.abs().max()):  # NaN too
        return f"{name} changes the output after attention, so the weights do not explain it"
    if cell > 1:
        cells /= rows.bincount()[:, None]  # means over the queries of each block
    return LayerAttention(cells, sums.numbers())


def _reads_single_tokens(layer: Attention, calls: Sequence[Request], x: Float[Tensor, "1 T D"]) -> bool:
    """Whether each value that the calls read belongs to the token at its position, and is no mixture of tokens."""
    heads = layer.sizes.heads
    keys = layer.projection.keys(x, torch.arange(x.shape[1], device=x.device)[None])
    own = [keys.v, x[:, None]]  # global queries may read inputs in place of values
    if layer.key_side is not None:  # or values of a projection of their own
        own += extras_by_name(layer.key_side(x), layer.key_extras, layer.sizes.key_heads).values()
    every = [by_query_head(values, heads)[0].cpu() for values in own]
    for call in calls:
        index = call.queries.head + torch.arange(call.queries.q.shape[1])[:, None]
        read, k_pos = (by_query_head(part.cpu(), len(index)) for part in (call.keys.v, call.keys.pos))
        for values, pos in zip(read, k_pos, strict=True):  # [H S V], [H S]
            real = pos >= 0
            differences = [
                (values - known[index, pos.clamp_min(0)]).abs().amax(-1)[real].amax()
                for known in every
                if known.shape[-1] == values.shape[-1] and bool(real.any())
            ]
            if real.any() and min(differences, default=math.inf) > tolerance(x) * values.abs().max():
                return False
    return True


def tolerance(x: Tensor) -> float:
    """Return the largest relative difference by rounding in the number format of a tensor.

    x: the tensor.
    """
    return max(CLOSE, 2 * torch.finfo(x.dtype).eps)
