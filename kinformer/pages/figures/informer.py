"""The figure `informer`: the choice of queries, halved rows, and the decoder's input."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from kinformer import Context, Full, Keys, ProbSparse, Queries, Softmax
from kinformer.nn.depth.distilled import Distil
from kinformer.pages.eight_tokens import LABELS, TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

LENGTHS = (0.5, 4.0, 4.0, 0.5, 0.5, 4.0, 4.0, 0.5)  # of the queries
SAMPLED, EXACT = ProbSparse(factor=1), ProbSparse(factor=1, measure="max-mean")
LEFT, WIDE = 10, 7  # column of a measure of 0, and columns of a measure of 1


def draw() -> Iterator[Diagram | Picture]:
    """Yield the measure of each query, the weights, the halving of rows, and the input of the decoder."""
    yield _measures()
    queries, keys = _queries(), token_vectors()
    panels = (
        shades("softmax", attention_weights(Softmax(Full()), queries, keys), LABELS, LABELS),
        shades("ProbSparse", attention_weights(EXACT, queries, keys), LABELS, LABELS),
    )
    note = "Chosen queries keep their rows. The others get the mean of the values."
    yield Picture("attention weights of the eight tokens", (), panels, note=note)
    yield _halving()
    yield _decoder()


def _queries() -> Tensor:
    return torch.tensor(LENGTHS)[:, None] * token_vectors()


def _measures() -> Diagram:
    pos = Context.of_sequence(torch.zeros(1, len(TOKENS), 1)).pos[:, None]
    queries, keys = (
        Queries(_queries()[None, None], pos),
        Keys(token_vectors()[None, None], torch.eye(8)[None, None], pos),
    )
    diagram = Diagram(
        "the measure M of each query",
        kinds=("chosen", "not chosen"),
        note="Left: all keys. Right: 3 sampled keys for each query, which may choose other queries.",
    )
    for x, words, mechanism in ((0, "all keys", EXACT), (50, "3 sampled keys", SAMPLED)):
        request, _ = mechanism.make_request(queries, keys, None, Context(pos[:, 0], run=True))
        chosen = set(mechanism.choose_queries(request)[0, 0].tolist())
        diagram.words(x, 0, words, bold=True)
        for place, value in enumerate(mechanism.measure_sparsity(request)[0, 0].tolist()):
            y, kind = 2 + place, 1 if place in chosen else 2
            end = x + LEFT + round(WIDE * value)
            diagram.words(x, y, LABELS[place], kind)
            if end > x + LEFT:
                diagram.line((x + LEFT, y), (end, y), kind=kind)
            diagram.words(end + 1, y, f"{value:.2f}", kind)
    return diagram


def _halving() -> Diagram:
    layer = Distil(1)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    nn.init.ones_(layer.conv.weight[:, :, 1:2])  # the convolution copies, so that the pooling is visible
    diagram = Diagram(
        "distilling: each halving keeps the largest of three neighbours",
        kinds=("encoder rows",),
        note="A row holds its position as its number, and the convolution copies it. Real convolutions mix three rows.",
    )
    x, pos, step = torch.arange(8.0)[None, :, None], torch.arange(8)[None], 1
    for n in range(3):
        y = 7 * n
        diagram.words(0, y + 1, f"layer {n + 1}: L / {step}" if n else "layer 1: L")
        for place, value in enumerate(x[0, :, 0].tolist()):
            at = 22 + 9 * step * place
            diagram.box(at, y, 7, 3, f"{value:g}", 1)
            if n < 2 and place % 2 == 0:
                for near in (place - 1, place, place + 1):
                    if 0 <= near < x.shape[1]:
                        diagram.line((at + 3 + 9 * step * (near - place), y + 2.6), (at + 3, y + 5))
                diagram.arrow((at + 3, y + 5), (at + 3, y + 6.3))
        if n < 2:
            diagram.words(0, y + 4, "conv, ELU, max")
            with torch.no_grad():
                x, pos = layer(x, pos, True)
            step *= 2
    return diagram


def _decoder() -> Diagram:
    known, label = 6, 3
    diagram = Diagram(
        "the decoder forecasts all rows in one pass",
        kinds=("known rows", "rows of zeros", "forecast"),
        note="Six rows are known and two are forecast. The decoder reads the last three known rows again.",
    )
    for y, words in ((1, "encoder reads"), (7, "decoder reads"), (13, "output")):
        diagram.words(0, y, words)
    for place in range(len(TOKENS)):
        x = 16 + 10 * place
        if place < known:
            diagram.box(x, 0, 8, 3, f"row {place}", 1)
        if place >= known - label:
            diagram.box(x, 6, 8, 3, f"row {place}" if place < known else "0", 1 if place < known else 2)
        if place >= known:
            diagram.arrow((x + 3, 8.6), (x + 3, 11.3))
            diagram.box(x, 12, 8, 3, f"row {place}", 3)
    diagram.arrow((59, 2.6), (59, 5.3))
    diagram.words(61, 4, "cross-attention of all decoder rows")
    return diagram
