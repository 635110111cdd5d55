"""GuidedAttention: heads that are held to patterns given beforehand."""

from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput, map_query_blocks, weights
from kinformer.core.checks import check_option, check_part
from kinformer.core.heads import Keys
from kinformer.core.pattern import Pattern
from kinformer.core.regulariser import Regulariser
from kinformer.core.request import Request
from kinformer.core.score_matrix import full_mask

Over = Literal["sum", "mean"]
Guide = Pattern | int | None


class GuidedAttention(Regulariser):
    """sum over heads h and keys k of (A_hik - P_hik)^2 for each query i: guided heads learn what they should look at.

    P_hi is even over the keys of a pattern that query i may read. Choose it to start training faster and steadier, on
    some of the heads; fade it out (`core.loss.FadingWeight`), as heads should end where the task wants them. A query
    that has no such key is held to nothing; in the authors' code, and with over="mean", to zeros.

    guides: for each head the pattern whose keys it should look at, such as `Tokens(1)` for the first token; a whole
        number for the keys with this label "segment" (delimiters, full stops); None for a head that is free.
    over: "sum" of the squares, the paper's, which sums over queries too where a model takes the mean over tokens: the
        paper's weight is a row's length times smaller here; or, as in its code, their "mean" over keys and over the
        heads of each guide, the guides summed.

    Cost: the weights of all pairs once more, a block of queries at a time. Errors: ValueError for guides of another
    number than heads, for none at all, and where a label is wanted that the batch has not. Source: Deshpande and
    Narasimhan, 2020, arXiv:2010.02399, section 3.
    """

    key, needs_lse = "guided_attention", True

    def __init__(self, guides: tuple[Guide, ...], over: Over = "sum"):
        super().__init__()
        for guide in guides:
            if guide is not None and not isinstance(guide, int):
                check_part("guides", guide, Pattern, "a pattern, such as Tokens(1), a label, or None")
        if not any(guide is not None for guide in guides):
            raise ValueError(f"guides={guides} guide no head; give one a pattern")
        self.guides, self.over = guides, check_option("over", over, Over)

    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        q, lse = request.queries.q, read.lse
        assert lse is not None
        if q.shape[1] != (heads := len(self.guides)):
            raise ValueError(f"there are guides for {heads} heads, and the layer has {q.shape[1]}; give each one")

        empty = lse.new_zeros(q.shape[0], 0)
        return torch.cat([empty, *map_query_blocks(request, partial(self._squared_distance, request, lse))], 1)

    def _squared_distance(self, request: Request, lse: Float[Tensor, "B H T"], at: Tensor) -> Float[Tensor, "B R"]:
        rows = request.piece(at, None)
        may = full_mask(rows)  # [B H R S]
        weight = weights(request, lse, at)
        total = weight.new_zeros(weight.shape[0], weight.shape[2])
        for h, guide in enumerate(self.guides):
            if guide is None:
                continue
            guided = may[:, h] & self._guided_pairs(rows, h, guide)  # [B R S]
            count = guided.sum(-1, keepdim=True)
            squares = (weight[:, h] - guided / count.clamp_min(1)).square().sum(-1)
            if self.over == "sum":
                total = total + squares.where(count[..., 0] > 0, 0.0)
            else:
                total = total + squares / (may[:, h].sum(-1).clamp_min(1) * self.guides.count(guide))
        return total

    @staticmethod
    def _guided_pairs(request: Request, h: int, guide: Pattern | int) -> Bool[Tensor, "..."]:
        if isinstance(guide, int):
            if "segment" not in request.keys.labels:
                raise ValueError(f'guide {guide} is a label "segment", and the batch has none; give the model segment=')
            return (request.keys.labels["segment"] == guide)[:, None]
        rows = torch.arange(request.queries.q.shape[0], device=request.queries.q.device)[:, None, None]
        q, k = (pos[:, min(h, pos.shape[1] - 1)] for pos in (request.queries.pos, request.keys.pos))
        return torch.as_tensor(guide(rows, h, q[:, :, None], k[:, None]))
