"""The figure `talking_heads`: heads mixed before and after the softmax, and a mixed head."""

from collections.abc import Iterator

import torch
from torch import Tensor

import kinformer as kf
from kinformer.pages.eight_tokens import LABELS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

SCORES, SOFTMAXES, VALUES = 2, 3, 2
KINDS = ("separate for each head", "learned mix of all heads")


def draw() -> Iterator[Diagram | Picture]:
    """Yield the path from scores to outputs, and the weights of head 1 under each mix."""
    yield _path()
    panels = [shades(f"head {h + 1}, no mix", mixed_weights(None, None)[h], LABELS, LABELS) for h in (0, 1)]
    panels.append(shades("sum of scores", mixed_weights([1.0, 1.0], None)[0], LABELS, LABELS))
    panels.append(shades("mean of weights", mixed_weights(None, [0.5, 0.5])[0], LABELS, LABELS))
    note = "With summed scores a key needs a high score in both heads. A mean of weights keeps the keys of either head."
    yield Picture("attention weights of two heads, and of head 1 after each mix", (), tuple(panels), note=note)


def mixed_weights(before: list[float] | None, after: list[float] | None) -> Tensor:
    """Return the weights of two heads: head 1 compares vectors, head 2 looks at the previous token.

    before, after: parts of both heads in mixed head 1 before and after the softmax; None for no mix.
    """
    x, at = token_vectors(), torch.deg2rad(40.0 * torch.arange(9))
    places = torch.stack([at.cos(), at.sin()], 1)
    ctx = kf.Context.of_sequence(torch.zeros(1, len(x), 1))
    pos = ctx.pos[:, None]
    queries = kf.Queries(torch.stack([4 * x, 6 * places.roll(1, 0)[: len(x)]])[None], pos)
    values = torch.eye(len(x)).expand(1, 2, -1, -1)
    keys = kf.Keys(torch.stack([x, places[: len(x)]])[None], values, pos)
    mechanism = kf.Explicit(kf.Causal(), before=_mix(before), after=_mix(after))
    with torch.no_grad():
        return mechanism(queries, keys, None, ctx).y.y[0]


def _mix(parts: list[float] | None) -> kf.MixHeads | None:
    if parts is None:
        return None
    mix = kf.MixHeads(2)
    mix.mix.weight.data.copy_(torch.tensor([parts, [0.0, 1.0]]))
    return mix


def _path() -> Diagram:
    diagram = Diagram(
        f"talking heads with h_k = {SCORES}, h = {SOFTMAXES} and h_v = {VALUES}",
        kinds=KINDS,
        note="Each box is a matrix of queries by keys, except for O, the outputs. Ordinary heads have no mixes.",
    )
    columns = (
        (0, "scores", "J", SCORES, 8),
        (24, "mixed scores", "L", SOFTMAXES, 8),
        (46, "weights", "W", SOFTMAXES, 8),
        (70, "mixed weights", "U", VALUES, 8),
        (92, "outputs", "O", VALUES, 8),
    )
    middles: list[list[int]] = []
    for x, title, letter, count, width in columns:
        diagram.words(x, 0, title, bold=True)
        first = 3 + 5 * (SOFTMAXES - count) // 2
        middles.append([first + 5 * n for n in range(count)])
        for n, y in enumerate(middles[-1], 1):
            diagram.box(x, y - 1, width, 3, f"{letter}{n}", 1)
    for n, (left, right) in enumerate(zip(columns, columns[1:], strict=False)):
        start, end = left[0] + left[4] - 1, right[0] - 0.6
        mixes = len(middles[n]) != len(middles[n + 1])
        for a in middles[n]:
            for b in middles[n + 1]:
                if mixes or a == b:
                    diagram.arrow((start, a), (end, b), kind=2 if mixes else 1)
    bottom = 5 * SOFTMAXES + 1
    for x, text, kind in ((13, "mix P_l", 2), (34, "softmax", 1), (59, "mix P_w", 2), (80, "times V", 1)):
        diagram.words(x, bottom, text, kind)
    return diagram
