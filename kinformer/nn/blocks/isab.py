"""ISAB: set attention through a few inducing points."""

from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.mechanism import NoState
from kinformer.core.memo import empty_memo
from kinformer.core.sublayer_names import add_prefix
from kinformer.nn.blocks.mab import MAB, PublishedMAB, source_reader


class ISAB(Layer):
    """An induced set attention block: m learned points read the set, then each element reads the points.

    ISAB_m(X) = MAB(X, H), H = MAB(I, X)

    Here I are the learned points, and MAB(A, B) is a block in which the set A reads the set B. Choose it over `MAB(d,
    heads, cross=False)`, in which the set reads itself, for sets of more than 2 m elements: it computes 2 L m pairs
    instead of L^2. Elements exchange information only through the m points.

    gathers: the block in which the points read the set.
    spreads: the block in which the set reads the points.
    points: m, the number of points.

    Errors: NoState from `start`, since it cannot decode; ValueError for a block with cross=False, and for `ctx.only`
    and `ctx.also`, since the points read all elements. Source: Lee et al., 2018, arXiv:1810.00825, equations 9 and 10;
    the points' initial values follow the authors' code.
    """

    def __init__(self, gathers: Layer, spreads: Layer, points: int):
        super().__init__()
        self.gathers, self.spreads = source_reader("gathers", gathers), source_reader("spreads", spreads)
        self.d, self.points = spreads.d, check_at_least("points", points, 1)
        self.point = nn.Parameter(nn.init.xavier_uniform_(torch.empty(points, gathers.d)))

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState("ISAB has no decoding state: its inducing points read the whole set at once. Use a causal layer")

    def forward(self, x: Float[Tensor, "B T C"], state: State | None, ctx: Context) -> Out:
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                "ISAB does not support ctx.only and ctx.also: its inducing points read the whole set. Pass one set "
                "per row, without ctx.only and ctx.also"
            )
        gathered = self.induce(x, ctx)
        spread_ctx = ctx.for_sublayer(1).replace(
            source=gathered.y, source_pos=self._point_context(ctx).pos, full=ctx.full
        )
        spread = self.spreads(x, None, spread_ctx)
        aux, stats = (
            {**add_prefix(0, getattr(gathered, n)), **add_prefix(1, getattr(spread, n))} for n in ("aux", "stats")
        )
        return Out(spread.y, None, aux, {}, stats)

    def induce(self, x: Float[Tensor, "B T C"], ctx: Context) -> Out:
        """Return H, the hidden states of the points after they read the set, [B m D]."""
        inner = self._point_context(ctx).replace(source=x, source_pos=ctx.pos, full=ctx.full)
        return self.gathers(self.point.expand(len(x), -1, -1), None, inner)

    def _point_context(self, ctx: Context) -> Context:
        """Return the context of the points; layers with the same number of points share it."""

        def make() -> Context:
            pos = torch.arange(self.points, device=ctx.pos.device).expand(len(ctx.pos), -1)
            return Context(pos, run=True, full=ctx.full, memo=empty_memo(), is_clean=True)

        return ctx.memo.get(make, "points", ctx.pos, self.points)


EXAMPLES = (
    lambda: ISAB(MAB(16, 2), MAB(16, 2), 3),
    lambda: ISAB(PublishedMAB(16, 2), PublishedMAB(16, 2, norm=nn.Identity), 3),
)
