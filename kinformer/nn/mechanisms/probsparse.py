"""ProbSparse: attention only for the queries that differ most from uniform attention (Informer)."""

import math
from collections.abc import Mapping
from typing import Literal, NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.attend import read
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import at_least_float32
from kinformer.core.checks import check_at_least, check_flag, check_option, check_probability, check_scale, check_unused
from kinformer.core.choice import choice
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec, number_of_groups
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.score_matrix import scores
from kinformer.core.ties import compare_to_last, tolerance_of
from kinformer.core.token_positions import check_in_order
from kinformer.nn.mechanisms.repeatable_chance import Chance

Measure = Literal["sampled", "max-mean", "log-sum-exp"]
Divisor = Literal["sample", "row"]
Rest = Literal["mean", "sum"]
GATHERED = 1 << 16  # maximum number of keys gathered at once
HELD = 1 << 20  # maximum number of products held at once if all keys are multiplied
FEW = 16  # minimum number of queries per row and head in a block for which multiplying all keys is faster
ALL = 32  # maximum ratio of keys to draws for which multiplying all keys is faster than gathering


class ProbSparse(KeyValueMechanism):
    """Softmax attention for the u = factor ceil(ln L) queries with the largest M; others get mean(v).

    M(q, K) = max_j s_j - mean_j s_j,  s_j = scale q.k_j

    Choose it for long encoders, such as of time series, in which few queries look for something. The cost per row and
    head is L ln L. M is near 0 if a query weighs all keys equally, and its output is then near the mean of the values.
    M is estimated for each query and head from U = factor ceil(ln S) keys, sampled with replacement, anew in each step.
    The numbers u and U depend on the number of real tokens in a row, and keys are sampled by rank among these. Padding
    and the other rows of the batch therefore change nothing. There is no lse (log-sum-exp of the scores), because with
    a part of the keys it would choose other queries, so outputs cannot be merged.

    With causal=True, a chosen query reads no later keys, and another query gets the mean of the values up to its own.
    The choice of queries still uses all queries and keys of the row, as in the paper and its code. Later tokens
    therefore change earlier outputs. The mechanism has no decoding state and cannot train a language model.

    causal: True hides later keys from the chosen queries.
    factor: factor c of the paper; 5 in its experiments.
    measure: "sampled" estimates M from sampled keys. The other two use all keys, at the cost of all dot products. With
        "max-mean" it is M itself. With "log-sum-exp" it is equation 2, ln sum_j exp s_j - mean_j s_j, which is up to ln
        S larger.
    divisor: divisor of the sampled sum. With "sample" it is the number of samples, as in algorithm 1 of the paper. With
        "row" it is the number of keys, as in the authors' code. The mean is then small, and M is nearly the maximum.
    rest: output of causal queries that are not chosen: "mean" of the values up to their own, or "sum" as in the
        authors' code, which grows along the row.
    scale: factor of the dot product; 1/sqrt(k_dim) by default.
    dropout: fraction of attention weights that training drops.
    seed: seed of the sampled keys. Override `ranks` to sample them differently.

    Errors: NoState (no decoding state exists) from `start`; ValueError with `ctx.only` and `ctx.also`, and for
    positions by head. If causal, ValueError also for keys of another sequence and without `ctx.run`.

    Source: Zhou et al., 2020, arXiv:2012.07436, section 3.1.

    Differences: the authors' code samples the same keys for all heads and rows.
    """

    received_attention = Mechanism.received_attention  # most queries have no attention weights

    def __init__(
        self,
        *,
        causal: bool = False,
        factor: int = 5,
        measure: Measure = "sampled",
        divisor: Divisor = "sample",
        rest: Rest = "mean",
        scale: float | None = None,
        dropout: float = 0.0,
        seed: int = 0,
    ):
        super().__init__()
        self.pattern = Causal() if check_flag("causal", causal) else Full()
        self.factor, self.measure = check_at_least("factor", factor, 1), check_option("measure", measure, Measure)
        self.divisor, self.rest = check_option("divisor", divisor, Divisor), check_option("rest", rest, Rest)
        if measure != "sampled":
            check_unused(f"measure={measure!r}", divisor=(divisor, "sample"))
        if not causal:
            check_unused("causal=False", rest=(rest, "mean"))
        self.scale, self.dropout, self.lse = check_scale(scale), check_probability("dropout", dropout), False
        self.chance = Chance(seed) if measure == "sampled" else None

    @property
    def causal(self) -> bool:
        """True if chosen queries read no later keys."""
        return isinstance(self.pattern, Causal)

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        if sizes.cross and self.causal:
            raise ValueError(
                "ProbSparse(causal=True) cannot be used in cross-attention, because it reads the keys before each "
                "query. Pass causal=False"
            )
        return {}

    def start(self, spec: StateSpec, sizes: HeadSizes) -> NoReturn:
        raise NoState(
            "ProbSparse chooses queries among the whole row and has no state. Use Softmax(Causal()), or "
            "generate(..., recompute=True)"
        )

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        if keys is None:
            raise ValueError(
                "ProbSparse does not cache a source. Pass Context(source=..., source_pos=...) in every call"
            )
        # also for a source, because queries are chosen among the whole row
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                "ctx.only and ctx.also limit single pairs, but ProbSparse chooses among all queries of a row. "
                "Leave out both"
            )
        if max(queries.pos.shape[1], keys.pos.shape[1]) > 1:
            raise ValueError(
                "ProbSparse got positions by head. Pass queries and keys with positions that all heads share"
            )
        if self.causal:
            check_in_order(ctx, "ProbSparse(causal=True)")
            if not keys.own:
                raise ValueError("ProbSparse(causal=True) got keys of another sequence. Pass causal=False")
        return queries, keys

    def read(self, request: Request) -> Out[AttentionOutput]:
        queries, chosen = request.queries, choice(lambda: self.choose_queries(request))  # [B H R]
        at, real = chosen.clamp_min(0), chosen >= 0
        q = queries.q.take_along_dim(at[..., None], 2)
        pos = queries.pos.expand(-1, at.shape[1], -1).gather(2, at).masked_fill(~real, -1)
        asking = Queries(q, pos, head=queries.head)
        y = read(request.regroup(queries=asking)).y
        rest = self.lazy_values(request).to(y.dtype)
        last = rest.shape[2]  # one extra column for places without a query
        column = torch.where(real, chosen, last)[..., None].expand_as(y)
        output = torch.cat([rest, torch.zeros_like(rest[:, :, :1])], 2).scatter(2, column, y)[:, :, :last]
        return Out(AttentionOutput(output.masked_fill((queries.pos < 0)[..., None], 0.0), None))

    def choose_queries(self, request: Request) -> Int[Tensor, "B H R"]:
        """Return the columns (places in the row) of the queries with the largest M; the first wins ties.

        Entries are -1 if a row has fewer queries.
        """
        pos = request.queries.pos
        scores = self.measure_sparsity(request).masked_fill(pos < 0, -torch.inf)
        share = self._share(pos)[..., None]  # [B 1 1]
        if not pos.shape[2]:
            return scores.long()
        value, column = scores.sort(dim=-1, descending=True)
        turn = (share - 1).clamp_min(0).expand(*scores.shape[:2], 1)
        last, near = value.gather(2, turn), _tolerance(request).gather(2, column.gather(2, turn))
        order = compare_to_last(scores, last, near).argsort(dim=-1, descending=True, stable=True)[
            ..., : self._max_queries(pos.shape[2])
        ]
        mine = torch.arange(order.shape[-1], device=pos.device) < share
        return order.masked_fill(~mine, -1)

    def measure_sparsity(self, request: Request) -> Float[Tensor, "B H T"]:
        """Return the measure M of each query, in float32 or wider; the largest M decide the choice."""
        if not request.keys.k.shape[2]:
            return at_least_float32(torch.zeros_like(request.queries.q[..., 0]))
        with torch.no_grad():
            if self.measure == "sampled":
                return self._by_sample(request)
            is_key, logits = request.keys.pos[:, :, None] >= 0, at_least_float32(scores(request))
            mean = logits.where(is_key, 0.0).sum(-1) / is_key.sum(-1).clamp_min(1)
            logits = logits.masked_fill(~is_key, -torch.inf)
            return (logits.amax(-1) if self.measure == "max-mean" else logits.logsumexp(-1)) - mean

    def ranks(
        self, heads: int, rank: Int[Tensor, "B 1 T"], keys: Int[Tensor, "B 1"], draws: int
    ) -> Int[Tensor, "B #H T U"]:
        """Sample the keys that estimate each query's M, as ranks among the row's real keys, [B, #H, T, U].

        heads: number of query heads.
        rank: rank of each query among the real tokens, [B, 1, T].
        keys: number of real keys of each row, [B, 1].
        draws: number U of samples.
        """
        assert self.chance is not None
        head, draw = (torch.arange(n, device=rank.device) for n in (heads, draws))
        ranks = self.chance(head[:, None, None], rank[..., None], draw) * keys[..., None, None]
        return ranks.long().minimum(keys[..., None, None] - 1).clamp_min(0)

    def lazy_values(self, request: Request) -> Float[Tensor, "B H T V"]:
        """Return the outputs of queries that are not chosen: means or sums of values, as `rest` says."""
        heads, length = request.queries.q.shape[1:3]
        real = at_least_float32((request.keys.pos >= 0).to(request.keys.v.dtype))[..., None]
        total, count = at_least_float32(request.keys.v) * real, real
        if self.causal:
            total, count = total.cumsum(2), count.cumsum(2)
        else:
            total, count = (x.sum(2, keepdim=True).expand(-1, -1, length, -1) for x in (total, count))
        if self.rest == "mean":
            total = total / count.clamp_min(1)
        return total.repeat_interleave(number_of_groups(heads, total.shape[1], "value heads"), 1)

    def _by_sample(self, request: Request) -> Float[Tensor, "B H T"]:
        q, k, (q_pos, k_pos) = request.queries.q, request.keys.k, (request.queries.pos, request.keys.pos)
        heads, is_key = q.shape[1], k_pos >= 0
        places = (~is_key).to(torch.uint8).argsort(dim=-1, stable=True)  # [B 1 S], columns of real keys first
        count, sample_size = is_key.sum(-1), self._share(k_pos)  # [B 1]
        rank = (q_pos >= 0).cumsum(-1) - 1
        ranks = self.ranks(heads, rank, count, self._max_queries(k_pos.shape[2]))
        used = torch.arange(ranks.shape[-1], device=q.device) < sample_size[..., None, None]  # [B 1 1 U]
        rows, length = max(1, len(q) * heads), max(1, k.shape[2])
        every = HELD // (rows * length) >= FEW and length <= ALL * ranks.shape[-1]
        size = max(1, (HELD // length if every else GATHERED // max(1, ranks.shape[-1])) // rows)
        measures = []
        for mine, at in zip(q.split(size, 2), ranks.split(size, 2), strict=True):
            column = places[:, 0].gather(1, at.flatten(1)).view_as(at).expand(-1, heads, -1, -1)
            measures.append(
                self._max_mean((_of_all if every else _gathered_products)(mine, k, column), used, count, sample_size)
            )
        return torch.cat(measures, 2) * request.scale

    def _max_mean(
        self,
        product: Float[Tensor, "B H t U"],
        used: Bool[Tensor, "B 1 1 U"],
        count: Int[Tensor, "B 1"],
        sample_size: Int[Tensor, "B 1"],
    ) -> Float[Tensor, "B H t"]:
        product = at_least_float32(product)
        over = sample_size if self.divisor == "sample" else count
        mean = product.where(used, 0.0).sum(-1) / over[..., None].clamp_min(1)
        return product.masked_fill(~used, -torch.inf).amax(-1) - mean

    def _share(self, pos: Int[Tensor, "B 1 N"]) -> Int[Tensor, "B 1"]:
        """Return factor ceil(ln n) for the n real tokens of each row, at least 1 and at most n."""
        count = (pos >= 0).sum(-1)
        share = self.factor * count.clamp_min(1).double().log().ceil().long()
        return share.clamp_min(1).minimum(count)

    def _max_queries(self, length: int) -> int:
        """Return the maximum of `_share` for rows of this length."""
        return min(length, max(1, self.factor * math.ceil(math.log(max(length, 1)))))


@torch.no_grad()
def _tolerance(request: Request) -> Float[Tensor, "B H T"]:
    """Return the rounding tolerance of M for each query. M is a mean over keys, so the longest key decides."""
    q, k = at_least_float32(request.queries.q), at_least_float32(request.keys.k)
    size = torch.where(request.keys.pos >= 0, k.norm(dim=-1), 0.0)  # [B G S]
    longest = size.amax(-1, keepdim=True) if size.shape[-1] else size.sum(-1, keepdim=True)
    by_head = longest.repeat_interleave(number_of_groups(q.shape[1], k.shape[1]), 1)
    return tolerance_of(q.norm(dim=-1) * by_head * abs(request.scale))


def _of_all(
    q: Float[Tensor, "B H t K"], k: Float[Tensor, "B G S K"], column: Int[Tensor, "B H t U"]
) -> Float[Tensor, "B H t U"]:
    """Multiply with all keys, and return the products with the keys at `column`."""
    heads = number_of_groups(q.shape[1], k.shape[1])
    asking = q.unflatten(1, (-1, heads)).flatten(2, 3)  # [B G r*t K]
    return (asking @ k.mT).view(*q.shape[:3], k.shape[2]).gather(3, column)


def _gathered_products(
    q: Float[Tensor, "B H t K"], k: Float[Tensor, "B G S K"], column: Int[Tensor, "B H t U"]
) -> Float[Tensor, "B H t U"]:
    """Return the same products, computed with gathered keys."""
    (batch, heads), (groups, size, width) = q.shape[:2], k.shape[1:]
    group = torch.arange(heads, device=q.device) // number_of_groups(heads, groups)
    row = torch.arange(batch, device=q.device)[:, None] * groups + group  # [B H]
    of_queries = k.reshape(-1, width).index_select(0, (column + (row * size)[..., None, None]).flatten())
    return (of_queries.view(*column.shape, width) @ q[..., None])[..., 0]


_APART = {"merge": "the queries chosen by some of the keys differ from the queries chosen by all keys"}
_AHEAD = {
    **_APART,
    "peek": "queries are chosen among the whole row, so a later token can take the place of an earlier one",
}

EXAMPLES = (
    Example(lambda: ProbSparse(factor=1), _APART),
    Example(lambda: ProbSparse(causal=True, factor=1, divisor="row", rest="sum"), _AHEAD),
    Example(lambda: ProbSparse(causal=True, factor=1, measure="max-mean"), _AHEAD),
    Example(lambda: ProbSparse(factor=1, measure="log-sum-exp"), _APART),
)
