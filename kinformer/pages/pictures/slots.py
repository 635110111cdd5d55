"""What a memory keeps for each segment of a row: the own tokens, states of earlier ones, and compressed states."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from kinformer.core.memory import Memory
from kinformer.nn.attention import Attention
from kinformer.pages.pictures.support.attention_calls import attentions, join_names
from kinformer.pages.pictures.support.drawer import suffix
from kinformer.pages.pictures.support.picture_panels import Picture, grid, of_cells, span

CELLS = 36
KINDS = ("own segment", "memory", "compressed", "compressed, the next slot")


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A picture of each memory that is unlike those before it."""
    groups: dict[str, tuple[list[str], Attention, Memory]] = {}
    for place, layer in attentions(example).items():
        if isinstance(layer.memory, Memory):
            key = f"{type(layer.memory).__name__} {layer.memory.reads} {layer.memory.length}"
            groups.setdefault(key, ([], layer, layer.memory))[0].append(place)
    for places, layer, memory in groups.values():
        back = int(getattr(memory, "receptive_field", memory.reads).reach()[0])
        size, step = span(max(memory.length, back * 2 // 5), length, CELLS)
        kind = slot_kinds(layer, memory, size)
        if step > 1:
            kind = kind.clamp(max=3)  # slots next to each other cannot be told apart
        caption = f"{type(memory).__name__}{suffix(join_names(places))}: what a query finds there of the row before it"
        note = f"{size} positions in segments of {memory.length}{of_cells(step)}"
        if kind.max() > 2:
            note += f"; a compressed slot holds {rate_of(memory)} positions"
        yield Picture(caption, KINDS[: int(kind.max())], (grid("", kind, step),), note=note, column="position")


def slot_kinds(layer: Attention, memory: Memory, size: int) -> Int[Tensor, "T T"]:
    """For each query what each position is to it, as a number of KINDS; it is asked while the layer reads a row."""
    kind = torch.zeros(size, size, dtype=torch.long)
    rate, slots = rate_of(memory), getattr(memory, "slots", 0)

    def note(module: nn.Module, inputs: Any, out: Any) -> None:
        pos, source, old = inputs[2].pos[0], out[1][0], getattr(out[2], "old", None)
        if old is not None:  # where slots stand may be counted in slots: the state knows the tokens in them
            source = torch.cat([old.pos[0], source[slots:]])
        rows = slice(int(pos.min()), int(pos.max()) + 1)
        for n, first in enumerate(source.tolist()):
            if first < 0:
                continue
            if n < slots:
                kind[rows, first : first + rate] = 3 + first // rate % 2
            else:
                kind[rows, first] = 1 if first >= rows.start else 2

    was = layer.training
    layer.train()
    hook = memory.register_forward_hook(note)
    layer(torch.randn(1, size, layer.d))
    hook.remove()
    layer.train(was)
    at = torch.arange(size)
    return torch.where(at[:, None] >= at, kind, 0)


def rate_of(memory: Memory) -> int:
    """How many states make one of its compressed ones."""
    return int(getattr(getattr(memory, "compression", None), "rate", 1))
