"""ISAB: a set reads itself through a few inducing points; PMA: a few seeds read a set, and make vectors of it."""

from typing import NoReturn

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.checks import a_part, at_least, if_given
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State, prefixed
from kinformer.core.mechanism import NoState
from kinformer.core.memo import fresh
from kinformer.models.support.pooling import Pooling
from kinformer.nn.blocks.mab import MAB, PublishedMAB
from kinformer.nn.feedforward.mlp import MLP

BLOCK = "a block that reads a source, such as MAB(d, heads)"


class ISAB(Layer):
    """Induced set attention block: m learned points read the set, and each element reads what they made of it.

    ISAB_m(X) = MAB(X, H), H = MAB(I, X)

    Choose it over MAB(d, heads, cross=False) for sets of more than 2 m elements: 2 L m pairs in place of L^2. Elements
    hear of one another by what m points can hold.

    gathers: the block in which the points read the set.
    spreads: the block in which the set reads the points.
    points: m, how many there are.

    Errors: NoState from `start`; ValueError for a block that reads itself, and for `ctx.only` and `ctx.also`, since the
    points take part in all elements.
    Source: Lee et al., 2018, arXiv:1810.00825, equations 9 and 10; the points' start is the authors' code's.
    """

    def __init__(self, gathers: Layer, spreads: Layer, points: int):
        super().__init__()
        self.gathers, self.spreads = _reader("gathers", gathers), _reader("spreads", spreads)
        self.d, self.points = spreads.d, at_least("points", points, 1)
        self.point = nn.Parameter(nn.init.xavier_uniform_(torch.empty(points, gathers.d)))

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState("inducing points read the whole set, so nothing goes on from a part of it; use a causal layer")

    def forward(self, x: Float[Tensor, "B T C"], state: State | None, ctx: Context) -> Out:
        if ctx.only is not None or ctx.also is not None:
            raise ValueError("inducing points are of one whole set; give one in a row, without ctx.only and ctx.also")
        gathered = self.gathered(x, ctx)
        seen = ctx.under(1).but(source=gathered.y, source_pos=self._inner(ctx).pos, full=ctx.full)
        spread = self.spreads(x, None, seen)
        aux, stats = (
            {**prefixed(0, getattr(gathered, n)), **prefixed(1, getattr(spread, n))} for n in ("aux", "stats")
        )
        return Out(spread.y, None, aux, {}, stats)

    def gathered(self, x: Float[Tensor, "B T C"], ctx: Context) -> Out:
        """H, what the points made of the set, [B m D]."""
        inner = self._inner(ctx).but(source=x, source_pos=ctx.pos, full=ctx.full)
        return self.gathers(self.point.expand(len(x), -1, -1), None, inner)

    def _inner(self, ctx: Context) -> Context:
        """The context of the points; layers of as many share it."""

        def make() -> Context:
            pos = torch.arange(self.points, device=ctx.pos.device).expand(len(ctx.pos), -1)
            return Context(pos, run=True, full=ctx.full, memo=fresh(), is_clean=True)

        return ctx.memo.get(make, "points", ctx.pos, self.points)


class PMA(Pooling):
    """Pooling by multihead attention: k learned seeds read the set, each a vector; side by side [B k*D].

    PMA_k(Z) = MAB(S, rFF(Z)); in the authors' code, with `PublishedMAB` and without `feedforward`, MAB(S, Z)

    Choose it over a mean where what counts is in few elements, or in several groups of them (k > 1). Of a set without
    elements it makes what the seeds are by themselves.

    block: reads the set.
    seeds: k, how many vectors it makes of a set.
    feedforward: what each element goes through before it is read.

    Errors: ValueError for parts of the wrong kind, and for a block that reads itself. Source: Lee et al., 2018,
    arXiv:1810.00825, equation 11.
    """

    def __init__(self, block: Layer, seeds: int = 1, *, feedforward: Layer | None = None):
        super().__init__()
        self.block = _reader("block", block)
        self.vectors, self.feedforward = at_least("seeds", seeds, 1), feedforward
        if_given("feedforward", feedforward, Layer, "a layer, such as MLP(d)")
        self.seed = nn.Parameter(nn.init.xavier_uniform_(torch.empty(seeds, block.d)))

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B kD"]:
        at = torch.arange(max(self.vectors, y.shape[1]), device=y.device)
        pos = torch.where(real, at[: y.shape[1]], -1)
        if self.feedforward is not None:
            y = self.feedforward(y, None, Context(pos)).y
        ctx = Context(at[: self.vectors].expand(len(y), -1), run=True, source=y, source_pos=pos)
        return self.block(self.seed.expand(len(y), -1, -1), None, ctx).y.flatten(1)


def _reader(name: str, block: Layer) -> Layer:
    """A block that reads a source; one that reads itself would leave out the set, and nobody would see it."""
    if not getattr(a_part(name, block, Layer, BLOCK), "cross", True):
        raise ValueError(f"{name} was made with cross=False and reads itself; give {BLOCK}")
    return block


EXAMPLES = (
    lambda: ISAB(MAB(16, 2), MAB(16, 2), 3),
    lambda: ISAB(PublishedMAB(16, 2), PublishedMAB(16, 2, norm=nn.Identity), 3),
    lambda: PMA(MAB(16, 2), 2, feedforward=MLP(16)),
)
