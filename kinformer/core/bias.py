"""Bias: a change of attention scores, such as a term for distance."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, HeadValues, StateSpec
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layer import Want
from kinformer.core.request import Request
from kinformer.core.sublayer_names import add_prefix, entries_under

# (score, b, h, i, j) -> score, as FlexAttention's score_mod: indices are local to the bound piece, and the score is
# already scaled
ScoreFn = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


# a table of vectors and, for each pair, the row of it that is added to the pair's value
ValueTable = tuple[Float[Tensor, "N V"], Int[Tensor, "B #H T S"]]


class Distances(NamedTuple):
    """The terms that a bias adds at each distance n = i - j of query i and key j, from `Bias.by_distance`.

        scores = scale * q_i.k_j + asks_i.table_n

    Executors (ways to compute attention) use them if positions are consecutive. Without `asks` the second term is
    table_n.

    q: queries, used instead of the request's queries.
    table: a number or a vector for each distance.
    asks: a vector of each query that is multiplied with the table; None to add the table itself.
    values: vectors that are added to the values of keys, one for each distance; None for none.
    """

    q: Float[Tensor, "B H T K"]
    table: Float[Tensor, "#H N *R"]
    asks: Float[Tensor, "B H T R"] | None = None
    values: Float[Tensor, "#H N V"] | None = None


class Bias(nn.Module, KeywordHints, ABC):
    """Base class of changes of attention scores, which see positions and, on request, further values.

    Further values are queries, keys, projections of the layer's input and labels. A subclass writes `bind`. It writes
    further methods if it needs them:

    - `values` if it adds to the values too (Shaw);
    - `query_extras` or `key_extras` if it needs projections of the layer's input (a dynamic span);
    - `prepare` if it must see the whole row before it is cut into pieces (a predicted centre);
    - `aux` and `penalties` if it adds a penalty to the training loss;
    - `by_distance` if it depends only on distances, which is faster;
    - `head_values` if its heads learn a number that describes their range; `kinformer evaluate` shows it.

    wants: names of values from earlier layers that it must find in `Request.below`.
    joins: True if it changes almost nothing at the start, so that it can be added to trained layers.
    magnifies: True if it multiplies scores. The scores are then computed in float32, because the rounding errors of
        bfloat16 would be multiplied too.
    endless: True if it uses only the order of tokens and works equally well beyond the longest row of the training.
    """

    wants: tuple[Want, ...] = ()
    joins: ClassVar[bool] = False
    magnifies: bool = False
    endless: ClassVar[bool] = False

    @abstractmethod
    def bind(self, piece: Request) -> ScoreFn:
        """Return the function that changes the scores of a piece, a part of the queries and keys of a call.

        The function is pure. `bind` is called for each piece that an executor (a way to compute attention) computes. It
        takes time linear in the queries and keys of the piece. Pairs whose score the function sets to -inf are
        excluded.
        """

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances | None:
        """Return what `bind` and `values` add at each distance in `far`; None if more than distance matters.

        Executors (ways to compute attention) for consecutive positions call it, because a look-up of the distance of
        each pair is slow. A bias without a gradient is passed to the kernel as an additive mask.
        `nn/biases/bias_by_distance.py` implements it for a bias that adds a function of head and distance.
        """
        return None

    def prepare(self, request: Request) -> Mapping[str, Float[Tensor, "B H T n"]]:
        """Return numbers of each query that depend on the whole row; they are added to `queries.extras`.

        Called once, before the attention call is cut into pieces.
        """
        return {}

    def values(self, q_pos: Int[Tensor, "B #H T"], k_pos: Int[Tensor, "B #H S"]) -> ValueTable | None:
        """Return vectors to add to the values (the v of attention), or None for none.

        The result is a table of vectors and, for each pair, the row of the table that is added to the pair's value.
        """
        return None

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """Return the projections of the layer's input that the bias needs for each query, by name."""
        return {}

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """Return the projections of the source that the bias needs for each key, by name."""
        return {}

    def aux(self, extras: Mapping[str, Float[Tensor, "B H T n"]]) -> Mapping[str, Tensor]:
        """Return penalties [] and per-token values [B T] to report in `Out.aux`, by name."""
        return {}

    def head_values(self, request: Request) -> Mapping[str, HeadValues]:
        """Return the learned numbers of the heads, by name, such as their attention spans.

        `request` is a whole attention call, with the result of `prepare`.
        """
        return {}

    def start(self, spec: StateSpec) -> None:
        """Raise `NoState` with advice if the bias cannot be decoded in steps.

        It cannot if a part of a row gives another result than the whole row. The default raises nothing.
        """


class Plus(Bias):
    """Several biases applied one after the other, as in `Plus(ALiBi(8), MyBias())`.

    A pair that one bias excludes stays excluded. Extra projections and reported values (`aux`) of bias n are named
    "n.name", so that two biases of one kind do not collide.

    biases: the biases, in the order of application.

    Errors: ValueError if more than one bias adds to the values.
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
                # f gets 0 for -inf, because 0 * -inf would give NaN in the gradient of a factor
                s = torch.where(out, s, f(torch.where(out, 0.0, s), b, h, i, j))
            return s

        return score

    def prepare(self, request: Request) -> Mapping[str, Float[Tensor, "B H T n"]]:
        return _by_place(bias.prepare(_piece_of_bias(request, n)) for n, bias in enumerate(self.biases))

    def values(self, q_pos: Int[Tensor, "B #H T"], k_pos: Int[Tensor, "B #H S"]) -> ValueTable | None:
        values = [bias.values(q_pos, k_pos) for bias in self.biases]  # := would not compile
        tables = [table for table in values if table is not None]
        if len(tables) > 1:
            raise ValueError(
                f"got {len(tables)} biases that add to the values in a Plus, expected at most 1; keep one, or join "
                "their tables in one"
            )
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
    """Return entry n of a table by row and head, for broadcasting indices.

    Score functions use it to look up positions.

    table: integers by row and head; one table may serve all heads.
    b, h, n: indices of row, head and entry.
    """
    return table[b, h if table.shape[1] > 1 else 0, n]


def entry(table: Float[Tensor, "B H T N"], b: Tensor, h: Tensor, i: Tensor, n: Tensor) -> Tensor:
    """Return table[b, h, i, n], entry n of the N values of each query, for broadcasting indices.

    table: N values of each query, [B H T N].
    b, h, i, n: indices of row, head, query and entry.
    """
    batch, heads, length, width = table.shape
    whole = b.shape == (batch, 1, 1, 1) and h.shape == (heads, 1, 1) and i.shape == (length, 1) and n.dim() == 4
    if whole:  # all queries in order: gather needs no index for each pair and its backward uses several threads
        return table.gather(3, n.expand(batch, heads, length, -1))
    # one flat index instead of four broadcast ones trains four times as fast on a CPU
    return table.flatten()[((b * heads + h) * length + i) * width + n]


def check_bias_heads(name: str, heads: int, piece: Request) -> None:
    """Raise ValueError if a bias was made for another number of heads than its layer has.

    name: the bias's name in the message.
    heads: the number of heads of the bias.
    piece: a request of the layer.
    """
    layer_heads = piece.queries.q.shape[1]
    if layer_heads != heads:
        raise ValueError(f"got {name} in a layer of {layer_heads} heads; give both the same number of heads")


def _piece_of_bias(piece: Request, n: int) -> Request:
    queries, keys = piece.queries, piece.keys
    return piece.replace(
        queries=queries._replace(extras=entries_under(n, queries.extras)),
        keys=keys._replace(extras=entries_under(n, keys.extras)),
    )


def _by_place(mappings) -> dict:  # type: ignore[no-untyped-def]
    return {name: value for n, mapping in enumerate(mappings) for name, value in add_prefix(n, mapping).items()}
