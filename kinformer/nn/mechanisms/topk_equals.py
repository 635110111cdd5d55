"""TopKEquals: attention to the k keys of highest score and to all keys that tie with the k-th."""

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

LONG = 512  # minimum number of keys in a row for which the best are gathered
STEP = 256  # number of queries and of keys in a block
WIDE = 4  # times k: gathering more ties than this costs more than dense scores


class TopKEquals(Explicit):
    """Softmax attention over S_i, the keys j with q_i.k_j at least as high as the k-th highest of query i.

    y_i = sum over j in S_i of softmax(scale q_i.k_j) v_j

    This is the paper's form, `Explicit(pattern, before=BestOfRow(k))`. Short rows, decoding steps and compiled calls
    are computed in that form. Rows of 512 keys or more are scored one block at a time without gradients. The keys that
    a query reads, ties with the k-th included, are then gathered, so gradients flow through few keys instead of all. If
    very many keys tie, as in a row of one repeated token, the row is computed like a short one.

    pattern: keys that a query may read at all, such as `Causal()`.
    k: number of keys that a query reads if no key ties with the k-th.
    scale: factor of the dot product; 1/sqrt(head_dim) by default.
    dropout: fraction of attention weights that training drops.

    Errors: NoState (no decoding state exists) from `start` if the pattern allows later keys.

    Source: Zhao et al., 2019, arXiv:1912.11637, section 2.
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
    """Scores and columns that a block of queries reads; a score of -inf is no key."""

    score: Float[Tensor, "B H T R"]
    column: Int[Tensor, "B H T R"]


@torch.no_grad()
def columns_with_ties(request: Request, k: int) -> Int[Tensor, "B H T R"]:
    """Return the columns of each query's k keys of highest score and of all keys that tie with the k-th.

    A column is the place of a key in the key tensor.

    Empty entries are -1. If so many keys tie that a list would save no work, the result is empty: R = 0.

    request: attention call with its queries and keys.
    k: number of keys for each query.
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
    """Return the k best of each row and all within the tolerance of the k-th; None if these are very many."""
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
