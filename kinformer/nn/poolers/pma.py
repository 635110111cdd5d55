"""PMA: a few learned seeds read a set, and make vectors of it."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_optional_part
from kinformer.core.layer import Context, Layer
from kinformer.core.pooler import Pooler
from kinformer.nn.blocks.mab import MAB, source_reader
from kinformer.nn.feedforward.mlp import MLP


class PMA(Pooler):
    """Pooling by multihead attention: k learned seeds read the set, each a vector; side by side [B k*D].

    PMA_k(Z) = MAB(S, rFF(Z)); in the authors' code, with `PublishedMAB` and without `feedforward`, MAB(S, Z)

    Choose it over a mean where what counts is in few elements, or in several groups of them (k > 1). Of a set without
    elements it makes what the seeds are by themselves.

    block: reads the set.
    seeds: k, how many vectors it makes of a set.
    feedforward: what each element goes through before it is read.

    Errors: ValueError for parts of the wrong kind, and for a block that reads itself. Source: Lee et al., 2018,
    arXiv:1810.00825, equation 11.
    """

    def __init__(self, block: Layer, seeds: int = 1, *, feedforward: Layer | None = None):
        super().__init__()
        self.block = source_reader("block", block)
        self.vectors, self.feedforward = check_at_least("seeds", seeds, 1), feedforward
        check_optional_part("feedforward", feedforward, Layer, "a layer, such as MLP(d)")
        self.seed = nn.Parameter(nn.init.xavier_uniform_(torch.empty(seeds, block.d)))

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B kD"]:
        at = torch.arange(max(self.vectors, y.shape[1]), device=y.device)
        pos = torch.where(real, at[: y.shape[1]], -1)
        if self.feedforward is not None:
            y = self.feedforward(y, None, Context(pos)).y
        ctx = Context(at[: self.vectors].expand(len(y), -1), run=True, source=y, source_pos=pos)
        return self.block(self.seed.expand(len(y), -1, -1), None, ctx).y.flatten(1)


EXAMPLES = (lambda: PMA(MAB(16, 2), 2, feedforward=MLP(16)),)
