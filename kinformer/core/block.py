"""Block: sublayers, each joined to the residual stream."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.layer import Context, Layer, Out, State, prefixed, under
from kinformer.core.state import leaves


class Join(nn.Module, ABC):
    """How a sublayer f and a norm meet the stream x: x + f(norm(x)), norm(x + f(x)), a gate."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "B T D"], f: Callable[[Tensor], Out], norm: nn.Module) -> Out: ...


class Block(Layer):
    """Sublayers in order, each with a norm and a join of its own.

    Sublayer i sees `below` by its place and sends up under "i.".
    """

    def __init__(self, layers: Sequence[Layer], joins: Sequence[Join], norms: Sequence[nn.Module]):
        super().__init__()
        self.d = layers[0].d
        widths = {layer.d for layer in layers}
        if len(widths) > 1:
            raise ValueError(f"the sublayers of a block have widths {sorted(widths)}; give all the same d")
        self.layers, self.joins, self.norms = nn.ModuleList(layers), nn.ModuleList(joins), nn.ModuleList(norms)

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> State:
        return tuple(layer.start(batch, length, dtype=dtype, device=device) for layer in self.layers)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        states: list[State] = []
        aux: dict[str, Tensor] = {}
        up: dict[str, Tensor] = {}
        stats: dict[str, Tensor] = {}
        for n, (layer, join, norm) in enumerate(zip(self.layers, self.joins, self.norms, strict=True)):
            old = None if state is None else state[n]
            seen = _seen(ctx, n)
            out = join(x, lambda z, layer=layer, old=old, seen=seen: layer(z, old, seen), norm)
            x = out.y
            states.append(out.state)
            aux |= prefixed(n, out.aux)
            up |= prefixed(n, out.up)
            stats |= prefixed(n, out.stats)
        return Out(x, None if state is None else tuple(states), aux, up, stats)

    def remember(self, x: Float[Tensor, "B T D"], state: State, ctx: Context) -> State:
        """The state after x: sublayers are computed up to the last one that has a state, which remembers its input."""
        last = max((n for n, old in enumerate(state) if leaves(old)), default=-1)
        states = list(state)
        for n, (layer, join, norm) in enumerate(zip(self.layers, self.joins, self.norms, strict=True)):
            if n > last:
                break
            read = layer if n < last else functools.partial(_remembered, layer)
            old, seen = state[n], _seen(ctx, n)
            out = join(x, lambda z, read=read, old=old, seen=seen: read(z, old, seen), norm)
            x, states[n] = out.y, out.state
        return tuple(states)


def _remembered(layer: Layer, x: Tensor, state: State, ctx: Context) -> Out:
    return Out(x, layer.remember(x, state, ctx))


def _seen(ctx: Context, n: int) -> Context:
    # built by hand: dataclasses.replace on every sublayer costs more than small layers do
    below = under(n, ctx.below) if ctx.below else ctx.below
    return Context(ctx.pos, ctx.run, ctx.only, ctx.also, ctx.source, ctx.source_pos, below)
