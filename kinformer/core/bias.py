"""Bias: how much each allowed key counts, beyond what the score says."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, HeadValues, StateSpec
from kinformer.core.layer import Want, add_prefix, entries_under
from kinformer.core.request import Request

# (score, b, h, i, j) -> score, FlexAttention's score_mod: indices are local to the piece that was bound, and the
# score is already scaled
ScoreFn = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


# a table of vectors and, for each pair, the row of it that is added to the pair's value
ValueTable = tuple[Float[Tensor, "N V"], Int[Tensor, "B #H T S"]]


class Distances(NamedTuple):
    """What a bias makes of distances n = i - j: scores scale * q_i.k_j + asks_i.table_n, or + table_n without `asks`.

    `q` are read in place of the request's own; `values` are added to the values of keys at each distance.
    """

    q: Float[Tensor, "B H T K"]
    table: Float[Tensor, "#H N *R"]
    asks: Float[Tensor, "B H T R"] | None = None
    values: Float[Tensor, "#H N V"] | None = None


class Bias(nn.Module, ABC):
    """A change of attention scores that knows positions and, on request, queries, keys, extra projections and labels.

    Write `bind`. A bias that adds to the values too (Shaw) writes `values`; one that needs numbers from the layer's
    input (a dynamic span) writes `query_extras` or `key_extras`; one that must see the whole row before it is cut into
    pieces (a predicted centre) writes `prepare`; one with a penalty writes `aux` and `penalties`. One that asks for
    nothing but distances is read faster where it writes `by_distance`. One whose heads learn a number that says what
    they look at writes `head_values`, which `kinformer evaluate` shows. `joins` says that it begins with changing next
    to nothing, so that layers trained without it can get one. `magnifies` says that it multiplies scores: these are
    then computed in float32, because rounding errors of bfloat16 would be multiplied too. `endless` says that it uses
    order alone and works as well beyond the longest row of a training.
    """

    wants: tuple[Want, ...] = ()
    joins: ClassVar[bool] = False
    magnifies: bool = False
    endless: ClassVar[bool] = False

    @abstractmethod
    def bind(self, piece: Request) -> ScoreFn:
        """The score function for the queries and keys of a piece.

        Pure; called for each piece that an executor reads, at a cost linear in the piece. What it shuts out with -inf
        stays out.
        """

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances | None:
        """The same as `bind` and `values` for a whole read, at each of some distances; None where there is more to it.

        Executors that read runs of positions ask for it: no distance is looked up, and what needs no gradient is a
        mask as any other. `nn/biases/bias_by_distance.py` makes it for a bias that adds a function of head and
        distance.
        """
        return None

    def prepare(self, request: Request) -> Mapping[str, Float[Tensor, "B H T n"]]:
        """Numbers per query that need the whole read; called once, before anything is cut; found among the extras."""
        return {}

    def values(self, q_pos: Int[Tensor, "B #H T"], k_pos: Int[Tensor, "B #H S"]) -> ValueTable | None:
        """A table of vectors and, for each pair, the row of it that is added to the pair's value. None for none."""
        return None

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """What it wants from the layer's input for each query, by name."""
        return {}

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """What it wants from the source for each key, by name."""
        return {}

    def aux(self, extras: Mapping[str, Float[Tensor, "B H T n"]]) -> Mapping[str, Tensor]:
        """Penalties [] and per-token values [B T] to report."""
        return {}

    def head_values(self, request: Request) -> Mapping[str, HeadValues]:
        """Numbers that its heads have learned, by name: how far each looks. `request` is whole and prepared."""
        return {}

    def start(self, spec: StateSpec) -> None:
        """Raises `NoState` with advice where a part of a row does not tell what the whole row would."""


class Plus(Bias):
    """Several biases, applied one after the other: `Plus(ALiBi(8), MyBias())`. A pair that one shuts out stays out.

    Extra projections and aux of bias n are named "n.name", so that two of a kind do not meet.
    Errors: ValueError where two of them add to the values.
    """

    def __init__(self, *biases: Bias):
        super().__init__()
        self.biases = nn.ModuleList(biases)
        self.wants = tuple({want: None for bias in biases for want in bias.wants})
        self.magnifies = any(bias.magnifies for bias in biases)

    def bind(self, piece: Request) -> ScoreFn:
        bound = [bias.bind(_piece_of_bias(piece, n)) for n, bias in enumerate(self.biases)]

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            for f in bound:
                out = s == -torch.inf
                # f never sees -inf: 0 times it would be NaN in a factor's gradient
                s = torch.where(out, s, f(torch.where(out, 0.0, s), b, h, i, j))
            return s

        return score

    def prepare(self, request: Request) -> Mapping[str, Float[Tensor, "B H T n"]]:
        return _by_place(bias.prepare(_piece_of_bias(request, n)) for n, bias in enumerate(self.biases))

    def values(self, q_pos: Int[Tensor, "B #H T"], k_pos: Int[Tensor, "B #H S"]) -> ValueTable | None:
        values = [bias.values(q_pos, k_pos) for bias in self.biases]  # an assignment inside would not compile
        tables = [table for table in values if table is not None]
        if len(tables) > 1:
            raise ValueError(f"{len(tables)} biases of a Plus add to the values; keep one, or join their tables in one")
        return tables[0] if tables else None

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return _by_place(bias.query_extras(sizes) for bias in self.biases)

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return _by_place(bias.key_extras(sizes) for bias in self.biases)

    def aux(self, extras: Mapping[str, Float[Tensor, "B H T n"]]) -> Mapping[str, Tensor]:
        return _by_place(bias.aux(entries_under(n, extras)) for n, bias in enumerate(self.biases))

    def head_values(self, request: Request) -> Mapping[str, HeadValues]:
        values: dict[str, HeadValues] = {}
        for n, bias in enumerate(self.biases):
            for name, value in bias.head_values(_piece_of_bias(request, n)).items():
                values[name if name not in values else f"{n}.{name}"] = value
        return values

    def start(self, spec: StateSpec) -> None:
        for bias in self.biases:
            bias.start(spec)


def at(table: Int[Tensor, "B #H N"], b: Tensor, h: Tensor, n: Tensor) -> Tensor:
    """Entry n of a per-row, per-head (or shared) table, for broadcasting indices.

    How a score function looks up a position.
    """
    return table[b, h if table.shape[1] > 1 else 0, n]


def entry(table: Float[Tensor, "B H T N"], b: Tensor, h: Tensor, i: Tensor, n: Tensor) -> Tensor:
    """Entry n of what a query has for each of N relations: table[b, h, i, n], for broadcasting indices."""
    batch, heads, length, width = table.shape
    whole = b.shape == (batch, 1, 1, 1) and h.shape == (heads, 1, 1) and i.shape == (length, 1) and n.dim() == 4
    if whole:  # all queries in their order, as scores asks: no number for each pair, and learned by several threads
        return table.gather(3, n.expand(batch, heads, length, -1))
    # one flat index in place of four broadcast ones trains four times as fast on CPU
    return table.flatten()[((b * heads + h) * length + i) * width + n]


def check_bias_heads(name: str, heads: int, piece: Request) -> None:
    """ValueError for a bias that was made for another number of heads than the layer has."""
    layer_heads = piece.queries.q.shape[1]
    if layer_heads != heads:
        raise ValueError(f"{name} came to a layer of {layer_heads} heads; give both the same number")


def _piece_of_bias(piece: Request, n: int) -> Request:
    queries, keys = piece.queries, piece.keys
    return piece.replace(
        queries=queries._replace(extras=entries_under(n, queries.extras)),
        keys=keys._replace(extras=entries_under(n, keys.extras)),
    )


def _by_place(mappings) -> dict:  # type: ignore[no-untyped-def]
    return {name: value for n, mapping in enumerate(mappings) for name, value in add_prefix(n, mapping).items()}
