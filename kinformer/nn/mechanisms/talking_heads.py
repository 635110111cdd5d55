"""Talking heads: linear maps that mix the scores or weights of all heads."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_at_least
from kinformer.core.example import Example
from kinformer.core.function_transforms import are_plain_tensors
from kinformer.core.pair_map import PairMap
from kinformer.nn.mechanisms.explicit import Explicit


class MixHeads(PairMap):
    """Map of scores or weights in which each output head is a learned sum of the input heads.

    Talking heads are `Explicit(pattern, before=MixHeads(h_k, h), after=MixHeads(h, h_v))`. Choose them if the model has
    many narrow heads. They cost h (h_k + h_v) more multiplications per pair and the whole matrix in memory. Here h_k is
    the number of heads of the layer, h is free, and h_v is the number of value heads. If h_v is not h_k, `QKV(d, h_k,
    value_heads=h_v, v_dim=...)` makes the values, and `aggregation=OutProjection(h_v, v_dim, d)` joins them. A head in
    which an attention bias masks a pair (-inf) adds nothing to the mix of this pair. A pair that is masked in all heads
    stays masked.

    heads: number of input heads.
    out: number of output heads; `heads` by default.
    bias: True adds a learned number for each output head, as in CaiT; the paper has none.

    Errors: ValueError for a layer with another number of heads.

    Source: Shazeer et al., 2020, arXiv:2003.02436; with biases: Touvron et al., 2021, arXiv:2103.17239.
    """

    by_query = True

    def __init__(self, heads: int, out: int | None = None, *, bias: bool = False):
        super().__init__()
        self.mix = _OverHeads(
            check_at_least("heads", heads, 1), heads if out is None else check_at_least("out", out, 1), bias=bias
        )
        nn.init.normal_(self.mix.weight, std=heads**-0.5)
        if bias:
            nn.init.zeros_(self.mix.bias)

    def forward(self, x: Float[Tensor, "B H T S"], mask: Bool[Tensor, "#B #H T S"] | None) -> Float[Tensor, "B M T S"]:
        if x.shape[1] != self.mix.in_features:
            raise ValueError(
                f"MixHeads was made for {self.mix.in_features} heads, but got {x.shape[1]}. Create it with "
                f"heads={x.shape[1]}"
            )
        if _all_spoken(x):
            return self.mix(x)
        shut = x == -torch.inf  # NaN is not masked, and stays NaN in the mix
        return torch.where(shut.all(1, keepdim=True), -torch.inf, self.mix(torch.where(shut, 0.0, x)))


class _OverHeads(nn.Linear):
    """Linear map over the head dimension, as one product of a few rows without a copy of the pairs."""

    def forward(self, x: Float[Tensor, "B H T S"]) -> Float[Tensor, "B M T S"]:
        mixed = self.weight.expand(len(x), -1, -1) @ x.flatten(2)  # [M H] times [B H T*S]
        mixed = mixed if self.bias is None else mixed + self.bias.to(mixed.dtype)[:, None]
        return mixed.unflatten(2, x.shape[2:])


def _all_spoken(x: Tensor) -> bool:
    """True if no pair is masked in any head. Checked only on CPU, where it needs no wait for a device."""
    if torch.compiler.is_compiling() or not are_plain_tensors(x) or x.device.type != "cpu" or not x.numel():
        return False
    return bool(x.detach().amin() > -torch.inf)


def _paper() -> Explicit:
    return Explicit(kf.Causal(), before=MixHeads(2), after=MixHeads(2))


def _other_heads() -> Explicit:
    return Explicit(kf.Causal() & kf.Band(3), before=MixHeads(2, 3, bias=True), after=MixHeads(3, 2, bias=True))


def _patterns_by_head() -> Explicit:
    return Explicit(kf.Heads(kf.Causal() & kf.Band(2), kf.Causal()), after=MixHeads(2, bias=True))


def _encoder() -> Explicit:
    return Explicit(kf.Full(), before=MixHeads(2, bias=True), after=MixHeads(2, bias=True))


NO_LSE = {"merge": "weights are mixed across heads after each head's softmax, so the output has no lse"}
OTHERS = {"empty_rows": "weights are mixed across heads, so a head without keys reads with the weights of other heads"}

EXAMPLES = (
    Example(_paper, NO_LSE),
    Example(_other_heads, NO_LSE),
    Example(_patterns_by_head, {**NO_LSE, **OTHERS}),
    Example(_encoder, NO_LSE),
)
