"""PublishedSAC: sparse adaptive connection as published, with pairs chosen from the whole row."""

from collections.abc import Mapping
from typing import NoReturn

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import at_least_float32
from kinformer.core.checks import check_scale
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context, Out, PerPair, Want
from kinformer.core.loss import CHOICES
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.score_matrix import mask, scores, softmax, weigh_values
from kinformer.nn.mechanisms.edge_predictor import By, EdgeChooser
from kinformer.nn.mechanisms.key_groups import own_pairs


class EdgePairAttention(KeyValueMechanism):
    """Base class of published SAC layers: dense attention to chosen keys and to each query's own token.

    SAC (sparse adaptive connection) chooses pairs of query and key. A subclass supplies the chosen pairs.

    pattern: keys that a query may read at all; `Full()` if None.
    scale: factor of the dot product; 1/sqrt(k_dim) if None.
    """

    received_attention = Mechanism.received_attention  # no pattern describes the keys that are read

    def __init__(self, pattern: Pattern | None, scale: float | None):
        super().__init__()
        self.pattern, self.scale = Full() if pattern is None else check_pattern("pattern", pattern), check_scale(scale)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> NoReturn:
        raise NoState(
            f"{type(self).__name__} has no state: its pairs are chosen from the whole row, later tokens included. Use "
            "SAC to decode"
        )

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        name = type(self).__name__
        if keys is None or not keys.own:
            raise ValueError(
                f"{name} reads chosen pairs of one sequence, but got no keys or keys of another sequence. Use Softmax "
                "for cross-attention"
            )
        if ctx.also is not None or ctx.only is not None:
            raise ValueError(
                f"{name} does not support ctx.only or ctx.also: its pairs are chosen from the whole row. Leave out both"
            )
        return queries, keys

    def read_pairs(self, request: Request, chosen: Bool[Tensor, "B P T T"]) -> AttentionOutput:
        """Return the attention to the keys of the chosen pairs and to the query's own token.

        request: attention call with its queries and keys.
        chosen: mask of the chosen pairs, [B, P, T, T].
        """
        heads = request.queries.q.shape[1]
        where = chosen.repeat_interleave(heads // chosen.shape[1], 1) | own_pairs(request)
        may = mask(request, heads)
        logits = scores(request).masked_fill(~(where if may is None else where & may), -torch.inf)
        weights, lse = softmax(logits)
        return AttentionOutput(weigh_values(F.dropout(weights, request.dropout), request), lse)


class PublishedSAC(EdgeChooser, EdgePairAttention):
    """Softmax attention over the query's own token and over pairs that an LSTM chooses from the row.

    A pair is a query and a key. Choose it for encoders, to see which connections a task needs; each token may get many
    or none. The network works as in `SAC`, with two kinds of steps. Odd steps choose a query from all tokens, p(i) =
    softmax_i(h W (x_i + D)). Even steps choose a key for it. D is a vector of the distance to the token chosen last.
    This gives edges * length pairs.

    The network sees the whole row, so there is no decoding state. All pairs are computed, and pairs that were not
    chosen are masked. The auxiliary output "log_p" of a token is the log-probability of its choices as a query and of
    its keys; a `ReinforcedLM` trains the network with it.

    edges: number of pairs per token, alpha in the paper; a pair that is chosen twice counts once.
    width, clip, by, scale, seed: as in `SAC`.
    pattern: keys that a query may read at all; `Full()` by default.
    send: True passes the pairs to layers above with `GivenPairs`; only possible with by="layer".

    Errors: NoState (no decoding state exists) from `start`; ValueError with `ctx.only` and `ctx.also`, and for keys of
    another sequence.

    Source: Li et al., 2020, arXiv:2003.09833, section 3.

    Differences: the assignment of steps to tokens is a choice of this library.
    """

    def __init__(
        self,
        edges: int,
        width: int,
        *,
        clip: int = 16,
        by: By = "layer",
        pattern: Pattern | None = None,
        send: bool = False,
        scale: float | None = None,
        seed: int = 0,
    ):
        super().__init__(pattern, scale)
        self.choose_by(edges, width, clip, by, seed)
        self.sends = self.sent_names("pairs", send)

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        if sizes.cross:
            raise ValueError(
                "PublishedSAC cannot be used in cross-attention: it chooses pairs of one sequence. Use Softmax"
            )
        return super().key_extras(sizes)

    def read(self, request: Request) -> Out[AttentionOutput]:
        chosen, log_p = self.choose(request)
        up = {}
        if self.sends:
            shut = torch.zeros_like(chosen, dtype=request.queries.q.dtype).masked_fill(~chosen, -torch.inf)
            up = {"pairs": PerPair(shut, request.queries.pos, request.keys.pos)}
        return Out(self.read_pairs(request, chosen), aux={CHOICES: log_p}, up=up)

    def choose(self, request: Request) -> tuple[Bool[Tensor, "B P T T"], Float[Tensor, "B T"]]:
        """Return the chosen pairs and the log-probabilities of the choices of each token.

        The log-probability of a token covers its choices as a query and the choices of its keys.
        """
        nodes = self.nodes(request)
        batch, walkers, length, _ = nodes.shape
        pos, walk = request.keys.pos.expand(-1, walkers, -1), self.predictor.begin(nodes)
        real, current = pos >= 0, pos.new_zeros(batch, walkers, 1)
        tokens = real.sum(-1, keepdim=True)
        chosen = torch.zeros(batch, walkers, length * length, dtype=torch.bool, device=pos.device)
        log_p = at_least_float32(nodes.new_zeros(batch, walkers, length))
        for n in range(self.edges * length):
            goes_on = n < self.edges * tokens  # [B P 1]
            turn = torch.full_like(current, 2 * n)
            noise = self.noise(nodes, turn, pos, real)
            query, worth, after = self.predictor.choose(walk, nodes, real, (current - pos).abs(), noise)
            asks = pos.gather(2, query)
            may = real & self.pattern(*_rows_and_heads(batch, walkers, pos.device), asks, pos)
            noise = self.noise(nodes, turn + 1, pos, real)
            key, worth_of_key, after = self.predictor.choose(after, nodes, may, (asks - pos).abs(), noise)
            walk, current = after.where(goes_on, walk), torch.where(goes_on, pos.gather(2, key), current)
            worth_of_pair = torch.where(goes_on, (worth + worth_of_key)[..., None], 0.0).to(log_p.dtype)
            log_p = log_p.scatter_add(2, query, worth_of_pair)
            pair = (query * length + key).clamp_max(length * length - 1)
            chosen.scatter_(2, pair, chosen.gather(2, pair) | goes_on)
        return chosen.unflatten(2, (length, length)), log_p.sum(1)


class GivenPairs(EdgePairAttention):
    """Softmax attention over the query's own token and pairs from a lower `PublishedSAC(send=True)`.

    pattern, scale: as in `PublishedSAC`.

    Errors: ValueError if no lower layer has passed on pairs of this row; otherwise as in `PublishedSAC`.
    """

    wants = (Want("pairs"),)

    def __init__(self, *, pattern: Pattern | None = None, scale: float | None = None):
        super().__init__(pattern, scale)

    def read(self, request: Request) -> Out[AttentionOutput]:
        pairs, length = request.below.get("pairs"), request.keys.k.shape[2]
        if not isinstance(pairs, PerPair) or pairs.scores.shape[2:] != (length, length):
            raise ValueError(
                "GivenPairs got no pairs of this row from the layers below. Use PublishedSAC(send=True) in a "
                "layer below"
            )
        return Out(self.read_pairs(request, pairs.scores > -torch.inf))


def _rows_and_heads(batch: int, walkers: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return indices of rows and heads in the shape that a pattern expects."""
    rows, heads = torch.arange(batch, device=device), torch.arange(walkers, device=device)
    return rows[:, None, None], heads[:, None]


_APART = {"merge": "pairs are chosen among all keys, so two halves of the keys give other choices than the whole"}

EXAMPLES = (
    Example(lambda: PublishedSAC(1, 4, clip=3), _APART),
    Example(lambda: PublishedSAC(1, 3, by="head", seed=3), _APART),
)
