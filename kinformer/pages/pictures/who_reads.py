"""Pictures of attention patterns: the keys that each query may read, by pieces, layers and heads."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from kinformer.attend.pattern_parts import parts
from kinformer.core.pattern import Heads, Pattern
from kinformer.lab.cost.by_content import by_content
from kinformer.lab.cost.sparsity import layout_words
from kinformer.nn.depth.global_ends import GlobalEnds
from kinformer.nn.depth.global_nodes import GlobalNodes
from kinformer.nn.mechanisms.merged import Merged
from kinformer.pages.pictures.support.attention_calls import MechanismCall, group_equal_layers, join_names, mask_of
from kinformer.pages.pictures.support.picture_panels import CELLS, MOST, NARROW, Panel, Picture, grid, masks_grid, span
from kinformer.pages.pictures.support.short_repr import largest_number, short_repr

HEADS, PANELS = 4, 6  # most heads and panels that are drawn
AHEAD = "an encoder reads these keys; a decoder joins a pattern with Causal(), which leaves out later keys"
CAPTION = "which keys each query reads"
EXPLAINED = {"near": "window keys (near)", "wide": "rows of global tokens (wide)"}  # names of sets in a caption
FULL, EMPTIER = 0.7, 0.9  # a fuller drawing covers more positions if its filled share then falls below this factor


class PanelPlan(NamedTuple):
    """A panel of a picture of attention patterns, before it is drawn.

    title: title of the panel.
    sets: names and patterns that are shown together, each in its own colour.
    heads: the attention heads that use these patterns.
    """

    title: str
    sets: list[tuple[str, Pattern]]
    heads: range = range(1)


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """Yield a picture of an attention pattern by its pieces, or of the patterns of a module's layers.

    Layers are drawn only if their keys do not depend on the content of tokens.

    example: a pattern, or a module with attention layers inside.
    length: number of positions; None chooses a length that shows the structure.
    """
    if isinstance(example, Pattern):
        pieces = parts(example, 1024)
        named = [(layout_words(call.layout), call.where) for call in pieces] if len(pieces) > 1 else [("", example)]
        yield _picture(
            f"{CAPTION}: {short_repr(example)}", [PanelPlan("", named, range(HEADS))], length, titled=False, alone=True
        )
        return
    panels: list[PanelPlan] = []
    modules = example.modules() if isinstance(example, nn.Module) else ()
    owners = [module for module in modules if isinstance(module, GlobalNodes | GlobalEnds | Merged)]
    elsewhere = {inside for owner in owners for inside in owner.modules()}
    for places, inside_calls in group_equal_layers(example, elsewhere):
        fixed = [
            call
            for call in inside_calls
            if call.is_self_attention and call.mechanism not in elsewhere and not by_content(call.mechanism)
        ]
        by_heads: dict[range, list[MechanismCall]] = {}
        for call in fixed:
            by_heads.setdefault(call.heads, []).append(call)
        for heads, of in by_heads.items():
            title = join_names(places)
            if len(by_heads) > 1:
                title = f"{title} {_head_label(heads)}".strip()
            panels.append(PanelPlan(title, [(call.name if len(of) > 1 else "", call.pattern) for call in of], heads))
    for names in dict.fromkeys(tuple(name for name, _ in call.sets) for call in panels):
        alike = [call for call in panels if tuple(name for name, _ in call.sets) == names]
        sets = f": {' and '.join(EXPLAINED.get(name, name) for name in names)}" if any(names) else ""
        yield _picture(f"{CAPTION}{sets}", alike, length)


def side_by_side(patterns: list[Pattern], length: int | None) -> Picture:
    """Return a picture of several attention patterns, one panel each, at the same scale.

    patterns: the patterns.
    length: number of positions; None chooses a length that shows the structure.
    """
    plans = [PanelPlan("", [("", pattern)]) for pattern in patterns]
    return _picture(CAPTION, plans, length, alone=True)


def _picture(
    caption: str, plans: list[PanelPlan], length: int | None, *, titled: bool = True, alone: bool = False
) -> Picture:
    """Draw plans; patterns that stand `alone`, and not in a model, get a note if they read later keys."""
    plans = [plan for turn in plans for plan in _by_head(turn)]
    cells = CELLS if len(plans) == 1 else NARROW
    size, step = span(max(largest_number(plan) for turn in plans for _, plan in turn.sets), length, cells)
    if length is None:
        size, step = _thinned(plans, size, step)
    panels = tuple(_panel(plan, size, step, titled or len(plans) > 1) for plan in plans[:PANELS])
    names = tuple(name for name, _ in plans[0].sets)
    if any(bool((_reads(plan, size) > 1).any()) for plan in plans[:PANELS]):
        names += ("both" if len(names) == 2 else "more than one",)
    note = f"{size} positions; a cell is {step} by {step}, darker if more of its pairs are read" if step > 1 else ""
    if len(plans) > PANELS:
        note += f"{'; ' if note else ''}{PANELS} of {len(plans)} different panels are drawn"
    if alone and any(bool(_reads(plan, size).triu(1).any()) for plan in plans[:PANELS]):
        note += f"{'; ' if note else ''}{AHEAD}"
    return Picture(caption, names if any(names) else (), panels, note=note)


def _thinned(plans: list[PanelPlan], size: int, step: int) -> tuple[int, int]:
    """Return a size and a step with more positions per cell, as long as this makes a nearly full drawing emptier."""

    def full(size: int) -> float:
        return max(_share(plan, size) for plan in plans[:PANELS])

    while full(size) > FULL and 2 * size <= MOST // 2 and min(full(2 * size), full(4 * size)) < EMPTIER * full(size):
        size, step = 2 * size, 2 * step
    # a table of blocks has an end, and positions after it are empty
    while step > 1 and not any(_reads(plan, size)[size // 2 :].any() for plan in plans[:PANELS]):
        size, step = size // 2, step // 2
    return size, step


def _reads(plan: PanelPlan, size: int) -> Int[Tensor, "T T"]:
    """Return the number of sets that read each pair of query and key."""
    return torch.stack([mask_of(pattern, size, plan.heads)[0] for _, pattern in plan.sets]).sum(0)


def _share(plan: PanelPlan, size: int) -> float:
    """Return the share of pairs that is read: of all pairs, or of causal pairs if no later key is read."""
    read = _reads(plan, size) > 0
    all_ = size * size if bool(read.triu(1).any()) else size * (size + 1) / 2
    return float(read.sum()) / all_


def _head_label(heads: range) -> str:
    return f"head {heads.start}" if len(heads) == 1 else f"heads {heads.start}-{heads.stop - 1}"


def _panel(plan: PanelPlan, size: int, step: int, titled: bool) -> Panel:
    masks = [mask_of(pattern, size, plan.heads)[0] for _, pattern in plan.sets]
    kinds = torch.where(_reads(plan, size) > 1, len(masks) + 1, masks_grid(masks).kind)
    title = plan.title
    if titled:
        words = "; ".join(f"{name} {short_repr(pattern)}".strip() for name, pattern in plan.sets)
        title = f"{title}: {words}" if title else words
    return grid(title, kinds, step)


def _by_head(plan: PanelPlan) -> list[PanelPlan]:
    """Split a plan into one plan for each of the first heads with a new pattern."""
    earlier: list[Tensor] = []
    plans: list[PanelPlan] = []
    heads = list(plan.heads)[:HEADS]
    for head in heads:
        masks = torch.cat([mask_of(pattern, 2 * CELLS, range(head, head + 1)) for _, pattern in plan.sets])
        if not any(torch.equal(masks, other) for other in earlier):
            earlier.append(masks)
            plans.append(plan._replace(heads=range(head, head + 1)))
    if len(plans) == 1:
        return plans
    return [_of_head(other) for other in plans]


def _of_head(plan: PanelPlan) -> PanelPlan:
    """Return the plan of a single head: its title names the head, and `Heads` is replaced by the head's pattern."""
    head = plan.heads.start
    sets = [
        (name, pattern.patterns[head % len(pattern.patterns)] if isinstance(pattern, Heads) else pattern)
        for name, pattern in plan.sets
    ]
    return plan._replace(title=f"{plan.title} head {head}".strip(), sets=sets)
