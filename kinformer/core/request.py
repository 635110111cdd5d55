"""Request: one attention call, the input of scores, masks and executors (ways to compute attention)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.core import heads
from kinformer.core.heads import Keys, Queries, Selection
from kinformer.core.layer import Below, PerPair
from kinformer.core.memo import Memo, empty_memo
from kinformer.core.pattern import Pattern

if TYPE_CHECKING:
    from kinformer.core.bias import Bias
    from kinformer.core.score import Score


@dataclass(frozen=True, eq=False)
class Request:
    """One attention call: queries, the keys that they may attend to, and the settings.

    queries, keys: the queries and the keys.
    pattern: the pairs that attention allows, already narrowed by the limits of the batch.
    score: the module that scores each pair of query and key, usually by their product.
    bias: the module that changes the scores; None for no change.
    scale: the factor of the product.
    lse: if True, the log-sum-exp is returned too.
    dropout: the probability that a weight is dropped.
    rows: the index in the batch of each row, if a mechanism folds blocks or hash buckets into the batch; None
        otherwise.
    run: a promise that positions are consecutive in each row, apart from padding at its ends.
    full: a promise that no position is padding.
    below: values by name from earlier blocks.
    memo: results about these positions that this forward has already computed.
    where: the mask of allowed pairs, if they are fewer than the pattern allows. An executor (a way to compute
        attention) that follows only the pattern refuses such a request.
    """

    queries: Queries
    keys: Keys
    pattern: Pattern
    score: "Score"
    bias: "Bias | None" = None
    scale: float = 1.0
    lse: bool = True
    dropout: float = 0.0
    rows: Int[Tensor, " B"] | None = None
    run: bool = False
    full: bool = False
    below: Mapping[str, Below] = field(default_factory=dict)
    memo: Memo = field(default_factory=empty_memo)
    where: Bool[Tensor, "B #H T S"] | None = None

    def piece(self, rows: Selection, columns: Selection) -> "Request":
        """Return the attention call of some queries over some keys of this request.

        `rows` selects queries, and `columns` selects keys. Their positions and further values, the mask `where` and the
        values from earlier blocks are cut to match. The piece gets its own memo, because its positions are new objects.
        The old memo would never find them and would keep every mask alive.
        """
        queries, keys = self.queries.cut(rows), self.keys.cut(columns)

        def cut(value: Below) -> Below:
            # scores of the same position objects share them in every piece too, without comparing numbers
            if isinstance(value, PerPair) and value.q_pos is self.queries.pos and value.k_pos is self.keys.pos:
                return value.piece(rows, columns)._replace(q_pos=queries.pos, k_pos=keys.pos)
            return value.piece(rows, columns)

        below = {name: cut(value) for name, value in self.below.items()}
        where = None if self.where is None else heads.cut(heads.cut(self.where, rows, 2), columns, 3)
        return self.replace(queries=queries, keys=keys, run=False, below=below, where=where, memo=empty_memo())

    def replace(self, **changes: object) -> "Request":
        """Return the same request with other fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def regroup(self, **changes: object) -> "Request":
        """Return the attention call with regrouped queries or keys, such as hash buckets, in place of the old.

        `run`, `full`, `below`, `where` and the memo are reset, because they describe the old positions.
        """
        return self.replace(
            **{"run": False, "full": False, "below": {}, "where": None, "memo": empty_memo(), **changes}
        )

    def prepare_bias(self) -> "Request":
        """Return the request with the result of `Bias.prepare` added to the extras of the queries.

        Call it before the request is cut into pieces, because the bias may need the whole row.
        """
        extra = {} if self.bias is None else self.bias.prepare(self)
        if not extra:
            return self
        return self.replace(queries=self.queries._replace(extras={**self.queries.extras, **extra}))

    @property
    def is_causal(self) -> bool:
        """True if queries and keys share the same consecutive positions and none is padding."""
        return self.run and self.full and self.queries.pos is self.keys.pos and self.rows is None

    @property
    def pairs(self) -> int:
        """The number of scores: rows x heads x queries x keys."""
        batch, heads, queries, _ = self.queries.q.shape
        return batch * heads * queries * self.keys.k.shape[2]


class Refusal(NamedTuple):
    """The answer of an executor (a way to compute attention) that cannot compute a request.

    reason: the reason in words.
    """

    reason: str
