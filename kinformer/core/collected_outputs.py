"""Collected: makes one Out from the Outs of sublayers (outputs, penalties, statistics, states)."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from kinformer.core.layer import Below, Context, Layer, Out, State, Want
from kinformer.core.sublayer_names import add_prefix, names_beneath


class Collected:
    """A helper of blocks and stacks: it calls sublayers in order and makes one Out from their Outs.

    `call` runs the sublayer at a place (its number). Its report names get the place as a prefix. With `counts` [B T],
    for layers that repeat one block, reports are instead summed under their own names. Per-token values are then added
    where `counts` is True, and a penalty on parameters counts once.

    ctx: the context of the whole block or stack.
    state: the decoding states of the sublayers, or None.
    rising: if True (a stack), values that a sublayer passes on (`Out.up`) go to the next sublayers. If False (a block),
        they go to the same sublayer of later blocks.
    """

    def __init__(self, ctx: Context, state: State | None, *, rising: bool = False):
        self.ctx, self.old, self.rising = ctx, state, rising
        self.states: list[State] = []
        self.aux: dict[str, Tensor] = {}
        self.up: dict[str, Below] = {}
        self.stats: dict[str, Tensor] = {}
        self.taps: dict[str, Tensor] = {}

    def context(self, place: int) -> Context:
        """Return the context of the sublayer at `place`."""
        if self.rising:
            ctx = self.ctx.replace(below={**self.ctx.below, **self.up}) if self.up else self.ctx
            return ctx if not ctx.taps else ctx.replace(taps=names_beneath(place, ctx.taps))
        return self.ctx.for_sublayer(place)

    def call(
        self, place: int, layer: Callable[..., Out], x: Tensor, *, counts: Bool[Tensor, "B T"] | None = None
    ) -> Out:
        """Call the sublayer at `place` with x, keep its reports, and return its Out."""
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
        elif out.aux or out.stats:  # most layers report nothing; skipping them shortens each decoding step
            self.aux |= add_prefix(place, out.aux)
            self.stats |= add_prefix(place, out.stats)
        return out

    def remember(self, place: int, layer: Callable[..., Out], x: Tensor) -> Out:
        """Update the decoding state of a sublayer whose output is not needed; the returned Out holds x."""
        old = None if self.old is None else self.old[place]
        self.states.append(layer(x, old, self.context(place).replace(remember=True)).state)
        return Out(x)

    def skip(self, state: State | None) -> None:
        """Keep `state` as the next decoding state of a sublayer that is not called."""
        self.states.append(state)

    def make_out(self, y: Tensor) -> Out:
        """Return the Out of the whole block or stack, with output y."""
        state = None if self.old is None else tuple(self.states)
        return Out(y, state, self.aux, self.up, self.stats, self.taps)


def add_aux(sums: Mapping[str, Tensor], aux: Mapping[str, Tensor], counts: Bool[Tensor, "B T"]) -> dict[str, Tensor]:
    """Add reported values (`Out.aux`) of one more pass through a repeated block to their sums.

    Per-token values are added where `counts` is True. A penalty on parameters [] is the same in every pass and counts
    once.

    sums: the sums over the passes so far.
    aux: the values of the next pass.
    counts: True at the tokens that count, [B T].
    """
    total = dict(sums)
    for name, value in aux.items():
        counted = torch.where(counts, value, 0.0) if value.dim() else value
        total[name] = total[name] + counted if value.dim() and name in total else counted
    return total


def add_stats(sums: Mapping[str, Tensor], stats: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add the stats (`Out.stats`) of one more pass through a repeated block to their sums.

    sums: the sums over the passes so far.
    stats: the stats of the next pass.
    """
    return {**sums, **{name: sums[name] + value if name in sums else value for name, value in stats.items()}}


def concatenate_outs(pieces: Sequence[Out]) -> Out:
    """Return the Out of a whole row from the Outs of its consecutive pieces.

    Per-token values are concatenated. A penalty on parameters [] is the same in every piece and counts once. Stats are
    added; the decoding state and the values for later layers (`up`) are taken from the last piece.

    pieces: the Outs, in order.
    """
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first
    aux = {n: torch.cat([p.aux[n] for p in pieces], 1) if value.dim() else value for n, value in first.aux.items()}
    stats = {n: torch.stack([p.stats[n] for p in pieces]).sum(0) for n in first.stats}
    taps = {n: torch.cat([p.taps[n] for p in pieces], 1) for n in first.taps}
    return Out(torch.cat([p.y for p in pieces], 1), last.state, aux, last.up, stats, taps)


def wants_and_sends(layers: Iterable[Layer], *, rising: bool) -> tuple[tuple[Want, ...], frozenset[str]]:
    """Return the names of values that sublayers need from outside, and of values that they pass on.

    In a block (not `rising`) the names are prefixed by the number of their sublayer. In a stack any earlier block can
    provide a value that a later one needs. An optional value stays optional only in the first block.

    layers: the sublayers.
    rising: True for a stack, False for a block.
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
    """Return True if `sent` contains the name of a value, with or without its sublayer number.

    name: the name, such as "0.scores".
    sent: the names of values that earlier layers pass on.
    """
    return not {name, name.rpartition(".")[2]}.isdisjoint(sent)
