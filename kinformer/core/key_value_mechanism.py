"""KeyValueMechanism: the base class of mechanisms with a cache of keys as their decoding state."""

from abc import abstractmethod
from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput, received_attention
from kinformer.core.bias import Bias
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.kv_cache import KV, update_cache
from kinformer.core.layer import Context, Out, Want
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.pattern import Pattern, narrow_pattern
from kinformer.core.request import Request
from kinformer.core.score import Score
from kinformer.core.scores.product import Product


class KeyValueMechanism(Mechanism):
    """Base class of mechanisms whose queries attend to the keys of a `pattern`; they decode with a cache.

    The cache holds the keys that a later query may read. The class does the shared work: it narrows the pattern by the
    limits of the batch, puts new keys into the cache, makes the Request and returns the next cache. A subclass writes
    `read`, and `preprocess` if queries and keys change before they are cached.

    pattern: the pairs of query and key that attention allows.
    bias: the change of scores; None for no change.
    score: the module that scores each pair of query and key, usually by their product.
    scale: the factor of the product; None for 1 / sqrt(width of a query).
    dropout: the probability that a weight is dropped in training.
    lse: if True, attention also returns the log-sum-exp of the scores.
    merges: True if outputs over disjoint sets of keys can be merged into the output over all keys.
    """

    pattern: Pattern
    bias: Bias | None
    score: Score
    scale: float | None = None
    dropout: float = 0.0
    lse: bool = True
    merges: bool = False

    def __init__(self) -> None:
        super().__init__()
        # not class attributes, because these would hide the submodules with the same names
        self.bias, self.score = None, Product()

    @abstractmethod
    def read(self, request: Request) -> Out[AttentionOutput]:
        """Return the attention output of a request, with reports such as `aux`; the caller handles the cache."""

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        """Return queries and new keys in the form that attention and the cache use, such as normalised."""
        return queries, keys

    @property
    def receptive_field(self) -> Pattern:
        """The keys that can change a query's output: the pattern, unless the mechanism knows a smaller set."""
        return self.pattern

    def batch_pattern(self, ctx: Context) -> Pattern:
        """Return the pattern for self-attention in this batch: `(pattern | ctx.also) & ctx.only`."""
        return narrow_pattern(self.pattern, ctx.only, ctx.also)

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        of_score, of_bias = self.score.query_extras(sizes), {} if self.bias is None else self.bias.query_extras(sizes)
        if twice := of_score.keys() & of_bias.keys():
            raise ValueError(
                f"the score and the bias both have an extra projection named {min(twice)!r}; rename it in one of them"
            )
        return {**of_score, **of_bias}

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {} if self.bias is None else self.bias.key_extras(sizes)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> KV:
        self.score.start(spec)
        if self.bias is not None:
            self.bias.start(spec)
        if not sizes.cross:
            check_reads_no_future(self.pattern)
        capacity = 0 if sizes.cross else self.pattern.capacity(spec.length)
        # one slot more than a call leaves alive: a new key is written before the oldest one dies
        slots = min(spec.length, capacity + 1) if capacity else 0
        return KV.empty(spec, sizes, slots, self.key_extras(sizes), self.tags)

    def forward(self, queries: Queries, keys: Keys | None, state: KV | None, ctx: Context) -> Out[AttentionOutput]:
        request, cache = self.prepare_request(queries, keys, state, ctx)
        out = Out(AttentionOutput(queries.q[..., :0], None)) if ctx.remember else self.read_with_aux(request)
        return out._replace(state=cache)

    def prepare_request(
        self, queries: Queries, keys: Keys | None, state: KV | None, ctx: Context
    ) -> tuple[Request, KV | None]:
        """Return the request of a call from its unprocessed queries and keys, and the cache after it."""
        queries, keys = self.preprocess(queries, keys, ctx)
        return self.make_request(queries, keys if keys is None else keys._replace(tags=self.tags(keys)), state, ctx)

    def read_with_aux(self, request: Request) -> Out[AttentionOutput]:
        """Return the attention output of a request, with the values that the bias reports (`Bias.aux`)."""
        out = self.read(request)
        return out if self.bias is None else out._replace(aux={**self.bias.aux(request.queries.extras), **out.aux})

    def make_request(
        self, queries: Queries, keys: Keys | None, state: KV | None, ctx: Context
    ) -> tuple[Request, KV | None]:
        """Return the request of attention over cached and new keys, and the cache after it.

        Errors: NoState if a state is given and the pattern allows later keys, which no cache holds yet.
        """
        is_own = keys is not None and keys.own
        # the limits of a batch apply to its own sequence, not to a source
        pattern = self.batch_pattern(ctx) if is_own else self.pattern
        if is_own and state is not None:
            check_reads_no_future(pattern)
        read_keys, cache = update_cache(state, keys, queries, pattern, ctx)
        scale = (queries.q.shape[-1] or 1) ** -0.5 if self.scale is None else self.scale
        dropout, full = self.dropout if self.training else 0.0, ctx.full and (state is None or read_keys is keys)
        request = Request(
            queries,
            read_keys,
            pattern,
            self.score,
            self.bias,
            scale=scale,
            lse=self.lse,
            dropout=dropout,
            run=ctx.run,
            full=full,
            below=ctx.below,
            memo=ctx.memo,
        )
        return (request if self.bias is None or ctx.remember else request.prepare_bias()), cache

    def received_attention(
        self, queries: Queries, keys: Keys, read: AttentionOutput, ctx: Context
    ) -> Float[Tensor, "B S"]:
        """Return the attention that each key received from all queries, averaged over heads.

        read: the attention output of these queries and keys, with its log-sum-exp.

        Errors: ValueError if `read` has no lse.
        """
        if read.lse is None:
            raise ValueError(
                f"received_attention of {type(self).__name__} needs the log-sum-exp; build it without lse=False"
            )
        request, _ = self.prepare_request(queries, keys, None, ctx)
        return received_attention(request, read.lse).mean(1)


def joined_wants(*parts: Bias | Score | None) -> tuple[Want, ...]:
    """Return the names of values that a mechanism's parts need from earlier blocks, each once.

    parts: the bias and the score of the mechanism, or None.
    """
    return tuple({want: None for part in parts if part is not None for want in part.wants})


def check_reads_no_future(pattern: Pattern) -> None:
    """Raise NoState if a pattern allows later keys, because a cache does not hold them yet.

    pattern: the pattern to check.
    """
    ahead = pattern.reach()[1]
    if ahead > 0:
        raise NoState(
            f"{pattern} reads up to {ahead} positions ahead, so it cannot be decoded with a cache; "
            "use Causal() & pattern, or generate(..., recompute=True)"
        )
