"""Compressive: a memory of hidden states that compresses its oldest states instead of dropping them."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.checks import check_at_least, check_multiple, check_optional_part, check_part
from kinformer.core.example import Example
from kinformer.core.heads import StateSpec, cut
from kinformer.core.kv_cache import surviving_columns
from kinformer.core.layer import Context
from kinformer.core.loss import Penalty
from kinformer.core.memory import Memory, MemoryCost, slots_needed, update_slots
from kinformer.core.memory_compression import Compression, Slots
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.segment import Segment
from kinformer.nn.losses.compression import CompressionLoss
from kinformer.nn.memories.compressed_positions import CUTS, BySlots, CompressedPositions

ONE = (
    "the paper takes one norm over all tokens of a segment, so a cut within it, such as another row's segment "
    "end, makes two"
)


class CompressiveStates(NamedTuple):
    """State of a `Compressive` memory: recent layer inputs, their attention, and compressed states.

    x: layer inputs of the memory and the current segment.
    pos: position of each layer input; -1 marks an unused place.
    used: attention that each layer input received so far.
    old: compressed states.
    left: layer inputs that left the memory at the end of the last segment, if a loss needs them.
    now: position of the next token of each row.
    """

    x: Float[Tensor, "B C D"]
    pos: Int[Tensor, "B C"]
    used: Float[Tensor, "B C"]
    old: Slots
    left: Slots
    now: Int[Tensor, " B"]


class Compressive(Memory):
    """Memory of layer inputs and, before them, of compressed older ones, for segments of `length` tokens.

    Choose it if the memory of a Transformer-XL is too short. If a compression makes one state of c, information reaches
    back length + memory + c * compressed tokens, at the cost of length + memory + compressed keys. The hidden states
    that leave the memory are compressed at the end of a segment. The pattern of the layer's mechanism must be `Causal()
    & memory.reads`, with this object as `memory`. Decoding compresses too, so train and eval mode have the same state.

    length: number of tokens of a segment, a multiple of the rate.
    memory: number of tokens before the segment that are kept uncompressed.
    compressed: number of compressed states that are kept.
    compression: module that makes one state of each `compression.rate` states.
    loss: loss that trains the compression in train mode, reported as an aux value under its key. The model's own loss
        does not train the compression. As in the paper, the loss of a segment is over the states that leave the memory
        at its end. If memory < length, some of these states belong to the segment itself, and its first tokens may not
        read them. The loss is then over the states that left at the start of the segment.
    places: positions of compressed states: `BySlots()`, as in the paper, counts each as one position; with `ByTokens()`
        the limits of a batch (`ctx.only`) apply to them.

    Errors: ValueError if segments do not divide into blocks, or if the compression has weights but no loss. ValueError
    if the width or the rate of the loss, or the width of the layer, differs from the compression. ValueError with
    `ctx.also`, and with `ctx.only` under `BySlots()`.

    Source: Rae et al., 2019, arXiv:1911.05507, section 3.
    """

    kind = CompressiveStates
    cached = False

    def __init__(
        self,
        length: int,
        memory: int,
        compressed: int,
        compression: Compression,
        loss: CompressionLoss | None = None,
        *,
        places: CompressedPositions | None = None,
    ):
        super().__init__()
        rate = check_part("compression", compression, Compression, "a compression, such as MeanPool(4)").rate
        check_multiple("length", length, "rate", rate)
        if loss is None and any(True for _ in compression.parameters()):
            raise ValueError(
                f"{type(compression).__name__} has parameters, but no loss of the model trains them. Pass "
                "loss=AttentionReconstruction() to Compressive, or use a compression without parameters, such "
                "as MeanPool(4)"
            )
        for name in ("d", "rate"):
            compression_size, loss_size = getattr(compression, name), getattr(loss, name, None)
            if None not in (compression_size, loss_size) and compression_size != loss_size:
                raise ValueError(
                    f"{type(loss).__name__} has {name}={loss_size}, but {type(compression).__name__} has "
                    f"{name}={compression_size}. Make them equal"
                )
        self.length, self.memory, self.slots = length, memory, check_at_least("compressed", compressed, 0)
        self.places = check_part("places", places or BySlots(), CompressedPositions, "BySlots() or ByTokens()")
        self.near = Segment(length, memory)
        self.reads = Segment(length, memory + self.places.lookback(compressed, rate, length))
        self.older = -(-rate * compressed // length) * length  # tokens that the slots cover, in whole segments
        self.sharp = self.older == rate * compressed
        self.lately = length if loss is not None and memory < length else 0  # states that `left` holds
        self.compression = compression
        self.loss = check_optional_part("loss", loss, CompressionLoss, "a loss, such as AttentionReconstruction()")

    @property
    def receptive_field(self) -> Segment:
        return Segment(self.length, self.memory + self.older)

    def memory_cost(self) -> MemoryCost:
        return MemoryCost(self.length, self.memory, self.slots)

    def check_pattern(self, pattern: Pattern, heads: int, d: int) -> None:
        super().check_pattern(pattern, heads, d)
        if self.compression.d not in (None, d):
            name = type(self.compression).__name__
            raise ValueError(
                f"{name} compresses states of width {self.compression.d}, but the layer has width {d}. Make them equal"
            )

    def penalties(self) -> dict[str, Penalty]:
        if self.loss is None:
            return {}
        return {self.loss.key: Penalty((*self.compression.parameters(), *self.loss.parameters()), alone=True)}

    def start(self, spec: StateSpec, width: int) -> CompressiveStates:
        near = slots_needed(self.near, spec.length)

        def empty(slots: int) -> tuple[Tensor, Tensor]:
            pos = torch.full((spec.batch, slots), -1, device=spec.device)
            return torch.zeros(spec.batch, slots, width, dtype=spec.dtype, device=spec.device), pos

        x, pos = empty(near)
        used = torch.zeros(pos.shape, dtype=torch.promote_types(spec.dtype, torch.float32), device=spec.device)
        now = torch.zeros(spec.batch, dtype=torch.long, device=spec.device)
        return CompressiveStates(x, pos, used, Slots(*empty(self.slots)), Slots(*empty(self.lately)), now)

    def forward(
        self, x: Float[Tensor, "B T D"], state: CompressiveStates, ctx: Context, read: Callable
    ) -> tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"], CompressiveStates, dict[str, Tensor]]:
        if ctx.also is not None:
            raise ValueError(
                f"ctx.also={ctx.also} would read tokens that the Compressive memory has already compressed. Drop "
                "ctx.also, or use Hidden"
            )
        if ctx.only is not None and not self.places.limits:
            raise ValueError(
                f"ctx.only={ctx.only} limits tokens, but BySlots() gives compressed states no token positions. Pass "
                "places=ByTokens() to the Compressive memory"
            )
        plan = update_slots(state.pos, state.now, ctx, self.near)
        near = torch.cat([state.x, x.to(state.x.dtype)], 1)
        used = F.pad(state.used, (0, x.shape[1]))
        source = torch.cat([state.old.x.to(x.dtype), state.x[:, plan.begin :].to(x.dtype), x], 1)
        first = torch.as_tensor(self.near.earliest_key(plan.now[:, None] - 1))
        pos = torch.cat([self.places(state.old.pos, first), plan.read], 1)
        new_state = CompressiveStates(near, plan.positions, used, state.old, state.left, plan.now)
        return source, pos, new_state, self._aux(x, state, plan.now, ctx, read)

    def next_state(
        self, state: CompressiveStates, ctx: Context, received_attention: Callable[[], Tensor]
    ) -> CompressiveStates:
        """Return the state after a call, with compressed states for each row that ended a segment.

        state: state after the layer read it.
        ctx: context of the call.
        received_attention: function that returns the attention that each key received in this call.
        """
        x, slot_pos, used, old, left, now = state
        slots = slot_pos.shape[1] - ctx.pos.shape[1]
        with torch.no_grad():
            if self.compression.watches:
                received = received_attention()[:, old.pos.shape[1] :].to(used.dtype)
                used = used + F.pad(received, (used.shape[1] - received.shape[1], 0))  # unread states received none
            if (self.slots or self.lately) and self._something_leaves(slot_pos, now, ctx):
                end = torch.as_tensor(self.near.earliest_key(now[:, None]))
                new = self.compression(*self._cut(x, slot_pos, used, end - self.older, self.older, now))
                old = self._append_slots(old, new, now)
                if self.lately:
                    leaves = ((slot_pos >= 0) & (slot_pos < end)).any(1, keepdim=True)
                    last, pos, _ = self._cut(x, slot_pos, used, end - self.length, self.length, now)
                    left = Slots(torch.where(leaves[..., None], last, left.x), torch.where(leaves, pos, left.pos))
        plan = ctx.memo.get(
            lambda: update_slots(slot_pos[:, :slots], now, ctx, self.near), "kept", self.near, slot_pos, now
        )
        x, used = (cut(leaf, plan.order, 1).contiguous() for leaf in (x, used))
        return CompressiveStates(x, plan.pos, used, old, left, now)

    def segment_cuts(self, ctx: Context) -> list[int]:
        cuts = super().segment_cuts(ctx)
        for lo, hi in pairwise([0, *cuts, ctx.pos.shape[1]] if cuts else []):
            ctx.columns(lo, hi).memo.store(True, "a piece")
        return cuts

    def _something_leaves(self, pos: Tensor, now: Tensor, ctx: Context) -> bool:
        """Return whether states leave the memory.

        Only single-token steps look at positions, because in most steps nothing leaves. Longer calls, pieces cut at the
        end of segments, and compiled graphs always return True.
        """
        if torch.compiler.is_compiling() or ctx.pos.shape[1] > 1 or ctx.memo.get(lambda: False, "a piece"):
            return True
        leaving = (pos >= 0) & (pos < self.near.earliest_key(now[:, None]))
        return bool(ctx.memo.get(lambda: ctx.memo.look(leaving.any()), "leaving", self.near, pos, now)[0])

    def _cut(
        self, x: Tensor, pos: Tensor, used: Tensor, first: Int[Tensor, "B 1"], size: int, now: Int[Tensor, " B"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states at positions first .. first + size - 1, their positions and their average use."""
        average = used / (now[:, None] - pos).clamp_min(1)  # mean over the queries since the state's own, inclusive
        place = torch.where((pos >= 0) & (pos >= first) & (pos < first + size), pos - first, size)
        return (
            _put_into_slots(x, place, size, 0),
            _put_into_slots(pos, place, size, -1),
            _put_into_slots(average, place, size, 0),
        )

    def _append_slots(self, old: Slots, new: Slots, now: Int[Tensor, " B"]) -> Slots:
        """Append new compressed states and keep the newest ones that fit (first in, first out)."""
        x, pos = torch.cat([old.x, new.x.to(old.x.dtype)], 1), torch.cat([old.pos, new.pos], 1)
        live = pos >= 0
        if self.places.limits:  # after a jump of positions, a slot may be out of reach
            live = live & self.reads.live(pos, now[:, None])
        order, pos = surviving_columns(pos, live, self.slots)
        return Slots(cut(x, order, 1), pos)

    def _aux(
        self, x: Tensor, state: CompressiveStates, now: Int[Tensor, " B"], ctx: Context, read: Callable
    ) -> dict[str, Tensor]:
        """Return the loss of the states that leave the memory at this segment's end, or left it at its start."""
        if self.loss is None or not self.training:
            return {}
        old, pos = state.left
        if self.lately:
            used = torch.zeros_like(pos, dtype=state.used.dtype)
        else:  # all of these states stood before the segment
            first = torch.as_tensor(self.near.earliest_key(now[:, None] - 1))
            old, pos, used = self._cut(state.x.detach(), state.pos, state.used, first, self.length, now)
        old = old.to(x.dtype)
        new = self.compression(old, pos, used)
        value = self.loss(x.detach(), ctx.pos >= 0, old, pos >= 0, new.x, new.pos >= 0, read)
        return {self.loss.key: torch.where(ctx.pos >= 0, value, 0.0)}


def _put_into_slots(leaf: Tensor, place: Int[Tensor, "B C"], size: int, empty: int) -> Tensor:
    """Scatter entries into slots; unfilled slots hold `empty`, and entries with place `size` are dropped."""
    index = place if leaf.dim() == 2 else place[..., None].expand_as(leaf)
    slots = leaf.new_full((leaf.shape[0], size + 1, *leaf.shape[2:]), empty)
    return slots.scatter(1, index, leaf)[:, :size]


def _example() -> Compressive:
    return Compressive(4, 3, 2, kf.StridedConv(16, 2), kf.AutoEncoding(16, 2))


def _by_segment() -> Compressive:
    return Compressive(4, 4, 2, kf.StridedConv(16, 2), kf.AttentionReconstruction("segment"))


EXAMPLES = (
    Example(_example, breaks={"compiles": CUTS}),
    Example(
        _by_segment,
        breaks={
            "compiles": CUTS,
            **dict.fromkeys(("chunk", "gradients", "padding", "batch_mates", "peek", "rows"), ONE),
        },
    ),
)
