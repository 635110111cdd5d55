"""GuidedAttention: a loss that pulls the attention of some heads toward given patterns."""

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
    """A regulariser that pulls the attention weights of guided heads toward given patterns.

        sum over heads h and keys k of (A_hik - P_hik)^2 for each query i

    Here A are attention weights. P_hi is uniform over those keys of head h's pattern that query i may read. Choose it
    for some of the heads, to make the start of training faster and more stable. Let its weight fall to 0
    (`core.loss.FadingWeight`), so that the task determines the final heads. A query without such a key has no loss;
    with over="mean", as in the authors' code, its P is 0.

    guides: one entry for each head. A pattern has the keys that the head should look at, such as `Tokens(1)` for the
        first token. An integer stands for all keys that have it as their label "segment" (delimiters, full stops). None
        leaves the head without a guide.
    over: "sum" adds the squares, as in the paper. "mean" follows the authors' code: the mean of the squares over keys
        and over the heads with the same guide, summed over guides.

    Computing the loss repeats the attention weights of all pairs, one block of queries at a time.

    Errors: ValueError if the number of guides differs from the heads, if all guides are None, and if the batch lacks a
    required label. Source: Deshpande and Narasimhan, 2020, arXiv:2010.02399, section 3.

    Differences: the paper sums over queries too, while a model takes the mean over tokens. With over="sum" the weight
    of this loss must therefore be the paper's weight times the length of a row.
    """

    key, needs_lse = "guided_attention", True

    def __init__(self, guides: tuple[Guide, ...], over: Over = "sum"):
        super().__init__()
        for guide in guides:
            if guide is not None and not isinstance(guide, int):
                check_part("guides", guide, Pattern, "a pattern, such as Tokens(1), a label, or None")
        if not any(guide is not None for guide in guides):
            raise ValueError(f"guides={guides} must contain a pattern or a label for at least one head")
        self.guides, self.over = guides, check_option("over", over, Over)

    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        q, lse = request.queries.q, read.lse
        assert lse is not None
        if q.shape[1] != (heads := len(self.guides)):
            raise ValueError(
                f"guides has {heads} entries, but the layer has {q.shape[1]} heads. Pass one entry per head"
            )

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
                raise ValueError(
                    f'guide {guide} is a value of the label "segment", but the batch has no such label. Pass '
                    "segment= to the model"
                )
            return (request.keys.labels["segment"] == guide)[:, None]
        rows = torch.arange(request.queries.q.shape[0], device=request.queries.q.device)[:, None, None]
        q, k = (pos[:, min(h, pos.shape[1] - 1)] for pos in (request.queries.pos, request.keys.pos))
        return torch.as_tensor(guide(rows, h, q[:, :, None], k[:, None]))
