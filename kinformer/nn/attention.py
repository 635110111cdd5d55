"""Attention: a layer of a projection, a mechanism and an aggregation."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from kinformer.attend import attend
from kinformer.core.aggregation import Aggregation
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.checks import check_optional_part, check_part
from kinformer.core.collected_outputs import concatenate_outs
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.function_transforms import are_plain_tensors
from kinformer.core.heads import Keys, LazyProjection, Queries
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State, make_state_spec
from kinformer.core.mechanism import Mechanism
from kinformer.core.memory import Memory, is_of_own_segment
from kinformer.core.module_hooks import is_plain_linear
from kinformer.core.pattern import Not, Pattern
from kinformer.core.patterns.segment import Segment
from kinformer.core.projection import Projection, by_head
from kinformer.nn.aggregations.out_projection import OutProjection


class Attention(Layer):
    """Multi-head attention layer, for self-attention or cross-attention.

        Attention(QKV(d, heads), Softmax(Causal()))(x).y

    projection: map to queries, keys and values per head; it also sets the width, the heads and their sizes.
    mechanism: rule that determines how queries read keys. The layer also makes the extra projections that it needs.
    memory: part that keeps hidden states of the past, which queries also read in training. In eval mode `start` makes a
        cache of keys instead, if the result is the same.
    aggregation: combination of heads into one vector; an `OutProjection` by default.
    cross: True for cross-attention, which reads `ctx.source`. In decoding, a call with a source projects it into the
        decoding state, and later calls without a source use that.

    Errors: ValueError if a part has the wrong kind, or if a memory keeps other keys than the mechanism reads. The
    memory is checked again after `memory` or `mechanism` changes.

    Source: Vaswani et al., 2017, arXiv:1706.03762.
    """

    def __init__(
        self,
        projection: Projection,
        mechanism: Mechanism,
        *,
        memory: Memory | None = None,
        aggregation: Aggregation | None = None,
        cross: bool = False,
    ):
        super().__init__()
        check_part("projection", projection, Projection, "a projection, such as QKV(d, heads)")
        check_part("mechanism", mechanism, Mechanism, "a mechanism, such as Softmax(Causal())")
        check_optional_part("memory", memory, Memory, "a memory, such as Hidden(64, 64)")
        check_optional_part(
            "aggregation", aggregation, Aggregation, "an aggregation, such as OutProjection(heads, v_dim, d)"
        )
        self.d, self.cross, self.sizes = projection.d, cross, projection.sizes(cross)
        self.projection, self.mechanism, self.memory = projection, mechanism, memory
        self._agreed: tuple[Pattern, Pattern] | None = None
        self._check_memory()
        sizes = self.sizes
        self.aggregation = aggregation or OutProjection(sizes.heads, sizes.v_dim, self.d, bias=projection.bias)
        self.extras, self.key_extras = dict(mechanism.query_extras(sizes)), dict(mechanism.key_extras(sizes))
        self.side = _matrix(projection, self.extras, sizes.heads)
        self.key_side = _matrix(projection, self.key_extras, sizes.key_heads)
        self.wants, self.sends = mechanism.wants, mechanism.sends
        self.has_source_state = cross and not mechanism.needs_queries
        self._merges = isinstance(mechanism, KeyValueMechanism) and mechanism.merges and mechanism.lse

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        new = make_state_spec(self, batch, length, dtype, device)
        self._check_memory()
        if self.memory is not None and (self.training or not self.memory.cached):
            return self.memory.start(new, self.d)
        return self.mechanism.start(new, self.sizes)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        if x.shape[2] != self.d:
            raise ValueError(f"Attention got x of shape {list(x.shape)}, expected width d={self.d}")
        memory = self.memory
        if ctx.remember and self.mechanism.needs_queries:
            ctx = ctx.replace(remember=False)
        if memory is not None and (
            isinstance(state, memory.kind) or (state is None and (self.training or not memory.cached))
        ):
            # a memory may need the received attention, so the layer reads keys even if y is not needed
            return self._with_memory(memory, x, state, ctx.replace(remember=False) if ctx.remember else ctx)
        queries, keys = self._project(x, state, ctx)
        out = self.mechanism(queries, keys, state, ctx)
        return Out(None if ctx.remember else self.aggregation(out.y.y, ctx.pos), *out[1:])

    def _project(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> tuple[Queries, Keys | None]:
        """Return the queries of x, and the keys of x or of the source, if there is one."""
        project = self.projection
        if not self.cross and not ctx.remember:
            few = None if self.key_extras else self.mechanism.project_keys(project, x, ctx)
            if few is not None:
                return self._with_query_extras(project.queries(x, ctx.pos), x, ctx), few
            queries, keys = project.queries_and_keys(x, ctx.pos)
            if state is None and self._is_lazy(x, ctx):
                queries, keys = (
                    self._with_query_extras(queries, None, ctx),
                    self._with_key_extras(keys, None, ctx.by_head, ctx.labels),
                )
                asks = _lazy_projections(x, self.side, self.extras, self.sizes.heads)
                tells = _lazy_projections(x, self.key_side, self.key_extras, self.sizes.key_heads)
                return queries._replace(lazy=asks), keys._replace(lazy=tells)
            return self._with_query_extras(queries, x, ctx), self._with_key_extras(keys, x, ctx.by_head, ctx.labels)
        if ctx.remember:  # no query is needed: placeholders cost nothing
            nobody = x.new_zeros(()).expand(x.shape[0], self.sizes.heads, x.shape[1], self.sizes.k_dim)
            queries = Queries(nobody, ctx.by_head, labels=ctx.labels)
        else:
            queries = self._with_query_extras(project.queries(x, ctx.pos), x, ctx)
        source, labels = (ctx.source, {}) if self.cross else (x, ctx.labels)
        if source is None:
            return queries, None
        pos = ctx.source_by_head if self.cross else ctx.by_head
        return queries, self._with_key_extras(project.keys(source, pos[:, 0]), source, pos, labels)

    def _is_lazy(self, x: Tensor, ctx: Context) -> bool:
        """Return whether the mechanism gets projections lazily."""
        matrices = (matrix for matrix in (self.side, self.key_side) if matrix is not None)
        if (
            torch.compiler.is_compiling()
            or not are_plain_tensors(x, ctx.pos)
            or not all(map(is_plain_linear, matrices))
        ):
            return False
        return self.mechanism.wants_lazy_extras(self.sizes, ctx)

    def _with_query_extras(self, queries: Queries, x: Float[Tensor, "B T D"] | None, ctx: Context) -> Queries:
        """Add the extras of x (unless x is None), the context's labels and its positions to queries.

        The memo recognises positions by their tensor object, so every layer must pass on the same object.
        """
        pos = ctx.by_head if queries.pos.shape[1] == 1 else queries.pos
        extras = queries.extras
        if self.side is not None and x is not None:
            extras = {**extras, **extras_by_name(self.side(x), self.extras, self.sizes.heads)}
        return Queries(queries.q, pos, extras, ctx.labels, queries.head, queries.tags)

    def _with_key_extras(
        self, keys: Keys, x: Float[Tensor, "B S D"] | None, pos: Int[Tensor, "B 1 S"], labels: Mapping[str, Tensor]
    ) -> Keys:
        """Add the extras of x, the labels and the positions to keys, in a new object.

        `_replace` is slow in a decoding step.
        """
        extras = keys.extras
        if self.key_side is not None and x is not None:
            extras = {**extras, **extras_by_name(self.key_side(x), self.key_extras, self.sizes.key_heads)}
        pos = pos if keys.pos.shape[1] == 1 else keys.pos
        return Keys(keys.k, keys.v, pos, extras, labels, keys.tags, not self.cross)

    def _with_memory(self, memory: Memory, x: Tensor, state: State | None, ctx: Context) -> Out:
        new = make_state_spec(self, len(x), x.shape[1], x.dtype, x.device)
        if state is None:
            self._check_memory()
        old = memory.make_state(new, self.d, ctx) if state is None else state
        if torch.compiler.is_compiling() and memory.cached and self._merges:
            out = self._read_uncut(memory, x, old, ctx)
        else:
            pieces, cuts = [], [0, *memory.segment_cuts(ctx), x.shape[1]]
            for lo, hi in zip(cuts[:-1], cuts[1:], strict=True):
                whole = len(cuts) == 2
                piece, piece_ctx = (x, ctx) if whole else (x[:, lo:hi], ctx.columns(lo, hi))
                pieces.append(self._remember_and_read(memory, piece, old, piece_ctx))
                old = pieces[-1].state
            out = concatenate_outs(pieces)
        return out._replace(state=None) if state is None else out

    def _remember_and_read(self, memory: Memory, x: Tensor, state: State, ctx: Context) -> Out:
        source, source_pos, state, aux = memory(x, state, ctx, self._read_content)
        is_own_segment = is_of_own_segment(source_pos, ctx, memory.length)
        source = torch.where(is_own_segment[..., None], source, source.detach())
        queries = self._with_query_extras(self.projection.queries(x, ctx.pos), x, ctx)
        keys = self._memory_keys(source, source_pos, ctx)
        out = self.mechanism(queries, keys, None, ctx)
        state = memory.next_state(state, ctx, lambda: self.mechanism.received_attention(queries, keys, out.y, ctx))
        return out._replace(y=self.aggregation(out.y.y, ctx.pos), state=state, aux={**out.aux, **aux})

    def _read_uncut(self, memory: Memory, x: Tensor, state: State, ctx: Context) -> Out:
        """Read a row that may not be cut: each query reads its segment, and earlier keys without gradients."""
        source, source_pos, state, aux = memory(x, state, ctx, self._read_content)
        queries = self._with_query_extras(self.projection.queries(x, ctx.pos), x, ctx)
        own_segment = Segment(memory.length, 0)
        outs = []
        for part, states in ((own_segment, source), (Not(own_segment), source.detach())):  # graphs do not support ~
            part_ctx = ctx.replace(only=part if ctx.only is None else ctx.only & part)
            outs.append(self.mechanism(queries, self._memory_keys(states, source_pos, ctx), None, part_ctx))
        y = self.aggregation(merge(*(out.y for out in outs)).y, ctx.pos)
        return outs[0]._replace(y=y, state=state, aux={**outs[0].aux, **aux})

    def _check_memory(self) -> None:
        """Raise ValueError if the memory and the mechanism's pattern disagree, also after a later change."""
        if self.memory is None or torch.compiler.is_compiling():
            return
        mechanism = _fit_for_memory(self.mechanism, self.cross)
        limits = self.memory.reads, mechanism.pattern
        if limits != self._agreed:  # checking every pair of a segment takes about ten milliseconds
            self.memory.check_pattern(mechanism.pattern, self.projection.heads, self.d)
            self._agreed = limits

    def _memory_keys(self, source: Tensor, pos: Tensor, ctx: Context) -> Keys:
        return self._with_key_extras(self.projection.keys(source, pos), source, ctx.memo.by_head(pos), {})

    def _read_content(
        self, x: Float[Tensor, "B T D"], source: Float[Tensor, "B S D"], real: Bool[Tensor, "B S"] | None = None
    ) -> AttentionOutput:
        """Return this layer's attention by content only, with detached weights, for reconstruction losses."""
        weights = {name: weight.detach().to(x.dtype) for name, weight in self.projection.named_parameters()}
        origin, source_origin = (torch.zeros(z.shape[:2], dtype=torch.long, device=z.device) for z in (x, source))
        queries, keys = functional_call(self.projection, weights, (x, origin, source, source_origin))
        k_pos = source_origin if real is None else source_origin.masked_fill(~real, -1)
        scale = getattr(self.mechanism, "scale", None)
        return attend(queries.q, keys.k, keys.v, q_pos=origin[:, None], k_pos=k_pos[:, None], scale=scale)


def _fit_for_memory(mechanism: Mechanism, cross: bool) -> KeyValueMechanism:
    if cross:
        raise ValueError(
            "memory= cannot be used with cross=True: cross-attention reads a source and keeps no memory of its own. "
            "Drop one of them"
        )
    if not isinstance(mechanism, KeyValueMechanism):
        name = type(mechanism).__name__
        raise ValueError(
            f"memory= has no effect with {name}, which reads only the keys of the call. Use Softmax, or drop memory="
        )
    if mechanism.sends:
        raise ValueError(
            f"memory= cannot be used here: a memory cuts rows, but {type(mechanism).__name__} passes "
            f"{min(mechanism.sends)!r} of whole rows to the layers above. Drop memory=, or use another mechanism"
        )
    return mechanism


def _matrix(projection: Projection, extras: Mapping[str, ExtraProjection], heads: int) -> nn.Linear | None:
    """Return one linear map for all extras. Extras that are `like` a projection matrix start as its copy."""
    if not extras:
        return None
    linear = nn.Linear(projection.d, heads * sum(side.width for side in extras.values()))
    first = 0
    for side in extras.values():
        at, first = slice(first, first + heads * side.width), first + heads * side.width
        if side.like is not None:
            weight, bias = projection.matrix(side.like)
            if weight.shape[0] != heads * side.width:
                raise ValueError(
                    f"an extra projection of {heads} x {side.width} rows cannot start as a copy of {side.like}, "
                    f"which has {weight.shape[0]} rows. Make the sizes equal"
                )
            with torch.no_grad():
                linear.weight[at] = weight
                linear.bias[at] = 0.0 if bias is None else bias
    return linear


def extras_by_name(
    numbers: Float[Tensor, "B T N"], extras: Mapping[str, ExtraProjection], heads: int
) -> dict[str, Tensor]:
    """Split numbers into extras by name [B H T n]. Each extra has adjacent columns, with heads in order."""
    parts = numbers.split([heads * side.width for side in extras.values()], -1)
    return {name: by_head(part, heads) for name, part in zip(extras, parts, strict=True)}


def _lazy_projections(
    x: Float[Tensor, "B T D"], matrix: nn.Linear | None, extras: Mapping[str, ExtraProjection], heads: int
) -> dict[str, LazyProjection]:
    """Return the same extras as lazy projections."""
    if matrix is None:
        return {}
    sizes = [heads * side.width for side in extras.values()]
    weights = matrix.weight.split(sizes)
    biases = [None] * len(sizes) if matrix.bias is None else matrix.bias.split(sizes)
    return {
        name: LazyProjection(
            x, weight.unflatten(0, (heads, -1)), None if bias is None else bias.unflatten(0, (heads, -1))
        )
        for name, weight, bias in zip(extras, weights, biases, strict=True)
    }
