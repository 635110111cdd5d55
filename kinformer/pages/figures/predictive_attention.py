"""The figure `predictive_attention`: scores that a kernel reads, and attention that moves."""

from collections.abc import Iterator

import torch
from torch import Tensor

import kinformer as kf
from kinformer.nn.mechanisms.score_convolution import Kernel, ScoreConvolution
from kinformer.pages.eight_tokens import LABELS, TOKENS, token_vectors
from kinformer.pages.pictures.support.picture_panels import Picture, grid, shades

PAIR = (5, 2)  # query and key whose score is computed
KINDS = ("score that is computed", "also read by the 3 x 3 kernel", "other score of the layer below")


def draw() -> Iterator[Picture]:
    """Yield the scores that a kernel reads in an encoder and a decoder, and the weights of two layers."""
    encoder, decoder = _reads("centred"), _reads("causal")
    panels = tuple(
        grid(title, kind)._replace(rows=LABELS, columns=LABELS)
        for title, kind in (("encoder: centred", encoder), ("decoder: causal", decoder))
    )
    note = f"For the query {TOKENS[PAIR[0]]} ({PAIR[0]}) and the key {TOKENS[PAIR[1]]} ({PAIR[1]}); heads are channels."
    yield Picture("scores of the layer below that a convolution reads for one pair", KINDS, panels, note=note)
    titles = ("layer 1", "layer 2: moved")
    shown = tuple(shades(title, w, LABELS, LABELS) for title, w in zip(titles, moved_weights(), strict=True))
    note = "Layer 2 has no scores of its own. Each query reads the tokens after those that the previous query read."
    yield Picture("attention weights of two layers of a decoder, kernel with a 1 at (-1, -1)", (), shown, note=note)


def moved_weights() -> list[Tensor]:
    """Return the weights of layer 1, and of layer 2 with its scores moved by one query and one key."""
    x = token_vectors()
    ctx = kf.Context.of_sequence(torch.zeros(1, len(x), 1))
    pos = ctx.pos[:, None]
    keys = kf.Keys(x[None, None], torch.eye(len(x))[None, None], pos)
    lower = kf.Explicit(kf.Causal(), up=True)(kf.Queries(4 * x[None, None], pos), keys, None, ctx)
    layer = kf.PredictiveAttention(kf.Causal(), 1, alpha=0.0, size=2, kernel="causal", slope=1.0)
    with torch.no_grad():
        layer.convolution.conv.weight.zero_()[0, 0, 0, 0] = 1
        layer.convolution.conv.bias.zero_()  # type: ignore[union-attr]
        upper = layer(kf.Queries(0 * x[None, None], pos), keys, None, ctx.replace(below=lower.up))
    return [lower.y.y[0, 0], upper.y.y[0, 0]]


def _reads(kernel: Kernel) -> Tensor:
    """Return 1 at the pair, 2 at further pairs that the kernel reads, 3 at other pairs of the matrix."""
    part = ScoreConvolution(1, 3, kernel, 1.0)
    pattern = kf.Full() if kernel == "centred" else kf.Causal()
    kind = torch.where(pattern.matrix(len(TOKENS)), 3, 0)
    for a in part.of_queries:
        for b in part.of_keys:
            place = PAIR[0] + a, PAIR[1] + b
            kind[place] = 0 if not kind[place] else 2 if (a, b) != (0, 0) else 1
    return kind
