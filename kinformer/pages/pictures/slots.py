"""Pictures of memories of earlier segments: positions that a query reads, uncompressed or compressed."""

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
    """Yield a picture of the positions that a query can read, for each different memory of an example.

    example: a memory, or a module with memories inside.
    length: number of positions; None chooses a length that shows all parts of the memory.
    """
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
            kind = kind.clamp(max=3)  # at this scale neighbouring compressed slots are not distinguishable
        caption = f"{type(memory).__name__}{suffix(join_names(places))}: earlier positions that a query can read"
        note = f"{size} positions in segments of {memory.length} positions{of_cells(step)}"
        if kind.max() > 2:
            note += f"; each compressed slot holds {rate_of(memory)} positions"
        yield Picture(caption, KINDS[: int(kind.max())], (grid("", kind, step),), note=note, column="position")


def slot_kinds(layer: Attention, memory: Memory, size: int) -> Int[Tensor, "T T"]:
    """Return for each query how it can read each position, found by running the layer on one row.

    0: not at all; 1: in its own segment; 2: in the memory; 3 and 4: compressed, in turn from one slot to the next. A
    slot is one place of the compressed memory.

    layer: attention layer with a memory.
    memory: the memory of the layer.
    size: number of positions.
    """
    kind = torch.zeros(size, size, dtype=torch.long)
    rate, slots = rate_of(memory), getattr(memory, "slots", 0)

    def note(module: nn.Module, inputs: Any, out: Any) -> None:
        pos, source, old = inputs[2].pos[0], out[1][0], getattr(out[2], "old", None)
        if old is not None:  # positions of slots may count slots, so take the token positions from the state
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
    """Return the number of positions that a memory compresses into one slot; 1 if it does not compress.

    memory: the memory.
    """
    return int(getattr(getattr(memory, "compression", None), "rate", 1))
