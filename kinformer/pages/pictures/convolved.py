"""Scores that are convolved: of which pairs beneath a pair hears, and how much of each before any training."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kinformer.nn.mechanisms.score_convolution import ScoreConvolution
from kinformer.pages.pictures.support.panel import Picture, shades

HEADS, AROUND = 4, 1


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """The lowest convolution of an example; a panel for each head, and a line for each query about the pair's."""
    for part in example.modules() if isinstance(example, nn.Module) else ():
        if isinstance(part, ScoreConvolution):
            size = max(-part.of_queries[0], -part.of_keys[0]) + AROUND
            steps = range(-size, size + 1)
            level = torch.zeros(part.conv.out_channels, len(steps), len(steps))
            weight = part.conv.weight.detach().abs().sum(1)  # over the heads that it hears
            down, across = (torch.tensor([steps.index(step) for step in of]) for of in (part.of_queries, part.of_keys))
            level[:, down[:, None], across] = weight / weight.amax((1, 2), keepdim=True)
            names = [f"{step:+d}" if step else "0" for step in steps]
            panels = tuple(shades(f"head {n}", one, names, names) for n, one in enumerate(level[:HEADS]))
            caption = "scores beneath that a pair's are made of, by how far they stand from the pair"
            note = "sizes of the weights that hear all heads, of the greatest; before any training"
            yield Picture(caption, (), panels, line="query", column="key", note=note)
            return
