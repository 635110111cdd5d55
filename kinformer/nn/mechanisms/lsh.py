"""LSH: a query reads the keys that random rotations put into its own buckets, whole buckets of them."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.autocast import precise
from kinformer.core.checks import a_pattern, a_scale, at_least
from kinformer.core.choice import choice
from kinformer.core.heads import Keys, Queries, Side, Sizes
from kinformer.core.keyed import Keyed
from kinformer.core.layer import Context, Out
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.read import Read
from kinformer.core.request import Request
from kinformer.nn.mechanisms.groups import (
    Grouped,
    by_key_head,
    made_for_keys,
    made_for_layer,
    made_for_queries,
    no_additions,
)
from kinformer.nn.mechanisms.rotations import Rotations
from kinformer.nn.mechanisms.sorted_groups import read_groups


class Hashed(Keyed):
    """What both forms of LSH attention share: hashes, and buckets that are cached with the keys."""

    def __init__(
        self, heads: int, k_dim: int, buckets: int, rounds: int, *, eval_rounds: int | None, redraw: int | None,
        pattern: Pattern | None, scale: float | None, seed: int
    ):
        super().__init__()
        self.heads, self.k_dim = at_least("heads", heads, 1), at_least("k_dim", k_dim, 1)
        self.hash = Rotations(heads, k_dim, buckets, rounds, eval_rounds=eval_rounds, redraw=redraw, seed=seed)
        self.buckets = buckets
        self.pattern = Causal() if pattern is None else a_pattern("pattern", pattern)
        self.scale = a_scale(scale)

    @property
    def rounds(self) -> int:
        """How often is hashed in training. It may be set, and is then no part of a checkpoint."""
        return self.hash.rounds

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        self.hash.rounds = rounds

    @property
    def eval_rounds(self) -> int:
        """How often is hashed in eval mode; it may be set likewise."""
        return self.hash.eval_rounds

    @eval_rounds.setter
    def eval_rounds(self, rounds: int | None) -> None:
        self.hash.eval_rounds = rounds

    def sides(self, sizes: Sizes) -> Mapping[str, Side]:
        made_for_layer(self, sizes, self.heads, self.k_dim)  # asked when a layer is built, and so refused there
        return super().sides(sizes)

    def ready(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        no_additions(self, ctx, "buckets")
        if ctx.remember:
            return queries, keys
        made_for_queries(self, queries.q, self.heads, self.k_dim)
        return queries._replace(tags={"bucket": self._buckets(queries.q)}), keys

    def tags(self, keys: Keys) -> Mapping[str, Int[Tensor, "B G S r"]]:
        made_for_keys(self, keys.k, self.heads, self.k_dim)
        return {"bucket": by_key_head(self._buckets(keys.k), keys.k.shape[1])}

    def _buckets(self, x: Float[Tensor, "B G T K"]) -> Int[Tensor, "B H T R"]:
        with torch.no_grad():
            return choice(lambda: self.hash(x))


class LSH(Hashed):
    """Softmax attention over S_i = the keys that share a bucket with query i in at least one of several rounds.

    Choose it where few keys, found by content, carry the attention; with `SharedQK(d, heads)`, as in the paper. Buckets
    are read whole, and a hash sees nothing but its own vector: cuts, padding and what comes later change nothing
    (`PublishedLSH` is the paper's sorted and chunked form).

    y_i = sum over j in S_i of softmax(scale q_i.k_j) v_j: one softmax over the union of the rounds, each key once. It
    equals the paper's merge of rounds with log N_ij taken off. Token i reads itself only where S_i holds nothing else.
    Long rows are read sorted by bucket, at the cost of the buckets; compiled ones and short ones densely.

    heads: heads of the queries; each hashes for itself.
    k_dim: the width of a query and a key.
    buckets: buckets of a round, an even number.
    rounds: how often is hashed in training; more rounds read more keys.
    eval_rounds: how often in eval mode, `rounds` unless given; the paper trains with 4 and evaluates with 1 to 8.
    redraw: None keeps the rotations for all training. A number draws them anew after so many steps; 1 is nearest to the
        authors' code, which draws for each batch, also in evaluation: here a cache and a checkpoint hash alike.
    pattern: which keys may be read at all, `Causal()` unless given.
    scale: the factor of the product, the paper's 1/sqrt(k_dim) unless given; in the authors' code, whose keys have
        length 1 too, it is 1.
    seed: draws the rotations. A vector near a border may change its bucket with its precision.

    Errors: NoState from `start` where the pattern reads ahead; ValueError for a layer of other heads, and with
    `ctx.also`, since keys of other buckets cannot be added. Source: Kitaev et al., 2020, arXiv:2001.04451, section 2.
    """

    merges = True

    def __init__(
        self, heads: int, k_dim: int, buckets: int, rounds: int = 1, *, eval_rounds: int | None = None,
        redraw: int | None = None, pattern: Pattern | None = None, scale: float | None = None, seed: int = 0
    ):
        super().__init__(
            heads, k_dim, buckets, rounds, eval_rounds=eval_rounds, redraw=redraw, pattern=pattern, scale=scale,
            seed=seed
        )
        self.score = Grouped("bucket", lonely=True)

    def read(self, request: Request) -> Out[Read]:
        dtype = request.queries.q.dtype
        found = read_groups(widened(request), self.buckets)
        return Out(found._replace(y=found.y.to(dtype)))


def widened(request: Request) -> Request:
    """A request in float32 at least: a score of -1e5 is none in float16."""
    queries, keys = request.queries, request.keys
    return request.but(
        queries=queries._replace(q=precise(queries.q)), keys=keys._replace(k=precise(keys.k), v=precise(keys.v))
    )


EXAMPLES = (
    lambda: LSH(2, 8, 4, 2),
    lambda: LSH(2, 8, 2, eval_rounds=3, redraw=1, seed=1),
    lambda: LSH(2, 8, 6, 3, pattern=Full(), scale=1.0),
)
