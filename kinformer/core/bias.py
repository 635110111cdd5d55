"""Bias: how much each allowed key counts, beyond the product of query and key."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.layer import Context

# (score, b, h, i, j) -> score, FlexAttention's score_mod: indices are local to the tensors that were bound, and the
# score is already scaled
ScoreFn = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
# what Bias.bind is: anything with its keywords may stand in for a bias during one call
BindFn = Callable[..., ScoreFn]


class Bias(nn.Module, ABC):
    """A change of attention scores that knows positions, and queries and keys where it wants them.

    Write `bind`. A bias that adds to the values too (Shaw) writes `values`; one that needs numbers from the layer's
    input (a dynamic span) writes `sides`; one with a penalty writes `aux`.
    """

    @abstractmethod
    def bind(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        q_pos: Int[Tensor, "B #H T"],
        k_pos: Int[Tensor, "B #H S"],
        *,
        scale: float,
        reach: tuple[float, float],
        ctx: Context | None,
        sides: Mapping[str, Tensor],
    ) -> ScoreFn:
        """The score function for these queries and keys.

        Pure; called for each piece that an executor reads; `reach` bounds its tables.
        """

    def values(
        self, q_pos: Int[Tensor, "B #H T"], k_pos: Int[Tensor, "B #H S"]
    ) -> tuple[Float[Tensor, "N V"], Int[Tensor, "B #H T S"]] | None:
        """A table of vectors and, for each pair, the row of it that is added to the pair's value. None for none."""
        return None

    def sides(self, k_dim: int, v_dim: int) -> Mapping[str, int]:
        """How many numbers per head this bias wants from the layer's input, by name."""
        return {}

    def aux(self, sides: Mapping[str, Float[Tensor, "B H T n"]]) -> Mapping[str, Tensor]:
        """Penalties [] and per-token values [B T] to report."""
        return {}


class Plus(Bias):
    """Several biases, applied one after the other: `Plus(ALiBi(8), MyBias())`."""

    def __init__(self, *biases: Bias):
        super().__init__()
        self.biases = nn.ModuleList(biases)

    def bind(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        q_pos: Int[Tensor, "B #H T"],
        k_pos: Int[Tensor, "B #H S"],
        *,
        scale: float,
        reach: tuple[float, float],
        ctx: Context | None,
        sides: Mapping[str, Tensor],
    ) -> ScoreFn:
        bound = [b.bind(q, k, q_pos, k_pos, scale=scale, reach=reach, ctx=ctx, sides=sides) for b in self.biases]
        return chained(*bound)

    def values(
        self, q_pos: Int[Tensor, "B #H T"], k_pos: Int[Tensor, "B #H S"]
    ) -> tuple[Float[Tensor, "N V"], Int[Tensor, "B #H T S"]] | None:
        tables = [found for b in self.biases if (found := b.values(q_pos, k_pos)) is not None]
        if len(tables) > 1:
            raise ValueError(
                f"{len(tables)} biases of a Plus add to the values; keep one, or write a bias that joins their tables"
            )
        return tables[0] if tables else None

    def sides(self, k_dim: int, v_dim: int) -> Mapping[str, int]:
        return joined(*(b.sides(k_dim, v_dim) for b in self.biases))

    def aux(self, sides: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return joined(*(b.aux(sides) for b in self.biases))


def chained(*functions: ScoreFn) -> ScoreFn:
    """Score functions, one after the other."""

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for f in functions:
            s = f(s, b, h, i, j)
        return s

    return score


def joined(*mappings: Mapping) -> dict:
    """One mapping of all; a name that two of them use is an error."""
    names = [name for mapping in mappings for name in mapping]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the name {twice[0]!r} is used twice by parts of one layer; rename it in one of them")
    return {name: value for mapping in mappings for name, value in mapping.items()}


def at(table: Int[Tensor, "B #H N"], b: Tensor, h: Tensor, n: Tensor) -> Tensor:
    """Entry n of a per-row, per-head (or shared) table, for broadcasting indices.

    How a score function looks up a position.
    """
    return table[b, h if table.shape[1] > 1 else 0, n]


def entry(table: Float[Tensor, "B H T N"], b: Tensor, h: Tensor, i: Tensor, n: Tensor) -> Tensor:
    """Entry n of what a query has for each of N relations: table[b, h, i, n], for broadcasting indices."""
    # one flat index in place of four broadcast ones trains four times as fast on CPU
    _, heads, length, width = table.shape
    return table.flatten()[((b * heads + h) * length + i) * width + n]
