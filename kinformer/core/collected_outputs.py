"""Collected: what sublayers report, gathered in one place: aux, up, stats, taps and states."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from kinformer.core.layer import Below, Context, Layer, Out, State, Want, add_prefix, names_beneath


class Collected:
    """Calls sublayers one after the other, gathers what they report, and makes the Out of the whole.

    `call` reads a sublayer at its place. A stack hands what one sends up to the next (`rising`), a block to the block
    above. With `counts` [B T] (layers that repeat one block) reports are added up under their own names, values per
    token where they count; a penalty on parameters counts once.
    """

    def __init__(self, ctx: Context, state: State | None, *, rising: bool = False):
        self.ctx, self.old, self.rising = ctx, state, rising
        self.states: list[State] = []
        self.aux: dict[str, Tensor] = {}
        self.up: dict[str, Below] = {}
        self.stats: dict[str, Tensor] = {}
        self.taps: dict[str, Tensor] = {}

    def context(self, place: int) -> Context:
        """What the sublayer at `place` sees."""
        if self.rising:
            ctx = self.ctx.replace(below={**self.ctx.below, **self.up}) if self.up else self.ctx
            return ctx if not ctx.taps else ctx.replace(taps=names_beneath(place, ctx.taps))
        return self.ctx.for_sublayer(place)

    def call(
        self, place: int, layer: Callable[..., Out], x: Tensor, *, counts: Bool[Tensor, "B T"] | None = None
    ) -> Out:
        """Read one sublayer and keep what it reports."""
        ctx = self.context(place)
        out = layer(x, None if self.old is None else self.old[place], ctx)
        self.states.append(out.state)
        if self.ctx.taps:
            inner = {f"{place}": out.y, f"{place}.input": x, **add_prefix(place, out.taps)}
            self.taps |= {name: value for name, value in inner.items() if name in self.ctx.taps}
        if out.up:
            self.up |= out.up if self.rising else add_prefix(place, out.up)
        if counts is not None:
            self.aux, self.stats = add_aux(self.aux, out.aux, counts), add_stats(self.stats, out.stats)
        elif out.aux or out.stats:  # most layers report nothing, and a step of decoding is short
            self.aux |= add_prefix(place, out.aux)
            self.stats |= add_prefix(place, out.stats)
        return out

    def remember(self, place: int, layer: Callable[..., Out], x: Tensor) -> Out:
        """Bring a sublayer's state up to date; its y is not wanted, so x stands for it."""
        old = None if self.old is None else self.old[place]
        self.states.append(layer(x, old, self.context(place).replace(remember=True)).state)
        return Out(x)

    def skip(self, state: State | None) -> None:
        """A sublayer that is not read: its state stays, or is this one."""
        self.states.append(state)

    def make_out(self, y: Tensor) -> Out:
        """The Out of the whole."""
        state = None if self.old is None else tuple(self.states)
        return Out(y, state, self.aux, self.up, self.stats, self.taps)


def add_aux(sums: Mapping[str, Tensor], aux: Mapping[str, Tensor], counts: Bool[Tensor, "B T"]) -> dict[str, Tensor]:
    """Aux of the steps so far and of one more: values per token added where they count, penalties [] taken once."""
    total = dict(sums)
    for name, value in aux.items():
        counted = torch.where(counts, value, 0.0) if value.dim() else value
        total[name] = total[name] + counted if value.dim() and name in total else counted
    return total


def add_stats(sums: Mapping[str, Tensor], stats: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stats of the steps so far and of one more."""
    return {**sums, **{name: sums[name] + value if name in sums else value for name, value in stats.items()}}


def concatenate_outs(pieces: Sequence[Out]) -> Out:
    """The Out of a row that was read in pieces, one after the other: values cut like the row are put together.

    A penalty on parameters [] is the same in every piece and counts once; stats are added; state and `up` are the last.
    """
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first
    aux = {n: torch.cat([p.aux[n] for p in pieces], 1) if value.dim() else value for n, value in first.aux.items()}
    stats = {n: torch.stack([p.stats[n] for p in pieces]).sum(0) for n in first.stats}
    taps = {n: torch.cat([p.taps[n] for p in pieces], 1) for n in first.taps}
    return Out(torch.cat([p.y for p in pieces], 1), last.state, aux, last.up, stats, taps)


def wants_and_sends(layers: Iterable[Layer], *, rising: bool) -> tuple[tuple[Want, ...], frozenset[str]]:
    """What a sequence of sublayers wants from outside and sends up.

    In a block (not `rising`) each sublayer has a place of its own. In a stack a want is met by any block beneath;
    what may be missing in the lowest block may not be missing above it, where nobody beneath sends it.
    """
    wants: dict[str, bool] = {}
    sent: set[str] = set()
    for n, layer in enumerate(layers):
        for want in layer.wants:
            name = want.name if rising else f"{n}.{want.name}"
            if not (rising and is_sent(name, sent)):
                wants[name] = wants.get(name, True) and want.optional and not (rising and n)
        sent |= layer.sends if rising else set(add_prefix(n, dict.fromkeys(layer.sends)))
    return tuple(Want(name, optional) for name, optional in wants.items()), frozenset(sent)


def is_sent(name: str, sent: Iterable[str]) -> bool:
    """Does what was sent hold this name, at its place or without one?"""
    return not {name, name.rpartition(".")[2]}.isdisjoint(sent)
