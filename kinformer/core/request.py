"""Request: one read of keys by queries, whole; what scores, masks and executors are handed."""

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
    """Queries, the keys that they may read, and how.

    `pattern` is final: whoever makes a request has narrowed it. `score` says how a query and a key are multiplied,
    `bias` how that is changed; `scale` is the factor of the product. `lse` asks for the log-sum-exp. `rows` names the
    batch row of each row, where queries or buckets are folded into the batch. `run` promises consecutive positions,
    `full` that none is padding. `below` is what the block beneath sent up. `where` are the pairs that are read, where
    those are fewer than the pattern says: an executor that asks the pattern alone refuses it.
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
        """The read of some queries in some keys: the only place that slices.

        Positions, extras, labels, tags and what came from below are cut together. Its memo is its own: positions of a
        piece are new objects, so nothing about them would be found again, and every mask would outlive its piece.
        """
        queries, keys = self.queries.cut(rows), self.keys.cut(columns)

        def cut(value: Below) -> Below:
            # scores that are of the same positions are so in every piece: by the object, without a look at numbers
            if isinstance(value, PerPair) and value.q_pos is self.queries.pos and value.k_pos is self.keys.pos:
                return value.piece(rows, columns)._replace(q_pos=queries.pos, k_pos=keys.pos)
            return value.piece(rows, columns)

        below = {name: cut(value) for name, value in self.below.items()}
        where = None if self.where is None else heads.cut(heads.cut(self.where, rows, 2), columns, 3)
        return self.replace(queries=queries, keys=keys, run=False, below=below, where=where, memo=empty_memo())

    def replace(self, **changes: object) -> "Request":
        """The same request with other fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def regroup(self, **changes: object) -> "Request":
        """The read of other queries or keys, such as buckets, with other fields.

        Nothing is promised of their positions, nothing from below is theirs, and what is found out about them serves
        no other layer.
        """
        return self.replace(
            **{"run": False, "full": False, "below": {}, "where": None, "memo": empty_memo(), **changes}
        )

    def prepare_bias(self) -> "Request":
        """With what the bias wants to know of the whole, before anything is cut, among the queries' extras."""
        extra = {} if self.bias is None else self.bias.prepare(self)
        if not extra:
            return self
        return self.replace(queries=self.queries._replace(extras={**self.queries.extras, **extra}))

    @property
    def is_causal(self) -> bool:
        """Do queries and keys stand at the same consecutive positions, none of them padding?"""
        return self.run and self.full and self.queries.pos is self.keys.pos and self.rows is None

    @property
    def pairs(self) -> int:
        """How many scores there are: rows x heads x queries x keys."""
        batch, heads, queries, _ = self.queries.q.shape
        return batch * heads * queries * self.keys.k.shape[2]


class Refusal(NamedTuple):
    """Why an executor cannot serve a request."""

    reason: str
