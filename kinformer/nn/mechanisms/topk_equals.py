"""TopKEquals: each query reads the keys that fit it at least as well as its k-th best, found before they are read."""

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.choice import choice
from kinformer.core.example import Example
from kinformer.core.layer import Out
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.score_matrix import full_mask, scores
from kinformer.core.ties import Tolerance, score_tolerance
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.highest_scores import position_bounds
from kinformer.nn.mechanisms.read_columns import read_columns
from kinformer.nn.mechanisms.topk import APART, BestOfRow

LONG = 512  # keys of a row from which on the best are gathered
STEP = 256  # queries, and keys, that are looked at together
WIDE = 4  # times k: where equals are more, gathering them costs more than scores of all


class TopKEquals(Explicit):
    """Softmax attention over S_i = the keys j whose q_i.k_j is at least the k-th highest of query i.

    y_i = sum over j in S_i of softmax(scale q_i.k_j) v_j

    The paper's form, `Explicit(pattern, before=BestOfRow(k))`, which is what short rows, steps of decoding and compiled
    calls are. Rows of 512 keys and more are scored a block at a time without gradients, and what a query reads is
    gathered, equals of the k-th among it: gradients flow through a few keys in place of all. Where very many are
    equal, as in a row of one token, it is read as a short one.

    pattern: which keys may be read at all, such as `Causal()`.
    k: how many of them a query reads, but for equals.
    scale: the factor of the product, 1/sqrt(head_dim) unless given.
    dropout: the share of attention weights that training drops.

    Errors: NoState from `start` where the pattern reads ahead. Source: Zhao et al., 2019, arXiv:1912.11637, section 2.
    """

    def __init__(self, pattern: Pattern, k: int = 8, *, scale: float | None = None, dropout: float = 0.0):
        super().__init__(pattern, before=BestOfRow(k), scale=scale, dropout=dropout)
        self.k = k

    def read(self, request: Request) -> Out[AttentionOutput]:
        short = request.keys.k.shape[2] < LONG or request.queries.q.shape[2] < STEP
        if short or not request.run or torch.compiler.is_compiling():
            return super().read(request)
        columns = choice(lambda: columns_with_ties(request, self.k))
        return Out(read_columns(request, columns)) if columns.shape[3] else super().read(request)


class _Best(NamedTuple):
    """The scores and the columns of what a block of queries reads; a score of -inf is no key."""

    score: Float[Tensor, "B H T R"]
    column: Int[Tensor, "B H T R"]


@torch.no_grad()
def columns_with_ties(request: Request, k: int) -> Int[Tensor, "B H T R"]:
    """The columns of the k best keys of each query and of all that equal the k-th, -1 where there are fewer.

    None at all, R = 0, where equals are so many that they are not worth a list.
    """
    count, slots = request.queries.q.shape[2], request.keys.k.shape[2]
    (q_lo, q_hi), (k_lo, k_hi) = (
        position_bounds(request.queries.pos.split(STEP, 2)),
        position_bounds(request.keys.pos.split(STEP, 2)),
    )
    readable, all_readable = request.pattern.cover(q_lo[:, None], q_hi[:, None], k_lo, k_hi)
    real = request.full
    columns = []
    for begin, has_readable, whole in zip(
        range(0, count, STEP), readable.tolist(), (all_readable & real).tolist(), strict=True
    ):
        key_blocks = [n for n, is_readable in enumerate(has_readable) if is_readable] or [0]
        lo, hi = key_blocks[0], key_blocks[-1] + 1
        rows = slice(begin, begin + STEP)
        piece = request.piece(rows, slice(lo * STEP, min(hi * STEP, slots)))
        x = scores(piece)
        for n in range(lo, hi):
            if not whole[n]:
                block_scores = x[..., (n - lo) * STEP : (n - lo + 1) * STEP]
                block_scores.masked_fill_(
                    ~full_mask(request.piece(rows, slice(n * STEP, min((n + 1) * STEP, slots)))), -torch.inf
                )
        best = _best(x, k, partial(score_tolerance, piece))
        if best is None:
            return request.queries.pos.new_empty(*x.shape[:2], count, 0)
        columns.append(torch.where(best.score == -torch.inf, -1, best.column + lo * STEP))
    max_columns = max(of_rows.shape[3] for of_rows in columns)
    return torch.cat([F.pad(of_rows, (0, max_columns - of_rows.shape[3]), value=-1) for of_rows in columns], 2)


def _best(x: Float[Tensor, "B H T S"], k: int, tolerance: Tolerance) -> _Best | None:
    """The k best of each row and all within the tolerance of the k-th; None if there are very many of these."""
    score, column = x.topk(min(k + 1, x.shape[3]))
    if x.shape[3] <= k:
        return _Best(score, column)
    last = score[..., k - 1 : k]
    least = last - tolerance(column[..., k - 1 : k])
    if not bool(((score[..., k:] >= least) & (last > -torch.inf)).any()):
        return _Best(score[..., :k], column[..., :k])
    max_count = int(((x >= least) & (last > -torch.inf)).sum(-1).amax())
    if max_count > WIDE * k:
        return None
    score, column = x.topk(max(max_count, k))
    return _Best(score.masked_fill(score < least, -torch.inf), column)


EXAMPLES = (
    Example(lambda: TopKEquals(Causal(), 3), breaks=APART),
    Example(lambda: TopKEquals(Full(), 2), breaks=APART),
)
