"""KV: the cache of keys and values that decoding reads, and how a chunk's new keys get into it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.heads import Keys, Queries, Room, Side, Sizes, cut
from kinformer.core.layer import Context
from kinformer.core.memo import Memo
from kinformer.core.pattern import Pattern, pairs

LAST = torch.iinfo(torch.int64).max


class KV(NamedTuple):
    """Keys and values with their absolute positions, and all that goes with a key.

    `pos` -1 marks an empty slot; `now` is each row's next position.
    """

    k: Float[Tensor, "B G C K"]
    v: Float[Tensor, "B U C V"]
    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]
    sides: dict[str, Float[Tensor, "B G C n"]]
    labels: dict[str, Int[Tensor, "B C"]]
    tags: dict[str, Int[Tensor, "B G C r"]]

    @staticmethod
    def empty(
        room: Room, sizes: Sizes, slots: int, sides: Mapping[str, Side], tags: Callable[[Keys], Mapping[str, Tensor]]
    ) -> "KV":
        """A cache of empty slots. `tags` tells from keys that are none how wide its tags are."""

        def zeros(heads: int, width: int) -> Tensor:
            return torch.zeros(room.batch, heads, slots, width, dtype=room.dtype, device=room.device)

        k, v = zeros(sizes.key_heads, sizes.k_dim), zeros(sizes.value_heads, sizes.v_dim)
        pos = torch.full((room.batch, slots), -1, device=room.device)
        none = tags(Keys(k[:, :, :0], v[:, :, :0], pos[:, None, :0], own=not sizes.cross))
        return KV(
            k,
            v,
            pos,
            torch.zeros(room.batch, dtype=torch.long, device=room.device),
            {name: zeros(sizes.key_heads, side.width) for name, side in sides.items()},
            {},
            {name: F.pad(tag, (0, 0, 0, slots)) for name, tag in none.items()},
        )

    @staticmethod
    def of(keys: Keys, now: Int[Tensor, " B"]) -> "KV":
        """A cache that holds these keys and no other: what is kept of a source."""
        return KV(keys.k, keys.v, keys.pos[:, 0], now, dict(keys.sides), dict(keys.labels), dict(keys.tags))

    def keys(self, pos: Int[Tensor, "B 1 C"], used: int | None, own: bool = True) -> Keys:
        """The first `used` slots as keys; `pos` are their positions."""
        keys = Keys(self.k, self.v, self.pos[:, None], self.sides, self.labels, self.tags, own)
        return keys.cut(slice(0, used))._replace(pos=pos)

    def over(self, change: Callable[[Tensor, Tensor, int], Tensor], keys: Keys) -> "KV":
        """The cache with `change(slots, new, dim)` made of every tensor and what the new keys bring; `pos` as it is."""
        labels = {name: self.labels.get(name, torch.zeros_like(self.pos)) for name in {**self.labels, **keys.labels}}
        given = {name: keys.labels.get(name, torch.zeros_like(keys.pos[:, 0])) for name in labels}
        return KV(
            change(self.k, keys.k, 2),
            change(self.v, keys.v, 2),
            self.pos,
            self.now,
            {name: change(side, keys.sides[name], 2) for name, side in self.sides.items()},
            {name: change(label, given[name], 1) for name, label in labels.items()},
            {name: change(tag, keys.tags[name], 2) for name, tag in self.tags.items()},
        )


class Plan(NamedTuple):
    """Where a chunk's new keys go: decided once per forward, for all layers whose caches hold the same positions.

    `slots` are the slots of the new keys, `lo` the first of them where they are the same run of slots in every row;
    no slots: the new keys are put behind the old ones, and slots `order` of both survive. `grow` adds empty slots
    first. `used` slots of `pos` are read; `alone` says that only the new keys are. `lost` marks rows in which a live
    key had to go (never where positions may be looked at).
    """

    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]
    read_pos: Int[Tensor, "B 1 C"]
    used: int | None = None
    slots: Int[Tensor, "B T"] | None = None
    lo: int | None = None
    order: Int[Tensor, "B C"] | None = None
    grow: int = 0
    alone: bool = False
    lost: Tensor | None = None


def written(
    state: KV | None, keys: Keys | None, queries: Queries, pattern: Pattern, ctx: Context
) -> tuple[Keys, KV | None]:
    """What a chunk reads, and the state after it: kept and new keys of the own sequence, or those of a source.

    Keys of a source replace what the state holds; keys None reads what it holds.
    """
    if keys is None:
        if state is None or not state.pos.shape[1]:
            raise ValueError(
                "cross-attention got no source; give Context(source=..., source_pos=...) in the first call"
            )
        pos = ctx.memo.get(lambda: state.pos[:, None], "by head", state.pos)
        return state.keys(pos, None, own=False), state
    if state is None:
        return keys, None
    if not keys.own:
        return keys, KV.of(keys, state.now)
    if not keys.k.shape[2]:
        return state.keys(state.pos[:, None], None), state
    key = ("slots", pattern, state.pos, state.now, ctx.pos)
    plan: Plan = ctx.memo.get(lambda: _planned(state.pos, state.now, queries, pattern, ctx), *key)
    return _carried_out(plan, state, keys)


def survivors(pos: Int[Tensor, "B C"], live: Tensor, slots: int) -> tuple[Int[Tensor, "B R"], Int[Tensor, "B R"]]:
    """`slots` columns to keep, live ones, the later first, in their order; their positions, -1 for the dead."""
    at = torch.arange(pos.shape[1], device=pos.device)
    order = (live * pos.shape[1] + at).topk(min(slots, pos.shape[1]), dim=1).indices.sort(1).values
    return order, torch.where(live, pos, -1).take_along_dim(order, 1)


def _planned(pos: Tensor, now: Tensor, queries: Queries, pattern: Pattern, ctx: Context) -> Plan:
    new = ctx.pos
    first = torch.where(new >= 0, new, LAST).amin(1)
    after = torch.maximum(now, new.amax(1) + 1)
    live = (pos >= 0) & pattern.live(pos, torch.where(first == LAST, now, first)[:, None])
    pos = torch.where(live, pos, -1)
    if torch.compiler.is_compiling():
        step = new.shape[1] == 1 and pos.shape[1] > 0
        return _step(pos, live, new, after) if step else _compacted(pos, new, after, pattern, None)
    free, both = int(live.shape[1]), torch.cat([pos, new], 1)
    remain = ((both >= 0) & pattern.live(both, after[:, None])).sum(1)
    if new.shape[1] == 1 and free:
        plan = _step(pos, live, new, after)
        columns = torch.arange(1, plan.pos.shape[1] + 1, device=pos.device)
        used = ((plan.pos >= 0) * columns).amax()
        slots = plan.slots
        assert slots is not None
        heads = range(queries.head, queries.head + queries.q.shape[1])
        mask = pairs(pattern, queries.pos, plan.pos[:, None], heads)
        alive, most, used_, lo, hi, seen = ctx.memo.look(
            live.sum(1).amax(), remain.amax(), used, slots.amin(), slots.amax(), mask.sum(-1).amin()
        )
        if alive < free:
            return _prefix(plan, used_, lo if lo == hi else None, mask, seen == used_, queries, pattern, ctx.memo)
    else:
        alive, most = ctx.memo.look(live.sum(1).amax(), remain.amax())
        if not alive and ctx.pos.shape[1] <= free:
            slots = torch.arange(new.shape[1], device=pos.device).expand(len(new), -1)
            filled = F.pad(new, (0, free - new.shape[1]), value=-1).to(pos.dtype)
            return Plan(filled, after, ctx.by_head, slots=slots, lo=0, alone=True)
    if alive + new.shape[1] <= free:
        return _placed(pos, live, new, after, 0)
    if most > free:  # a row longer than `start` was told of
        grow = alive + new.shape[1] - free + most // 2
        return _placed(F.pad(pos, (0, grow), value=-1), F.pad(live, (0, grow)), new, after, grow)
    return _compacted(pos, new, after, pattern, alive)


def _step(pos: Tensor, live: Tensor, new: Tensor, after: Tensor) -> Plan:
    """One new key in the first dead slot of each row."""
    at = torch.arange(pos.shape[1], device=pos.device)
    dead, slots = torch.where(live, at.shape[0], at).min(1, keepdim=True)  # the first dead slot; all live: slot 0
    filled = pos.scatter(1, slots, new.to(pos.dtype))
    return Plan(filled, after, filled[:, None], slots=slots, lost=(dead[:, 0] == at.shape[0]) & (new[:, 0] >= 0))


def _placed(pos: Tensor, live: Tensor, new: Tensor, after: Tensor, grow: int) -> Plan:
    """New keys in dead slots, the first ones first."""
    at = torch.arange(pos.shape[1], device=pos.device)
    slots = torch.where(live, at + at.shape[0], at).topk(new.shape[1], dim=1, largest=False, sorted=True).indices
    filled = pos.scatter(1, slots, new.to(pos.dtype))
    return Plan(filled, after, filled[:, None], slots=slots, grow=grow)


def _compacted(pos: Tensor, new: Tensor, after: Tensor, pattern: Pattern, alive: int | None) -> Plan:
    """New keys behind the old ones, and of both those that may still be read: for chunks that do not fit beside."""
    both = torch.cat([pos, new.to(pos.dtype)], 1)
    live = (both >= 0) & pattern.live(both, after[:, None])
    order, kept = survivors(both, live, pos.shape[1])
    lost = live.sum(1) > pos.shape[1] if alive is None else None
    return Plan(kept, after, both[:, None], order=order, lost=lost)


def _prefix(
    plan: Plan, used: int, lo: int | None, mask: Tensor, every: bool, queries: Queries, pattern: Pattern, memo: Memo
) -> Plan:
    """A step's plan that reads the used slots alone, its mask known: none where every one of them may be read."""
    read_pos = plan.pos[:, None, :used]
    heads = range(queries.head, queries.head + queries.q.shape[1])
    memo.put(None if every else mask[..., :used], "mask", pattern, queries.pos, read_pos, heads, None)
    return plan._replace(read_pos=read_pos, used=used, lo=lo, lost=None)


def _carried_out(plan: Plan, state: KV, keys: Keys) -> tuple[Keys, KV]:
    learning = torch.is_grad_enabled() and (keys.k.requires_grad or keys.v.requires_grad or state.k.requires_grad)

    def grown(old: Tensor, new: Tensor, dim: int) -> Tensor:
        return F.pad(old, (0,) * (2 * (old.dim() - dim) - 1) + (plan.grow,)) if plan.grow else old

    def write(old: Tensor, new: Tensor, dim: int) -> Tensor:
        old, new = grown(old, new, dim), _spoiled(new, plan.lost).to(old.dtype)
        if plan.lo is not None and not learning:
            old.narrow(dim, plan.lo, new.shape[dim]).copy_(new)
            return old
        assert plan.slots is not None
        at = plan.slots.view(len(new), *[1] * (dim - 1), -1, *[1] * (new.dim() - dim - 1)).expand_as(new)
        return old.scatter(dim, at, new) if learning else old.scatter_(dim, at, new)

    if plan.order is None:
        kept = state.over(write, keys)._replace(pos=plan.pos, now=plan.now)
        if plan.alone:
            return keys, kept
        read = kept.keys(plan.read_pos, plan.used)
    else:
        order = plan.order
        both = state.over(lambda old, new, dim: torch.cat([old, new.to(old.dtype)], dim), keys)
        read = both.keys(plan.read_pos, None)
        kept = both.over(lambda old, new, dim: _spoiled(cut(old, order, dim), plan.lost), keys)
        kept = kept._replace(pos=plan.pos, now=plan.now)
    return read._replace(k=read.k.to(keys.k.dtype), v=read.v.to(keys.v.dtype)), kept


def _spoiled(x: Tensor, lost: Tensor | None) -> Tensor:
    """NaN in rows that lost a live key: a wrong number would be worse."""
    if lost is None or not x.is_floating_point():
        return x
    return torch.where(lost.view(-1, *[1] * (x.dim() - 1)), torch.nan, x)
