"""PMA: learned query vectors (seeds) that attend to a set and reduce it to a few vectors."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_optional_part
from kinformer.core.layer import Context, Layer
from kinformer.core.pooler import Pooler
from kinformer.nn.blocks.mab import MAB, source_reader
from kinformer.nn.feedforward.mlp import MLP


class PMA(Pooler):
    """Pooling by multi-head attention: k learned vectors (seeds) attend to a set; result [B k*D].

    PMA_k(Z) = MAB(S, rFF(Z))

    Here S are the seeds, Z is the set, rFF is `feedforward`, and MAB(A, B) is a block in which A attends to B. Each
    seed gives one vector, and the result concatenates them. Choose it over a mean if few elements matter, or several
    groups of elements (k > 1). For an empty set the result depends only on the seeds.

    block: block in which the seeds attend to the set, such as a `MAB`.
    seeds: k, the number of vectors per set.
    feedforward: layer that processes each element of the set first; None for none.

    Errors: ValueError if `block` or `feedforward` is no layer, or if the block reads its own input (cross=False).

    Source: Lee et al., 2018, arXiv:1810.00825, equation 11.

    Differences: the authors' code computes MAB(S, Z). Use `PublishedMAB` without `feedforward` for that form.
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
