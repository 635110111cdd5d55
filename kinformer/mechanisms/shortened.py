"""Shortened: a mechanism that reads fewer keys, each made of many."""

from collections.abc import Mapping

from kinformer.core.checks import a_part
from kinformer.core.example import Example
from kinformer.core.heads import Keys, Queries, Room, Side, Sizes
from kinformer.core.layer import Context, Out, State
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.read import Read
from kinformer.core.shorten import Shorten


class Shortened(Mechanism):
    """read(q, shorten(k, v)): attention at a cost of T times the shortened row, with keys pooled, convolved, projected.

    Choose it for long encoders and long sources that need no exact single token. The mechanism's pattern speaks of the
    positions at which shortened keys stand.

    mechanism: how queries read shortened keys, such as `Softmax(Full())`.
    shorten: what makes few keys of many, such as `Pooled(4)`.

    Errors: NoState from `start`, because a key is made of tokens that come later; ValueError for `ctx.only` and
    `ctx.also`, which speak of single tokens. Source: Wang et al., 2020, arXiv:2006.04768; Liu et al., 2018,
    arXiv:1801.10198.
    """

    def __init__(self, mechanism: Mechanism, shorten: Shorten):
        super().__init__()
        self.mechanism = a_part("mechanism", mechanism, Mechanism, "one, such as Softmax(Full())")
        self.shorten = a_part("shorten", shorten, Shorten, "one, such as Pooled(4)")
        self.wants, self.sends = mechanism.wants, mechanism.sends

    def sides(self, sizes: Sizes) -> Mapping[str, Side]:
        return self.mechanism.sides(sizes)

    def key_sides(self, sizes: Sizes) -> Mapping[str, Side]:
        return self.mechanism.key_sides(sizes)

    def start(self, room: Room, sizes: Sizes) -> State:
        name = type(self.shorten).__name__
        raise NoState(
            f"{name} makes a key of several tokens and reads the whole sequence at once, so it cannot be decoded with "
            "a cache; use the mechanism without Shortened, or generate(..., recompute=True)"
        )

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out[Read]:
        if keys is None:
            raise ValueError("Shortened keeps no source; give Context(source=..., source_pos=...) in every call")
        if keys.own and (ctx.only is not None or ctx.also is not None):
            raise ValueError(
                "ctx.only and ctx.also speak of single tokens, and a shortened key is of several; drop them"
            )
        # shortened keys stand at no consecutive positions, and a short row may leave some empty
        return self.mechanism(queries, self.shortened(keys), None, ctx.but(run=False, full=False))

    def shortened(self, keys: Keys) -> Keys:
        """The keys that are read."""
        return self.shorten(keys)


_APART = {"merge": "a key is made of several tokens, so the keys of two halves of a row are not those of the whole"}


def _pooled() -> Shortened:
    from kinformer.mechanisms.softmax import Softmax
    from kinformer.patterns.full import Full
    from kinformer.shorteners.pooled import Pooled

    return Shortened(Softmax(Full()), Pooled(3))


def _causal() -> Shortened:
    from kinformer.mechanisms.softmax import Softmax
    from kinformer.patterns.causal import Causal
    from kinformer.shorteners.pooled import Pooled

    return Shortened(Softmax(Causal()), Pooled(2))


EXAMPLES = (Example(_pooled, _APART), Example(_causal, _APART))
