"""Talking heads: scores, or weights, of all heads mixed into those of other heads."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.pattern import Heads
from kinformer.mechanisms.explicit import Explicit, PairMap
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full


class MixHeads(PairMap):
    """Each head out is a learned sum of the heads in.

    Talking heads are `Explicit(pattern, before=MixHeads(h_k, h), after=MixHeads(h, h_v))`: better use of many narrow
    heads, for h (h_k + h_v) more multiplications per pair and the whole matrix in memory. h_k is the layer's heads, h
    is free, h_v a multiple of the layer's key_heads; where h_v is not h_k, the layer wants
    `aggregation=Linear(h_v, v_dim, d)`. `bias` adds a number per head out (the paper has none, CaiT has).

    A head from which an attention bias shut a pair out (-inf) adds nothing to the pair's mix; a pair that is shut out
    of all heads stays out.
    Source: Shazeer et al., 2020, arXiv:2003.02436; with biases: Touvron et al., 2021, arXiv:2103.17239.
    """

    def __init__(self, heads: int, out: int | None = None, *, bias: bool = False):
        super().__init__()
        self.mix = nn.Linear(heads, heads if out is None else out, bias=bias)
        nn.init.normal_(self.mix.weight, std=heads**-0.5)
        if bias:
            nn.init.zeros_(self.mix.bias)

    def forward(
        self,
        x: Float[Tensor, "B H T S"],
        below: Float[Tensor, "B N T S"] | None,
        mask: Bool[Tensor, "B #H T S"],
    ) -> Float[Tensor, "B M T S"]:
        spoken = x > -torch.inf
        mixed = self.mix(torch.where(spoken, x, 0.0).movedim(1, -1)).movedim(-1, 1)
        return torch.where(spoken.any(1, keepdim=True), mixed, -torch.inf)


EXAMPLES = (
    lambda: Explicit(Causal(), before=MixHeads(2), after=MixHeads(2)),
    lambda: Explicit(Causal() & Band(3), before=MixHeads(2, 3, bias=True), after=MixHeads(3, 2, bias=True)),
    lambda: Explicit(Heads(Causal() & Band(2), Causal()), after=MixHeads(2, bias=True)),
    lambda: Explicit(Full(), before=MixHeads(2, bias=True), after=MixHeads(2, bias=True)),
)
BREAKS = {"merge": "weights of several heads are mixed after each head's softmax, so a read has no lse of its own"}
COMPILES = True
