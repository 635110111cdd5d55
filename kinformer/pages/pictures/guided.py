"""Guided heads: which keys each of them is held to while it trains."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kinformer.core.pattern import Pattern
from kinformer.nn.losses.guided_attention import GuidedAttention
from kinformer.pages.pictures.support.panel import NARROW, Picture, grid
from kinformer.pages.pictures.support.spelled import spelled
from kinformer.pages.pictures.who_reads import mask_of

MARK = 5  # a token of this many has the label, where a guide is a label


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """A panel for each guide of an example; one that is a label is drawn as if every few tokens had it."""
    guided = (
        [one for one in example.modules() if isinstance(one, GuidedAttention)] if isinstance(example, nn.Module) else []
    )
    size, panels = length or NARROW, []
    for guide in dict.fromkeys(guide for one in guided for guide in one.guides if guide is not None):
        where = [
            f"layer {n} head {h}" for n, one in enumerate(guided) for h, its in enumerate(one.guides) if its == guide
        ]
        if isinstance(guide, Pattern):
            what, marked = spelled(guide), mask_of(guide, size, range(1))[0]
        else:
            what = f"label {guide}"
            marked = (torch.arange(size) % MARK == guide % MARK).expand(size, size)
        panels.append(grid(f"{', '.join(where)}: {what}", marked.long()))
    if panels:
        free = sum(guide is None for one in guided for guide in one.guides)
        note = f"of all guided layers' heads {free} are held to nothing; the weight of this fades as training goes on"
        yield Picture("keys that guided heads are held to", (), tuple(panels), note=note)
