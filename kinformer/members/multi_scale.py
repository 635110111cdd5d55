"""Multi-Scale Transformer: heads with windows of several widths, distributed by layer."""

import math
from typing import Literal

from kinformer.core.checks import check_at_least, check_in_range, check_option, check_unused, check_whole_numbers
from kinformer.core.discover import member
from kinformer.core.pattern import Heads, Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.encoder import encoder
from kinformer.members.support.wiring import Norms, Positions, Wiring
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.patterns.band import Band

Form = Literal["encoder", "decoder"]


@member(
    cost="L * length", recipe=Recipe(lr=1e-3), needs={"alpha": "depth>1", "length": "position=learned or scales=()"}
)
def multi_scale(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    scales: tuple[int, ...] = (),
    alpha: float = 0.5,
    form: Form = "encoder",
    position: Positions = "learned",
    norm: Norms = "post",
    head_dim: int | None = None,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM | LM:
    """Multi-Scale Transformer (Guo et al., 2019, arXiv:1912.00544): one window width per head.

    head of scale w: token i reads i - w to i + w; of layer l of N, heads are shared out by softmax(z^l) over scales

    A scale is a window width. The z^l of the widest scale is 0, and the z^l of each narrower scale is alpha / l larger
    than that for the next wider one. In the last layer all z are 0. So low layers look nearby, and high layers look
    everywhere. Choose it over `bert` for small data, because the prior for near tokens need not be learned. Choose it
    over `longformer` if heads should differ. Time grows as L times the widths if windows are narrow compared with the
    row.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads. The number of heads of each scale is rounded by the largest remainder; ties go to
        narrower scales.
    scales: window widths w, rising; by default 1, 3 and a 16th, 8th, 4th and half of `length`.
    alpha: preference of low layers for near tokens; 0 distributes heads evenly, and below 0 low layers look far.
    form: "encoder" predicts masked tokens, as in the paper. "decoder" has windows that end with the token.
    position: position encoding, as in `bert`.
    norm: "post" or "pre".
    head_dim: width of a head; d / heads if None.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    """
    check_option("form", form, Form)
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout)
    bands = check_whole_numbers("scales", scales or default_scales(length), 0)
    if list(bands) != sorted(set(bands)):
        raise ValueError(f"scales={scales} are not in ascending order; give each width once, the narrowest first")
    check_at_least("heads", heads, 1)
    if len(bands) == 1:
        check_unused("a single scale", alpha=(alpha, 0.5))
    check_in_range("alpha", alpha, -math.inf, math.inf)

    def pattern(layer: int) -> Pattern:
        shared = shares(layer, check_at_least("depth", depth, 1), heads, len(bands), alpha)
        windows = [Band(w) for w, count in zip(bands, shared, strict=True) for _ in range(count)]
        return Heads(*windows) if form == "encoder" else Causal() & Heads(*windows)

    body = encoder(wiring, depth, tuple(pattern(layer) for layer in range(1, depth + 1)), dropout)
    if form == "encoder":
        return MLM(vocab, d, body, position=wiring.added_position(), scale=wiring.scale, dropout=dropout)
    return LM(vocab, d, body, position=wiring.added_position(), scale=wiring.scale, std=wiring.start, dropout=dropout)


def default_scales(length: int) -> tuple[int, ...]:
    """Return the default window widths: 1, 3 and a 16th, 8th, 4th and half of `length`, each once, rising."""
    return tuple(sorted({1, 3, *(max(length // part, 1) for part in (16, 8, 4, 2))}))


def shares(layer: int, depth: int, heads: int, scales: int, alpha: float) -> tuple[int, ...]:
    """Return the number of heads of each scale in a layer, the narrowest scale first.

    layer: the layer, from 1 to `depth`.
    depth: number of layers.
    heads: number of heads of the layer.
    scales: number of scales.
    alpha: preference of low layers for narrow scales.
    """
    step = alpha / layer if layer < depth else 0.0
    weights = [math.exp(step * (scales - 1 - n) - max(step, 0) * (scales - 1)) for n in range(scales)]
    exact = [heads * weight / sum(weights) for weight in weights]
    counts = [math.floor(share) for share in exact]
    # rounding makes equal remainders tie despite floating-point errors
    order = sorted(range(scales), key=lambda n: (-round(exact[n] - counts[n], 9), n))
    for n in order[: heads - sum(counts)]:
        counts[n] += 1
    return tuple(counts)


EXAMPLES = (
    lambda: multi_scale(d=16, depth=2, heads=4, scales=(1, 2, 4), length=64, vocab=11),
    lambda: multi_scale(d=16, depth=1, heads=2, scales=(2, 4), form="decoder", norm="pre", length=64, vocab=11),
    lambda: multi_scale(d=16, depth=1, heads=2, scales=(2, 4), position="relative", vocab=11),
)
