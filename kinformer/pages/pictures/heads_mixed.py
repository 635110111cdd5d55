"""What heads make of one another: talking heads' mixes, columns that heads share, capsules that heads vote for."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.nn.aggregations.dynamic_routing import DynamicRouting
from kinformer.nn.aggregations.em_routing import EMRouting
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.talking_heads import MixHeads
from kinformer.nn.projections.collaborative import Collaborative
from kinformer.pages.pictures.support.panel import CELLS, Picture, shades

NOTE = "sizes, of the greatest; before any training"
DRAWN = 16  # random tokens


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """The lowest part of an example that mixes heads."""
    for part in example.modules() if isinstance(example, nn.Module) else ():
        if isinstance(part, Collaborative):
            level = part.mixing.detach().abs()[:, :CELLS]
            caption = f"Collaborative: how heads weigh the {part.shared} columns of queries and keys that they share"
            note = f"{NOTE}{f'; the first {CELLS}' if part.shared > CELLS else ''}"
            yield _picture(caption, {"": level}, "head", "column", note)
            return
        if isinstance(part, Explicit):
            mixes = {"before the softmax": part.before, "after it": part.after}
            levels = {name: mix.mix.weight.detach().abs() for name, mix in mixes.items() if isinstance(mix, MixHeads)}
            if levels:
                yield _picture("MixHeads: what each head takes of each", levels, "head", "of head", NOTE)
                return
        if isinstance(part, DynamicRouting | EMRouting):
            caption = f"{type(part).__name__}: how far each head moves each capsule"
            note = f"of the greatest; {DRAWN} random tokens, before any training"
            yield _picture(caption, {"": moved(part)}, "head", "capsule", note)
            return


def moved(part: DynamicRouting | EMRouting) -> Float[Tensor, "H N"]:
    """The size of the gradient of every capsule by what every head says, over random tokens."""
    heads, count, width, _ = part.votes.weight.shape
    with torch.enable_grad():
        y = torch.randn(1, heads, DRAWN, width, requires_grad=True)
        made = part(y, torch.arange(DRAWN)[None]).unflatten(-1, (count, -1))  # [1 T N W]
        ways = torch.randn_like(made)
        found = [torch.autograd.grad((made * ways)[:, :, n].sum(), y, retain_graph=True)[0] for n in range(count)]
    return torch.stack([one.square().sum((0, 2, 3)).sqrt() for one in found], 1)


def _picture(caption: str, levels: dict[str, Tensor], line: str, column: str, note: str) -> Picture:
    panels = tuple(
        shades(name, level / level.max().clamp_min(1e-30), *([str(n) for n in range(size)] for size in level.shape))
        for name, level in levels.items()
    )
    return Picture(caption, (), panels, line=line, column=column, note=note)
