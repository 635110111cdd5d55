"""Axial: a picture decoder with outer layers for finished rows and inner layers for the current row."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import check_at_least, check_optional_part, check_part
from kinformer.core.example import Example
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State, make_state_spec
from kinformer.core.position import Position
from kinformer.core.sublayer_names import add_prefix
from kinformer.core.token_positions import check_in_order


class AxialState(NamedTuple):
    """The decoding state of an `AxialDecoder`, with one entry for each place of the picture.

    pos: number of the place if its token was read, -1 otherwise.
    inputs: inputs x of the places.
    above: outputs of the outer layers for the row above each place.
    inner: state of the inner layers.
    """

    pos: Int[Tensor, "B S"]
    inputs: Float[Tensor, "B S D"]
    above: Float[Tensor, "B S D"]
    inner: State


class AxialDecoder(Layer):
    """A picture decoder: outer layers read all rows above a place, inner layers read the place's row.

    h = inner(down(outer(e + p)) + right(e) + p')

    Choose it for large pictures: every place depends on all places before it, and a query reads only about rows +
    columns keys.

    Here e_t embeds place t, and p and p' are its position embeddings. `down` passes each row the outer layers' output
    for the row above; the first row gets zeros. `right` passes each place the place to its left; the first place of a
    row gets zeros. So outer layers may read whole rows and all rows above. They are computed once per row, and only the
    inner layers once per place.

    Input t is the place before, x_t = e_(t-1), as a model passes it on. So x must have no positions added.

    outer: layers that read rows both ways (`Axial(shape, 1)`) and columns upwards (`Causal() & Axial(shape, 0)`).
    inner: layers that read the row of a place up to this place, `Causal() & Axial(shape, 1)`.
    columns: number of places in a row.
    position, inner_position: position embeddings p and p', with places counted row by row; None adds nothing.
    planes: number of rows of a plane, if the channels of a picture are planes stacked one below the other; None for one
        plane.
    encoder: layers that read all places of the finished planes above, both ways. Their output is added to the inputs of
        the outer and inner layers at every place of a plane.

    The decoding state stores the picture so far. Decoding computes the outer layers again at the start of each row.

    Errors: ValueError without `ctx.run`, and with `ctx.only` or `ctx.also`, since each row gets the outputs for the
    whole row above. Source: Ho et al., 2019, arXiv:1912.12180, section 3.2.
    """

    def __init__(
        self,
        outer: Layer,
        inner: Layer,
        columns: int,
        *,
        position: Position | None = None,
        inner_position: Position | None = None,
        planes: int | None = None,
        encoder: Layer | None = None,
    ):
        super().__init__()
        example = "layers, such as Stack([...])"
        self.outer, self.inner = check_part("outer", outer, Layer, example), check_part("inner", inner, Layer, example)
        self.encoder = check_optional_part("encoder", encoder, Layer, example)
        self.columns, self.position, self.beside = check_at_least("columns", columns, 1), position, inner_position
        self.plane = None if planes is None else check_at_least("planes", planes, 1) * columns
        if (self.plane is None) is not (encoder is None):
            raise ValueError(
                "planes= and encoder= must be given together: the encoder reads the planes above, and planes is the "
                "number of rows in one plane"
            )
        widths = {part.d for part in (outer, inner, encoder) if part is not None}
        if len(widths) > 1:
            raise ValueError(f"outer, inner and encoder must have the same d: got widths {sorted(widths)}")
        self.d = widths.pop()

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> AxialState:
        new = make_state_spec(self, batch, length, dtype, device)
        inner = self.inner.start(batch, length, dtype=new.dtype, device=new.device)
        return self._empty(batch, length, new.dtype, new.device)._replace(inner=inner)

    def _empty(self, batch: int, length: int, dtype: torch.dtype, device: torch.device) -> AxialState:
        size = length + -length % self.columns
        empty = torch.zeros(batch, size, self.d, dtype=dtype, device=device)
        return AxialState(torch.full((batch, size), -1, device=device), empty, empty.clone(), ())

    def forward(self, x: Float[Tensor, "B T D"], state: AxialState | None, ctx: Context) -> Out:
        check_in_order(ctx, "AxialDecoder")
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                "AxialDecoder does not support ctx.only or ctx.also: it passes the outputs of each whole row to "
                "the next row. Use Causal() & Axial(...)"
            )
        if not x.shape[1]:
            return self._report({}, self.inner(x, None if state is None else state.inner, ctx), state)
        reports: dict[str, Out] = {}
        picture = self._with_inputs(x, state, ctx)
        if torch.compiler.is_compiling() or state is None or bool((ctx.pos % self.columns == 0).any()):
            above = self._encode_above(picture.inputs.to(x.dtype), picture.pos, reports)
            picture = picture if above is None else picture._replace(above=above.to(picture.above.dtype))
        pos = ctx.pos.clamp_min(0)
        down = picture.above.gather(1, pos[..., None].expand_as(x)).to(x.dtype)
        right = torch.where((pos % self.columns == 0)[..., None], 0.0, x)
        out = self.inner(right + down + _positions(self.beside, ctx.pos), None if state is None else state.inner, ctx)
        return self._report(reports, out, None if state is None else picture)

    def _report(self, reports: dict[str, Out], out: Out, picture: AxialState | None) -> Out:
        """Return the Out of all layers: values per token of the inner layers, penalties and sums of all."""
        aux, stats = add_prefix("inner", out.aux), add_prefix("inner", out.stats)
        for name, report in reports.items():
            aux |= add_prefix(name, {key: value for key, value in report.aux.items() if not value.dim()})
            stats |= add_prefix(name, report.stats)
        return Out(out.y, None if picture is None else picture._replace(inner=out.state), aux, stats=stats)

    def _with_inputs(self, x: Float[Tensor, "B T D"], state: AxialState | None, ctx: Context) -> AxialState:
        """Return the state with the inputs of this call; a picture larger than announced makes it grow."""
        batch, length = ctx.pos.shape
        state = self._empty(batch, length, x.dtype, x.device) if state is None else state
        size = state.pos.shape[1]
        if not torch.compiler.is_compiling() and (max_pos := int(ctx.pos.max())) >= size:
            extra_columns = max_pos + 1 - size + -(max_pos + 1) % self.columns
            pos, wide = F.pad(state.pos, (0, extra_columns), value=-1), (0, 0, 0, extra_columns)
            state, size = (
                state._replace(pos=pos, inputs=F.pad(state.inputs, wide), above=F.pad(state.above, wide)),
                size + extra_columns,
            )
        to = torch.where(ctx.pos < 0, size, ctx.pos)  # padding goes to an extra place that is cut off below
        pos = F.pad(state.pos, (0, 1)).scatter(1, to, ctx.pos)[:, :size]
        inputs = F.pad(state.inputs, (0, 0, 0, 1)).scatter(1, to[..., None].expand_as(x), x.to(state.inputs.dtype))
        return state._replace(pos=pos, inputs=inputs[:, :size])

    def _encode_above(
        self, inputs: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"], reports: dict[str, Out]
    ) -> Tensor | None:
        """Return the outer layers' output for the row above each place, plus the encoder's for the planes above.

        An unfinished row passes nothing down. The result is None if no row is finished.
        """
        size, one_place = inputs.shape[1], (0, 0, 0, 1)
        e, is_read = F.pad(inputs[:, 1:], one_place), F.pad(pos[:, 1:] >= 0, (0, 1), value=False)
        done = is_read.unflatten(1, (-1, self.columns)).all(2)  # [B rows]
        if not torch.compiler.is_compiling():
            last = int(done.any(0).nonzero().max()) + 1 if bool(done.any()) else 0
            if not last:
                return None
            e, is_read, done = e[:, : last * self.columns], is_read[:, : last * self.columns], done[:, :last]
        at = torch.arange(e.shape[1], device=e.device).expand(len(e), -1)
        planes = self._planes(e, is_read, size, reports)
        ctx = Context(torch.where(is_read, at, -1), run=True, is_clean=True)
        reports["outer"] = out = self.outer(e + _positions(self.position, ctx.pos) + planes[:, : e.shape[1]], None, ctx)
        ctx.memo.settle()
        y = torch.where(done.repeat_interleave(self.columns, 1)[..., None], out.y, 0.0)
        down = F.pad(y, (0, 0, self.columns, size - e.shape[1]))[:, :size]
        if self.plane is not None:
            first = torch.arange(size, device=e.device) % self.plane < self.columns
            down = torch.where(first[:, None], 0.0, down)
        return down + planes

    def _planes(
        self, e: Float[Tensor, "B R D"], is_read: Bool[Tensor, "B R"], size: int, reports: dict[str, Out]
    ) -> Float[Tensor, "B S D"]:
        """Encode the sum of all planes above, at each of `size` places; 0 if a plane above is unfinished."""
        if self.encoder is None or self.plane is None:
            return e.new_zeros(len(e), size, self.d)
        over = size + -size % self.plane - e.shape[1]
        at = torch.arange(e.shape[1], device=e.device)
        x = torch.where(is_read[..., None], e + _positions(self.position, torch.where(is_read, at, -1)), 0.0)
        planes = F.pad(x, (0, 0, 0, over)).unflatten(1, (-1, self.plane))  # [B planes places D]
        done = F.pad(is_read, (0, over), value=False).unflatten(1, (-1, self.plane)).all(2)
        ready = F.pad(done.cumprod(1)[:, :-1], (1, 0)).bool()  # the first plane has no planes above
        planes_above = (planes.cumsum(1) - planes).flatten(0, 1)
        plane_ctx = Context(
            torch.arange(self.plane, device=e.device).expand(len(planes_above), -1), run=True, full=True
        )
        reports["encoder"] = out = self.encoder(planes_above, None, plane_ctx)
        plane_ctx.memo.settle()
        return torch.where(ready[..., None, None], out.y.view_as(planes), 0.0).flatten(1, 2)[:, :size]


def _positions(position: Position | None, pos: Int[Tensor, "B T"]) -> Tensor | float:
    return 0.0 if position is None else position(pos)


def _layers(d: int, *patterns: Any) -> Layer:
    return kf.Stack(
        [kf.PreNorm(kf.Attention(kf.QKV(d, 2), kf.Softmax(pattern)), kf.MLP(d, 16)) for pattern in patterns]
    )


def _example() -> AxialDecoder:
    return AxialDecoder(
        _layers(16, kf.Block(4), kf.Causal() & kf.Strided(4)), _layers(16, kf.Causal() & kf.Block(4)), 4
    )


def _of_planes() -> AxialDecoder:
    rows, up = kf.Axial((3, 2, 3), 2), kf.Axial((3, 2, 3), 1)
    return AxialDecoder(
        _layers(16, rows, kf.Causal() & up), _layers(16, kf.Causal() & rows), 3, planes=2, encoder=_layers(16, rows, up)
    )


EXAMPLES = (_example, Example(_of_planes, shares={"encoder": "one encoder reads the planes above each plane"}))
