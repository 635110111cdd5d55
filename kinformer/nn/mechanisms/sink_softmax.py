"""SinkSoftmax: attention to the first tokens of a row, at no more than a trained distance."""

import kinformer as kf
from kinformer.core.checks import check_at_least, check_part
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.pattern import Pattern
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.positions.rotary import Rotary


class SinkSoftmax(Softmax):
    """Softmax attention in which a query counts as standing at position `last` at most.

        y_i = softmax(scale q'_i.k) v,  q'_i = q_i rotated by min(i, last) in place of i

    Choose it for attention sinks, the first tokens of a row, beside a window:
    `Merged(Softmax(Causal() & Band(w - 1)), SinkSoftmax(Causal() & Tokens(n) & ~Band(w - 1), w + n - 1, rotation))`.
    With rotary positions a query far into a text would otherwise read the sinks at a distance that no training row had,
    and the model fails there. StreamingLLM numbers the keys in its cache in place of the tokens in the text; the
    distance to a sink is the same here.

    pattern: keys that each query may read; the sinks without the keys that the other mechanism reads.
    last: largest position of a query; in rows of up to last + 1 tokens nothing changes.
    rotation: the rotation of the layer's queries and keys.
    scale, dropout, lse, impl: as in `Softmax`.

    Errors: ValueError for a rotation other than `Rotary`.

    Source: Xiao et al., 2023, arXiv:2309.17453, section 3.2.
    """

    def __init__(
        self,
        pattern: Pattern,
        last: int,
        rotation: Rotary,
        *,
        scale: float | None = None,
        dropout: float = 0.0,
        lse: bool = True,
        impl: str = "auto",
    ):
        super().__init__(pattern, scale=scale, dropout=dropout, lse=lse, impl=impl)
        self.last = check_at_least("last", last, 0)
        self.rotation = check_part("rotation", rotation, Rotary, "the Rotary of the layer's projection")

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        if ctx.remember:  # queries are placeholders
            return queries, keys
        distance = (self.last - queries.pos[:, 0]).clamp_max(0)
        return queries._replace(q=self.rotation.move(queries.q, distance)), keys


def _sinks() -> SinkSoftmax:
    return SinkSoftmax(kf.Causal() & kf.Tokens(2) & ~kf.Band(2), 4, Rotary(8))


EXAMPLES = (_sinks,)
