"""StepKeys: the keys and values of each step of a repeated block, recomputed only for changed tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.heads import Keys
from kinformer.core.layer import Context
from kinformer.core.module_hooks import is_plain_linear
from kinformer.core.projection import by_head
from kinformer.core.residual_block import ResidualBlock
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import NormLast
from kinformer.nn.depth.selected_tokens import MakeKeys, SelectedTokens, input_of, source_keys
from kinformer.nn.depth.universal import Universal
from kinformer.nn.positions.timing import Timing
from kinformer.nn.projections.qkv import QKV


class StepKeys:
    """The keys and values that a step of a repeated block reads, from the sequence and from the source.

    `ACT` (adaptive computation time) makes one for each call. The keys of the sequence include halted tokens, which
    take no more steps. A halted token keeps its state s, and each later step adds another timing to it. `Timing` is a
    sum of sinusoids of the position p and sinusoids of the step n, so with a matrix W of keys and values

        W (s + timing(p, n)) = W (s + timing(p, 0)) + W (timing(0, n) - timing(0, 0))

    The first term is cached and recomputed only for changed states. With other projections and timings the keys of all
    tokens are computed at each step.

    universal: the layer with the repeated block.
    ctx: context of the call.
    states: the states of all tokens, if a step may leave some unchanged; None if all states of a row keep changing.
    """

    def __init__(self, universal: Universal, ctx: Context, states: Float[Tensor, "B T D"] | None):
        assert isinstance(universal.block, ResidualBlock) and isinstance(universal.block.layers[0], Attention)
        self.universal, self.ctx, self.block, self.first = universal, ctx, universal.block, universal.block.layers[0]
        self.waves = _waves(universal, ctx)
        # a wrapper that shards or recomputes the block replaces this method on the instance
        self.apart = "read_apart" not in vars(self.block)
        linear = states is not None and self.apart and self._is_linear()
        # one matrix for keys and one for values, so that their gradients are never joined in one matrix
        self.matrices = [self.first.projection.matrix(name) for name in ("k", "v")] if linear else []
        self.later = [F.linear(self.waves.steps, matrix) for matrix, _ in self.matrices] if self.waves else []
        self.products: list[Tensor] = []  # [B*T N] for each matrix; 0 in rows that no token reads any more
        self.states = None if states is None or linear else states.flatten(0, 1)  # [B*T D]
        self.source: dict[Attention, Keys | None] = {}

    def change(self, at: Int[Tensor, " n"], states: Float[Tensor, "n D"]) -> None:
        """Replace the states of the tokens at the indices `at`, ascending, of the flattened batch."""
        if self.states is not None:
            self.states = self.states.index_copy(0, at, states)
        if self.matrices:
            timed = states if self.waves is None else states + self.waves.places[at]
            products = [F.linear(timed, *matrix) for matrix in self.matrices]
            old = self.products or [new.new_zeros(self.ctx.pos.numel(), new.shape[1]) for new in products]
            self.products = [before.index_copy(0, at, new) for before, new in zip(old, products, strict=True)]

    def add_timing(self, n: int, at: Int[Tensor, " n"], states: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
        """Return the input of step n, states plus timing, for tokens at indices of the flattened batch."""
        if self.waves is None:
            return self.universal.add_timing(states[None], n, self.ctx.position_ids.flatten()[None, at])[0]
        return states + (self.waves.places[at] + self.waves.steps[n])

    def at_step(self, n: int, tokens: SelectedTokens, timed: Float[Tensor, "m D"]) -> MakeKeys:
        """Return a function that makes the keys of step n; it does so even after a later step.

        n: index of the step.
        tokens: the tokens that step n computes.
        timed: input of step n, with its timing, of every token in `tokens.rows`; used only if the constructor's
            `states` is None.
        """
        states, products = self.states, self.products

        def make(attention: Attention) -> Keys | None:
            if attention.cross:
                return self._of_source(attention)
            if products:
                return self._of_products(n, products, tokens)
            if states is None:
                return self._keys(timed.unflatten(0, (len(tokens.rows), self.ctx.pos.shape[1])), tokens)
            places = self.ctx.position_ids[tokens.rows]
            return self._keys(self.universal.add_timing(self._of_rows(states, tokens), n, places), tokens)

        return make

    def _of_rows(self, x: Float[Tensor, "BT N"], tokens: SelectedTokens) -> Float[Tensor, "R T N"]:
        """Select the rows whose keys are computed."""
        by_row = x.unflatten(0, self.ctx.pos.shape)
        return by_row if len(tokens.rows) == len(by_row) else by_row.index_select(0, tokens.rows)

    def _keys(self, timed: Float[Tensor, "R T D"], tokens: SelectedTokens) -> Keys:
        pos = self._pos(tokens)
        z = input_of(self.block.joins[0], self.block.norms[0], timed)
        return self.first.projection.keys(z, pos[:, 0])._replace(pos=pos)

    def _of_products(self, n: int, products: Sequence[Tensor], tokens: SelectedTokens) -> Keys:
        projection = self.first.projection
        values = [self._of_rows(product, tokens) for product in products]
        if self.later:
            values = [value + later[n] for value, later in zip(values, self.later, strict=True)]
        k, v = map(by_head, values, (projection.key_heads, projection.value_heads))
        return Keys(k, v, self._pos(tokens))

    def _pos(self, tokens: SelectedTokens) -> Int[Tensor, "R 1 T"]:
        return tokens.memo.get(lambda: self.ctx.by_head[tokens.rows], "keys")

    def _of_source(self, attention: Attention) -> Keys | None:
        """Return the keys of the source, computed once unless a wrapper recomputes the block; None if in a state."""
        if not self.apart or attention not in self.source:
            self.source[attention] = source_keys(attention, self.ctx)
        return self.source[attention]

    def _is_linear(self) -> bool:
        projection, timing = self.first.projection, self.universal.timing
        return (
            isinstance(self.block.joins[0], NormLast)
            and type(projection) is QKV
            and projection.rotation is None
            and is_plain_linear(projection.qkv)
            and (timing is None or type(timing) is Timing)
        )


class _Waves(NamedTuple):
    """A timing as two terms: the timing of each place at step 0, and the difference of each step to step 0."""

    places: Float[Tensor, "BT D"]
    steps: Float[Tensor, "N D"]


def _waves(universal: Universal, ctx: Context) -> _Waves | None:
    timing = universal.timing
    if type(timing) is not Timing:
        return None
    steps = timing.waves(torch.arange(universal.steps, device=ctx.pos.device)[None] + timing.first)[0]
    return _Waves(timing(ctx.position_ids, 0).flatten(0, 1), steps - steps[:1])
