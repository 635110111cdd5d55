"""LSH: attention to the keys that random rotations put into the buckets of the query."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.checks import check_at_least, check_scale, check_whole_number
from kinformer.core.choice import choice
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layer import Context, Out
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.nn.maps.random_features import next_draw_seed
from kinformer.nn.mechanisms.key_groups import (
    SameGroupScore,
    by_key_head,
    check_made_for_keys,
    check_made_for_layer,
    check_made_for_queries,
    check_no_additions,
)
from kinformer.nn.mechanisms.sorted_groups import read_groups


class HashRotations(nn.Module, KeywordHints):
    """Angular hashes from random rotations: the bucket of x in a round is argmax([x R, -x R]).

    A hash depends only on its own vector. Each head and round has its own R. The rotations of the training rounds come
    from `seed` and are saved. Evaluation may use more rounds: their rotations also come from `seed`, do not depend on
    the number of rounds, and are not saved. Weights therefore load into any number of rounds.

    heads: number of heads; each has its own rotations.
    k_dim: width of the vectors.
    buckets: number of buckets in a round; even.
    rounds: number of hash rounds during training. `rounds` and `eval_rounds` may be set later.
    eval_rounds: number of hash rounds in eval mode; `rounds` by default.
    redraw: number of training steps after which `after_step` draws new training rotations from seed and step; None
        keeps them.
    seed: seed of the rotations.

    Errors: ValueError if `buckets` is odd.

    Source: Andoni et al., 2015, arXiv:1509.02897.
    """

    r: Float[Tensor, "H K R b"]
    extra_rotations: Float[Tensor, "H K E b"]
    steps: Int[Tensor, ""]

    def __init__(
        self,
        heads: int,
        k_dim: int,
        buckets: int,
        rounds: int,
        *,
        eval_rounds: int | None = None,
        redraw: int | None = None,
        seed: int = 0,
    ):
        super().__init__()
        if check_at_least("buckets", buckets, 2) % 2:
            raise ValueError(
                f"buckets={buckets} must be even, because each rotation makes one bucket and its negative makes another"
            )
        self.redraw, self.seed = (
            None if redraw is None else check_at_least("redraw", redraw, 1),
            check_whole_number("seed", seed),
        )
        self._rounds = check_at_least("rounds", rounds, 1)
        self._eval_rounds = None if eval_rounds is None else check_at_least("eval_rounds", eval_rounds, 1)
        self.register_buffer("r", draw_rotations((heads, k_dim, rounds, buckets // 2), seed))
        self.register_buffer("extra_rotations", self.r[:, :, :0], persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self._extend()

    @property
    def rounds(self) -> int:
        """Number of hash rounds during training."""
        return self._rounds

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        self._rounds = check_at_least("rounds", rounds, 1)
        self._extend()

    @property
    def eval_rounds(self) -> int:
        """Number of hash rounds in eval mode."""
        return self._rounds if self._eval_rounds is None else self._eval_rounds

    @eval_rounds.setter
    def eval_rounds(self, rounds: int | None) -> None:
        self._eval_rounds = None if rounds is None else check_at_least("eval_rounds", rounds, 1)
        self._extend()

    @property
    def active_rotations(self) -> Float[Tensor, "H K n b"]:
        """Rotations that the current mode, training or eval, uses."""
        rounds = self.rounds if self.training else self.eval_rounds
        every = self.r if rounds <= self.r.shape[2] else torch.cat([self.r, self.extra_rotations.to(self.r)], 2)
        return every[:, :, :rounds]

    def forward(self, x: Float[Tensor, "B G T K"]) -> Int[Tensor, "B H T n"]:
        """Return the bucket of each vector in each of n rounds.

        H / G query heads share each of the G heads of x, and each of them hashes it with its own rotations.
        """
        groups, wide = x.shape[1], at_least_float32(x)
        r = self.active_rotations.to(wide.dtype).unflatten(0, (groups, -1))  # [G H/G K n b]
        with disable_autocast(x):  # autocast would round the float32 vectors again
            turned = torch.einsum("bgtk,ghkrn->bghtrn", wide, r).flatten(1, 2)  # [B H T n b]
        # the argmax of [turned, -turned], without a copy of both
        (high, highest), (low, lowest) = turned.max(-1), turned.min(-1)
        return torch.where(high >= -low, highest, lowest + turned.shape[-1])

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Count a training step, and draw new rotations when they are due."""
        if (seed := next_draw_seed(self.steps, self.redraw, self.seed)) is not None:
            self.r.copy_(draw_rotations(self.r.shape, seed))

    def _extend(self) -> None:
        """Draw the rotations of rounds that are not saved."""
        heads, k_dim, saved, half = self.r.shape
        every = draw_rotations((heads, k_dim, max(self.rounds, self.eval_rounds, saved), half), self.seed)
        self.extra_rotations = every[:, :, saved:].to(self.r)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load weights with any number of rounds; draw missing rounds from the seed."""
        stored = state_dict.get(f"{prefix}r")
        if isinstance(stored, Tensor) and stored.dim() == 4 and stored.shape[2] != self.r.shape[2]:
            rest = draw_rotations(self.r.shape, self.seed).to(stored)
            state_dict[f"{prefix}r"] = torch.cat([stored, rest[:, :, stored.shape[2] :]], 2)[:, :, : self.r.shape[2]]
        super()._load_from_state_dict(state_dict, prefix, *args)


def draw_rotations(shape: tuple[int, ...], seed: int) -> Float[Tensor, "H K R b"]:
    """Draw rotations from normal numbers. The first rounds do not depend on the number of rounds.

    shape: number of heads, width, number of rounds and half the number of buckets.
    seed: seed of the random numbers.
    """
    heads, k_dim, rounds, half = shape
    draw = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randn(heads, k_dim, half, generator=draw) for _ in range(rounds)], 2)


class Hashed(KeyValueMechanism):
    """Base class of both forms of LSH attention: it hashes queries and keys, and caches keys' buckets.

    A subclass defines the attention within buckets.

    heads, k_dim, buckets, rounds, eval_rounds, redraw, pattern, scale, seed: as in `LSH`.
    """

    def __init__(
        self,
        heads: int,
        k_dim: int,
        buckets: int,
        rounds: int,
        *,
        eval_rounds: int | None,
        redraw: int | None,
        pattern: Pattern | None,
        scale: float | None,
        seed: int,
    ):
        super().__init__()
        self.heads, self.k_dim = check_at_least("heads", heads, 1), check_at_least("k_dim", k_dim, 1)
        self.hash = HashRotations(heads, k_dim, buckets, rounds, eval_rounds=eval_rounds, redraw=redraw, seed=seed)
        self.buckets = buckets
        self.pattern = Causal() if pattern is None else check_pattern("pattern", pattern)
        self.scale = check_scale(scale)

    @property
    def rounds(self) -> int:
        """Number of hash rounds during training. It can be set, and checkpoints do not store it."""
        return self.hash.rounds

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        self.hash.rounds = rounds

    @property
    def eval_rounds(self) -> int:
        """Number of hash rounds in eval mode. It can be set, and checkpoints do not store it."""
        return self.hash.eval_rounds

    @eval_rounds.setter
    def eval_rounds(self, rounds: int | None) -> None:
        self.hash.eval_rounds = rounds

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        # a layer calls this when it is built, so the error is raised there
        check_made_for_layer(self, sizes, self.heads, self.k_dim)
        return super().query_extras(sizes)

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        check_no_additions(self, ctx, "buckets")
        if ctx.remember:
            return queries, keys
        check_made_for_queries(self, queries.q, self.heads, self.k_dim)
        return queries._replace(tags={"bucket": self._buckets(queries.q)}), keys

    def tags(self, keys: Keys) -> Mapping[str, Int[Tensor, "B G S r"]]:
        check_made_for_keys(self, keys.k, self.heads, self.k_dim)
        return {"bucket": by_key_head(self._buckets(keys.k), keys.k.shape[1])}

    def _buckets(self, x: Float[Tensor, "B G T K"]) -> Int[Tensor, "B H T R"]:
        with torch.no_grad():
            return choice(lambda: self.hash(x))


class LSH(Hashed):
    """Softmax attention over S_i, the keys that share a bucket with query i in one or more hash rounds.

    y_i = sum over j in S_i of softmax(scale q_i.k_j) v_j

    Choose it if a few keys, found by content, carry the attention. Use it with `SharedQK(d, heads)`, as in the paper. A
    query reads all keys of its buckets, and a hash depends only on its own vector. Chunking, padding and later tokens
    therefore change nothing. `PublishedLSH` is the paper's sorted and chunked form.

    One softmax runs over the union of all rounds and reads each key once. It equals the paper's merge of rounds with
    log N_ij subtracted; N_ij is the number of rounds in which query i finds key j. Token i reads itself only if S_i
    holds no other key. Long rows are sorted by bucket, so the cost depends on the size of the buckets. In short rows
    and compiled graphs, all pairs are computed and masked.

    heads: number of query heads; each has its own hashes.
    k_dim: width of a query and a key.
    buckets: number of buckets in a round; even.
    rounds: number of hash rounds during training; each round adds candidate keys.
    eval_rounds: number of hash rounds in eval mode; `rounds` by default. The paper trains with 4 and evaluates with 1
        to 8.
    redraw: None keeps the rotations during the whole training. A number draws new ones after that many steps; 1 is
        closest to the authors' code.
    pattern: keys that a query may read at all; `Causal()` by default.
    scale: factor of the dot product; 1/sqrt(k_dim), as in the paper, by default.
    seed: seed of the rotations. A vector near a border may change its bucket if its precision changes.

    Errors: NoState (no decoding state exists) from `start` if the pattern allows later keys; ValueError for a layer
    with another number of heads, and with `ctx.also`, because keys of other buckets cannot be added.

    Source: Kitaev et al., 2020, arXiv:2001.04451, section 2.

    Differences: the authors' code draws rotations for each batch, also in evaluation; here they are kept, so cached
    keys and loaded checkpoints have the same hashes. The scale in the authors' code is 1; its keys also have length 1.
    """

    merges = True

    def __init__(
        self,
        heads: int,
        k_dim: int,
        buckets: int,
        rounds: int = 1,
        *,
        eval_rounds: int | None = None,
        redraw: int | None = None,
        pattern: Pattern | None = None,
        scale: float | None = None,
        seed: int = 0,
    ):
        super().__init__(
            heads,
            k_dim,
            buckets,
            rounds,
            eval_rounds=eval_rounds,
            redraw=redraw,
            pattern=pattern,
            scale=scale,
            seed=seed,
        )
        self.score = SameGroupScore("bucket", lonely=True)

    def read(self, request: Request) -> Out[AttentionOutput]:
        dtype = request.queries.q.dtype
        groups = read_groups(in_float32(request), self.buckets)
        return Out(groups._replace(y=groups.y.to(dtype)))


def in_float32(request: Request) -> Request:
    """Return the `request` in float32 or wider: LSH uses scores of -1e5, too large for float16."""
    queries, keys = request.queries, request.keys
    return request.replace(
        queries=queries._replace(q=at_least_float32(queries.q)),
        keys=keys._replace(k=at_least_float32(keys.k), v=at_least_float32(keys.v)),
    )


EXAMPLES = (
    lambda: LSH(2, 8, 4, 2),
    lambda: LSH(2, 8, 2, eval_rounds=3, redraw=1, seed=1),
    lambda: LSH(2, 8, 6, 3, pattern=Full(), scale=1.0),
)
