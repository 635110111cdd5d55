"""The figure `guided_attention`: patterns of guided heads, and the weight of the loss over training."""

from collections.abc import Iterator

import torch
from torch import Tensor

import kinformer as kf
from kinformer.core.loss import FadingWeight
from kinformer.core.pattern import Pattern
from kinformer.members.guided_attention import GUIDES
from kinformer.pages.eight_tokens import LABELS, TOKENS
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

LABELLED = {"delimiter": 3, "period": 7}  # the tokens that stand for a separator and a full stop
LEFT, WIDE, BOTTOM = 12, 60, 8


def draw() -> Iterator[Diagram | Picture]:
    """Yield the patterns over the eight tokens, and the weight of the loss."""
    panels = tuple(shades(name, pattern_of(name), LABELS, LABELS) for name in ("next", "previous", "first", *LABELLED))
    note = "Each row sums to 1, or is empty and has no loss. The delimiter is and (3), the period is too (7)."
    yield Picture("patterns P that guided heads should have", (), panels, note=note)
    yield _schedule(FadingWeight(1.0, hold=0.5))


def pattern_of(name: str) -> Tensor:
    """Return the matrix P of a guide over the eight tokens.

    name: name of the guide.
    """
    if name in LABELLED:
        reads = (torch.arange(len(TOKENS)) == LABELLED[name]).expand(len(TOKENS), -1)
    else:
        guide = GUIDES[name]
        assert isinstance(guide, Pattern)
        reads = (kf.Full() & guide).matrix(len(TOKENS))
    return reads / reads.sum(-1, keepdim=True).clamp_min(1)


def _schedule(alpha: FadingWeight) -> Diagram:
    diagram = Diagram(
        "weight alpha of the guidance loss during training",
        note="The loss of the task has the weight 1 throughout. At the end only the task decides about the heads.",
    )
    diagram.line((LEFT, 1), (LEFT, BOTTOM), (LEFT + WIDE + 4, BOTTOM))
    points = [n / 20 for n in range(21)]
    diagram.line(*((LEFT + WIDE * x, BOTTOM - 6 * alpha.weight_at(x)) for x in points), kind=1)
    diagram.words(LEFT - 6, 2, f"{alpha.weight:.1f}")
    diagram.words(LEFT - 6, BOTTOM, "0.0")
    for part in (0, 0.5, 1):
        diagram.words(round(LEFT + WIDE * part), BOTTOM + 1, f"{100 * part:.0f}%")
    diagram.words(LEFT + 18, BOTTOM + 2, "finished part of training")
    return diagram
