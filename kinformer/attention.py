"""Attention, the layer: projection, mechanism and aggregation, for a sequence that reads itself or another one."""

import dataclasses

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from kinformer.aggregations.linear import Concat, Linear
from kinformer.core.aggregation import Aggregation
from kinformer.core.layer import Context, Layer, Out, State, joined
from kinformer.core.mechanism import Mechanism
from kinformer.core.memory import Memory
from kinformer.core.projection import Projection, by_head
from kinformer.core.read import Read
from kinformer.core.state import KV, detach
from kinformer.execute import attend
from kinformer.patterns.full import Full
from kinformer.positions.rotary import Rotary
from kinformer.projections.qkv import QKV


class Attention(Layer):
    """Multi-head attention.

    Queries, keys and values per head (projection), how queries read keys (mechanism), heads into one (aggregation).

    `d` is the width, `heads` the query heads, `key_heads` the heads of keys and values (grouped or multi-query when
    fewer), `head_dim` the width of a head (d / heads unless given), `rotary` turns queries and keys by position,
    `bias` gives all projections biases, `out=False` returns the concatenated heads. `cross=True` reads `ctx.source`:
    a call with a source projects it into the state, later calls without one read it there. `memory` widens what
    training reads; in eval mode `start` makes a cache of keys instead, where that says the same.

    Source: Vaswani et al., 2017, arXiv:1706.03762; head_dim apart from d / heads: Bhojanapalli et al., 2020,
    arXiv:2002.07028.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        mechanism: Mechanism,
        *,
        head_dim: int | None = None,
        key_heads: int | None = None,
        projection: Projection | None = None,
        rotary: Rotary | None = None,
        memory: Memory | None = None,
        aggregation: Aggregation | None = None,
        cross: bool = False,
        bias: bool = True,
        out: bool = True,
    ):
        super().__init__()
        if cross and memory is not None:
            raise ValueError(
                "cross-attention reads a source and keeps no memory of its own; drop memory= or cross=True"
            )
        self.d, self.heads, self.cross = d, heads, cross
        self.projection = projection or QKV(d, heads, key_heads=key_heads, head_dim=head_dim, rotary=rotary, bias=bias)
        self.mechanism, self.memory = mechanism, memory
        k_dim, v_dim = self.projection.k_dim, self.projection.v_dim
        self.aggregation = aggregation or (Linear(heads, v_dim, d, bias=bias) if out else Concat())
        self.side_sizes = dict(mechanism.sides(k_dim, v_dim))
        self.side = nn.Linear(d, heads * sum(self.side_sizes.values())) if self.side_sizes else None

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> State:
        p = self.projection
        if self.cross:
            return KV.empty(batch, p.key_heads, 0, p.k_dim, p.v_dim, dtype=dtype, device=device)
        if self.memory is not None and (self.training or not self.memory.cached):
            return self.memory.start(batch, length, self.d, dtype=dtype, device=device)
        return self.mechanism.start(batch, length, p.key_heads, p.k_dim, p.v_dim, dtype=dtype, device=device)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        if self.cross:
            return self._across(x, state, ctx)
        if self.memory is not None and isinstance(state, self.memory.kind):
            return self._with_memory(self.memory, x, state, ctx)
        if self.memory is not None and state is None and not self.memory.cached:
            fresh = self.memory.start(len(x), x.shape[1], self.d, dtype=x.dtype, device=x.device)
            return self._with_memory(self.memory, x, fresh, ctx)._replace(state=None)
        k, v = self.projection.keys(x, ctx.pos)
        return self._read(x, k, v, ctx.pos, state, ctx)

    def _read(self, x: Tensor, k: Tensor, v: Tensor, k_pos: Tensor, state: State | None, ctx: Context) -> Out:
        out = self.mechanism(self.projection.queries(x, ctx.pos), k, v, k_pos, state, ctx, self._sides(x))
        return out._replace(y=self.aggregation(out.y.y))

    def _sides(self, x: Tensor) -> dict[str, Tensor]:
        if self.side is None:
            return {}
        numbers = by_head(self.side(x), self.heads).split(list(self.side_sizes.values()), -1)
        return dict(zip(self.side_sizes, numbers, strict=True))

    def _across(self, x: Tensor, state: KV | None, ctx: Context) -> Out:
        if ctx.source is not None and ctx.source_pos is not None:
            kept = KV(*self.projection.keys(ctx.source, ctx.source_pos), ctx.source_pos, ctx.pos.new_zeros(len(x)))
        elif state is not None and state.pos.shape[1]:
            kept = state
        else:
            raise ValueError(
                "cross-attention got no source; pass Context(source=..., source_pos=...) in the first call"
            )
        own = dataclasses.replace(ctx, only=None, also=None)
        out = self._read(x, kept.k, kept.v, kept.pos, None, own)
        return out._replace(state=None if state is None else kept)

    def _with_memory(self, memory: Memory, x: Tensor, state: State, ctx: Context) -> Out:
        cuts = [0, *memory.cuts(ctx.pos), x.shape[1]]
        pieces = []
        for lo, hi in zip(cuts[:-1], cuts[1:], strict=True):
            piece = self._remember_and_read(memory, x[:, lo:hi], state, dataclasses.replace(ctx, pos=ctx.pos[:, lo:hi]))
            state = piece.state
            pieces.append(piece)
        return joined(pieces)._replace(state=detach(state))

    def _remember_and_read(self, memory: Memory, x: Tensor, state: State, ctx: Context) -> Out:
        source, source_pos, state, aux = memory(x, state, ctx, self._content)
        q, sides = self.projection.queries(x, ctx.pos), self._sides(x)
        k, v = self.projection.keys(source, source_pos)
        out = self.mechanism(q, k, v, source_pos, None, ctx, sides)
        state = memory.after(state, lambda: self.mechanism.mass(q, k, source_pos, out.y, ctx, sides))
        return out._replace(y=self.aggregation(out.y.y), state=state, aux={**out.aux, **aux})

    def _content(
        self, x: Float[Tensor, "B T D"], source: Float[Tensor, "B S D"], real: Bool[Tensor, "B S"] | None = None
    ) -> Read:
        """This layer's attention by content alone, with detached weights: what a reconstruction loss compares."""
        weights = {name: weight.detach() for name, weight in self.projection.named_parameters()}
        origin, source_origin = _zeros(x), _zeros(source)
        q, k, v = functional_call(self.projection, weights, (x, origin, source, source_origin))
        k_pos = source_origin if real is None else source_origin.masked_fill(~real, -1)
        return attend(q, k, v, q_pos=origin[:, None], k_pos=k_pos[:, None], pattern=Full())


def _zeros(x: Float[Tensor, "B T D"]) -> Int[Tensor, "B T"]:
    return torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
