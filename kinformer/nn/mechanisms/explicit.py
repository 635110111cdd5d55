"""Explicit: softmax attention that can change its scores and weights, and pass its scores on."""

from itertools import accumulate, pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.bias import Bias
from kinformer.core.checks import check_optional_part, check_part, check_probability, check_scale
from kinformer.core.choice import run_checkpointed
from kinformer.core.heads import Keys, Queries
from kinformer.core.key_value_mechanism import KeyValueMechanism, joined_wants
from kinformer.core.layer import Context, Out, PerPair
from kinformer.core.pair_map import PairMap
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.request import Request
from kinformer.core.score import Score
from kinformer.core.score_matrix import attention, mask, scores, softmax, weigh_values
from kinformer.core.scores.product import Product

PAIRS = 1 << 20  # maximum number of scores in a block, over all rows and heads


class Explicit(KeyValueMechanism):
    """Softmax attention that computes the whole matrix of scores and can change scores and weights.

    y = after(softmax(before(score + bias))) v

    Choose Softmax if nothing needs the matrix. A pair that the pattern does not allow has weight 0, even after `before`
    and `after`. Memory is T x S per head if scores are passed to the block above or taken from the block below.
    Otherwise long rows are computed in blocks of queries if `before` and `after` treat each query separately; the
    backward pass computes the blocks again. RealFormer is `Explicit(pattern, score=ResidualScores(), up=True)`. For
    talking heads see `nn/mechanisms/talking_heads.py`.

    pattern: keys that each query may read.
    bias: bias that changes the scores, or none.
    score: computes the scores; the dot product of query and key by default.
    before: map of all scores before the softmax.
    after: map of all weights after the softmax. The result is not a softmax, so the output has no lse (log-sum-exp) and
        cannot be merged with other outputs.
    up: True passes the scores to the same sublayer of the next block (`Out.up`), after `before` and without the mask.
        In decoding, they cover cached and new keys in the order of the cache, so layers that share scores must use the
        same pattern.
    scale: factor of the dot product; 1/sqrt(head_dim) by default.
    dropout: fraction of attention weights that training drops, after `after`.

    Errors: NoState (no decoding state exists) from `start` if the pattern allows later keys; ValueError if the heads of
    weights are not a multiple of the heads of values.

    Source: prior from lower modules in Lin et al., 2021, arXiv:2106.04554; He et al., 2020, arXiv:2012.11747.
    """

    def __init__(
        self,
        pattern: Pattern,
        bias: Bias | None = None,
        *,
        score: Score | None = None,
        before: PairMap | None = None,
        after: PairMap | None = None,
        up: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.pattern, self.dropout = check_pattern("pattern", pattern), check_probability("dropout", dropout)
        self.bias = check_optional_part("bias", bias, Bias, "a bias, such as ALiBi(heads)")
        self.score = check_part("score", score, Score, "a score, such as ResidualScores()") if score else Product()
        self.before = check_optional_part("before", before, PairMap, "a PairMap, such as MixHeads(heads)")
        self.after = check_optional_part("after", after, PairMap, "a PairMap, such as MixHeads(heads)")
        self.up, self.scale, self.lse = up, check_scale(scale), after is None
        self.wants, self.sends = joined_wants(bias, score), frozenset({"scores"} if up else ())

    def read(self, request: Request) -> Out[AttentionOutput]:
        sizes = self._blocks(request)
        if len(sizes) == 1:
            read, x = self._read_with_scores(request)
            up = {"scores": PerPair(x, request.queries.pos, request.keys.pos)} if self.up else {}
            return Out(read, up=up)
        recompute = torch.is_grad_enabled()
        reads = [
            run_checkpointed(self._block, request, lo, hi) if recompute else self._block(request, lo, hi)
            for lo, hi in pairwise(accumulate(sizes, initial=0))
        ]
        y, lse = zip(*reads, strict=True)
        return Out(AttentionOutput(torch.cat(y, 2), torch.cat(lse, 2) if self.lse else None))

    def _blocks(self, request: Request) -> list[int]:
        """Return the sizes of the blocks of queries; one block if scores are sent up or may depend on other queries."""
        length = request.queries.q.shape[2]
        alone = all(part is None or part.by_query for part in (self.before, self.after))
        size = max(16, length * PAIRS // max(request.pairs, 1))
        if self.up or not alone or type(request.score) is not Product or length <= size:
            return [length]
        return [min(size, length - begin) for begin in range(0, length, size)]

    def _block(self, request: Request, lo: int, hi: int) -> AttentionOutput:
        return self._read_with_scores(request.piece(slice(lo, hi), None))[0]

    def _read_with_scores(self, request: Request) -> tuple[AttentionOutput, Float[Tensor, "B M T S"]]:
        """Return the read and the unmasked scores."""
        x = scores(request)
        if self.before is not None:
            x = self.before.bind(request)(x, mask(request))
        where = mask(request, x.shape[1])
        logits = x if where is None else x.masked_fill(~where, -torch.inf)
        weights, lse = softmax(logits) if self.lse else (attention(logits), None)
        if self.after is not None:
            read = (logits > -torch.inf).any(1, keepdim=True)  # `after` may add a constant; masked keys stay unread
            weights = self.after(weights, read).masked_fill(~read, 0.0)
        _check_value_heads(weights.shape[1], request.keys.v.shape[1])
        y = weigh_values(F.dropout(weights, request.dropout), request)
        return AttentionOutput(y, lse), x

    def received_attention(
        self, queries: Queries, keys: Keys, read: AttentionOutput, ctx: Context
    ) -> Float[Tensor, "B S"]:
        if self.before is not None or self.after is not None:
            raise ValueError("an Explicit with `before` or `after` cannot report how much attention each key received")
        return super().received_attention(queries, keys, read, ctx)


def _check_value_heads(heads: int, value_heads: int) -> None:
    if heads % value_heads:
        raise ValueError(
            f"{heads} heads of weights cannot share {value_heads} value heads evenly. Let `after` return a "
            "multiple of the layer's key_heads"
        )


def _plain() -> Explicit:
    return Explicit(kf.Causal())


def _realformer() -> Explicit:
    return Explicit(kf.Causal() & kf.Band(3), score=kf.ResidualScores(), up=True)


def _weighed() -> Explicit:
    return Explicit(
        kf.Heads(kf.Causal() & kf.Band(2), kf.Causal()), score=kf.ResidualScores(0.7, 0.3), up=True, scale=0.5
    )


def _encoder() -> Explicit:
    return Explicit(kf.Full(), up=True)


EXAMPLES = (_plain, _realformer, _weighed, _encoder)
