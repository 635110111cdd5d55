"""KV: the cache of keys and values for decoding, and its update with the new keys of a chunk."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec, cut
from kinformer.core.layer import Context, State
from kinformer.core.pattern import Pattern, pair_mask
from kinformer.core.state import map_state

LAST = torch.iinfo(torch.int64).max


class KV(NamedTuple):
    """A cache of keys and values with their positions, the decoding state of a `KeyValueMechanism`.

    k, v: keys and values in C slots; a slot is the place of one key.
    pos: the position of each slot; -1 marks an empty slot.
    now: the position of the next token of each row.
    extras, labels, tags: further values of each key, as in `Keys`.
    """

    k: Float[Tensor, "B G C K"]
    v: Float[Tensor, "B U C V"]
    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]
    extras: dict[str, Float[Tensor, "B G C n"]]
    labels: dict[str, Int[Tensor, "B C"]]
    tags: dict[str, Int[Tensor, "B G C r"]]

    @staticmethod
    def empty(
        spec: StateSpec,
        sizes: HeadSizes,
        slots: int,
        extras: Mapping[str, ExtraProjection],
        tags: Callable[[Keys], Mapping[str, Tensor]],
    ) -> "KV":
        """Return a cache of empty slots.

        `tags` is `Mechanism.tags`, the integers that a mechanism stores with each key. It is called with keys of zeros
        to find their number.
        """

        def zeros(heads: int, width: int) -> Tensor:
            return torch.zeros(spec.batch, heads, slots, width, dtype=spec.dtype, device=spec.device)

        k, v = zeros(sizes.key_heads, sizes.k_dim), zeros(sizes.value_heads, sizes.v_dim)
        pos = torch.full((spec.batch, slots), -1, device=spec.device)
        no_tags = tags(Keys(k[:, :, :0], v[:, :, :0], pos[:, None, :0], own=not sizes.cross))
        return KV(
            k,
            v,
            pos,
            torch.zeros(spec.batch, dtype=torch.long, device=spec.device),
            {name: zeros(sizes.key_heads, side.width) for name, side in extras.items()},
            {},
            {name: F.pad(tag, (0, 0, 0, slots)) for name, tag in no_tags.items()},
        )

    @staticmethod
    def from_keys(keys: Keys, old: "KV") -> "KV":
        """Return a cache of exactly these keys, in the dtype of the old cache; for cross-attention."""
        k, v = keys.k.to(old.k.dtype), keys.v.to(old.v.dtype)
        extras = {name: side.to(old.k.dtype) for name, side in keys.extras.items()}
        labels = {name: label.clone() for name, label in keys.labels.items()}  # the caller may write to them later
        return KV(k, v, keys.pos[:, 0].clone(), old.now, extras, labels, dict(keys.tags))

    def keys(self, pos: Int[Tensor, "B 1 N"], used: int | None = None, is_own: bool = True) -> Keys:
        """Return the keys in the first `used` slots (in all if None); `pos` holds their positions."""

        def first(x: Tensor, dim: int) -> Tensor:  # in a graph `used` may be a variable, which slices do not take
            return x if used is None else x.narrow(dim, 0, used)

        extras = {name: first(side, 2) for name, side in self.extras.items()}
        labels = {name: first(label, 1) for name, label in self.labels.items()}
        tags = {name: first(tag, 2) for name, tag in self.tags.items()}
        return Keys(first(self.k, 2), first(self.v, 2), pos, extras, labels, tags, is_own)

    def check_unspent(self) -> None:
        """Raise ValueError if a later state was already made from this one, by writing into the same tensors.

        The tensor of keys remembers the positions of the latest state that was made with it, and how often it had been
        written to. A state itself must hold nothing but tensors. Another number of writes means that a compiled graph
        has written since, and nothing is known. Tensors of the inference mode count no writes, so nothing is remembered
        there.
        """
        if torch.compiler.is_compiling() or (latest := getattr(self.k, "latest", None)) is None:
            return
        pos, version = latest
        if pos is not self.pos and version == self.k._version:
            raise ValueError(
                "this decoding state is spent: a later call has written into its cache. Pass the state that the last "
                "call returned, or call kf.fork(state) before the first use"
            )

    def branch(self) -> "KV":
        """Return a cache that shares the slots, for one call with other next keys.

        That call writes only to slots that neither its own nor later queries read, or into other tensors.
        """
        return self._replace(k=self.k.detach())  # another object, so that the original is not marked as spent

    def with_more_slots(self, extra: int) -> "KV":
        """Return the cache with `extra` more empty slots."""

        def add_slots(x: Tensor, dim: int) -> Tensor:
            return F.pad(x, (0,) * (2 * (x.dim() - dim) - 1) + (extra,))

        extras, tags = ({name: add_slots(x, 2) for name, x in of.items()} for of in (self.extras, self.tags))
        labels = {name: add_slots(label, 1) for name, label in self.labels.items()}
        pos = F.pad(self.pos, (0, extra), value=-1)
        return KV(add_slots(self.k, 2), add_slots(self.v, 2), pos, self.now, extras, labels, tags)

    def map_with_keys(self, change: Callable[[Tensor, Tensor, int], Tensor], keys: Keys, plan: "CachePlan") -> "KV":
        """Return the cache with each of its tensors replaced by `change(slots, new, dim)`.

        `slots` is the cached tensor, `new` the same field of the new keys, and `dim` their dimension of slots.

        plan: the new positions of the cache.

        Errors: ValueError if the cache has labels of tokens that the new keys lack.
        """
        if missing := self.labels.keys() - keys.labels.keys():
            raise ValueError(
                f"got no labels {min(missing)!r}, but earlier tokens of the row have them; give Context(labels=...) in "
                "every call"
            )
        # keys without a label get -1
        labels = {name: self.labels.get(name, torch.full_like(self.pos, -1)) for name in keys.labels}
        return KV(
            change(self.k, keys.k, 2),
            change(self.v, keys.v, 2),
            plan.pos,
            plan.now,
            {name: change(side, keys.extras[name], 2) for name, side in self.extras.items()},
            {name: change(label, keys.labels[name], 1) for name, label in labels.items()},
            {name: change(tag, keys.tags[name], 2) for name, tag in self.tags.items()},
        )


class CachePlan(NamedTuple):
    """The slots (places in a `KV` cache) of the new keys of a chunk of tokens.

    A plan is made once per forward, for all layers with the same cached positions. New keys are written into `slots`,
    or from slot `lo` on in every row if `slots` is None. If `order` is given, the new keys are appended to the cached
    ones, and the keys with the indices `order` are kept.

    pos, now: positions of the keys in the slots and the next position of each row, after the chunk.
    read_pos: the positions of the keys that the chunk attends to.
    slots: the slot of each new key; None if all rows use the same consecutive slots.
    lo: the first of these consecutive slots.
    order: the indices of the kept keys among the cached and new keys; None if no key is moved.
    used: the number of slots that the chunk attends to; None for all.
    grow: the number of empty slots to add to the cache first.
    alone: True if the chunk attends only to its own new keys.
    overflows: True in rows that had to drop a key that a later query may read; such rows become NaN. That can happen
        only under compile, where positions cannot be inspected.
    """

    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]
    read_pos: Int[Tensor, "B 1 N"]
    slots: Int[Tensor, "B T"] | None = None
    lo: int = 0
    order: Int[Tensor, "B C"] | None = None
    used: int | None = None
    grow: int = 0
    alone: bool = False
    overflows: Bool[Tensor, " B"] | None = None


def update_cache(
    state: KV | None, keys: Keys | None, queries: Queries, pattern: Pattern, ctx: Context
) -> tuple[Keys, KV | None]:
    """Return the keys that a chunk of tokens attends to, and the cache after it.

    For self-attention these are cached and new keys. In cross-attention, the keys of a new source sequence replace the
    cached ones.

    state: the cache; None for a call without a state.
    keys: the new keys; None for cross-attention over the cached keys of the source.
    queries: the queries of the chunk.
    pattern: the pairs of query and key that attention allows.
    ctx: the context of the call.

    Errors: ValueError if `keys` is None and the cache holds no source, or if keys to be cached have positions by head.
    ValueError for a cache that an earlier call has already written to, where that can be known.
    """
    if keys is None:
        if state is None or not state.pos.shape[1]:
            raise ValueError(
                "cross-attention got no source; give ctx=Context.of_sequence(x, source=source) in the first call"
            )
        return _cast_keys(state.keys(ctx.memo.by_head(state.pos), is_own=False), queries.q), state
    if state is None:
        return keys, None
    state.check_unspent()
    if keys.pos.shape[1] != 1:
        raise ValueError(
            "a cache keeps one position per key for all heads, but these keys have positions by head; call the layer "
            "without a state"
        )
    if not keys.own:
        return keys, KV.from_keys(keys, state)
    if not keys.pos.numel():
        return _cast_keys(state.keys(state.pos[:, None]), queries.q), state
    key = ("slots", pattern, state.pos, state.now, ctx.pos)
    return _apply_plan(ctx.memo.get(lambda: _make_plan(state, queries, pattern, ctx), *key), state, keys)


def surviving_columns(pos: Int[Tensor, "B C"], live: Bool[Tensor, "B C"], slots: int) -> tuple[Tensor, Tensor]:
    """Return the indices [B slots] of the keys to keep, in ascending order, and their positions.

    Live keys (those that a later query may read) are preferred to dead ones, then later keys to earlier ones. The
    position of a dead key is -1.

    pos: positions of the keys.
    live: True at live keys.
    slots: the number of keys to keep.
    """
    at = torch.arange(pos.shape[1], device=pos.device)
    order = (live * pos.shape[1] + at).topk(min(slots, pos.shape[1]), dim=1).indices.sort(1).values
    return order, torch.where(live, pos, -1).take_along_dim(order, 1)


def first_position(pos: Int[Tensor, "B T"], now: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return the first position of each row of a chunk; `now` if a row has only padding.

    pos: the positions of the chunk, -1 at padding.
    now: the position of each row's next token.
    """
    first = torch.where(pos >= 0, pos, LAST).amin(1)
    return torch.where(first == LAST, now, first)


def _make_plan(state: KV, queries: Queries, pattern: Pattern, ctx: Context) -> CachePlan:
    pos, new = state.pos, ctx.pos.to(state.pos.dtype)
    size, length = pos.shape[1], new.shape[1]
    after = torch.maximum(state.now, new.amax(1) + 1)
    first = new.amin(1) if ctx.full else first_position(new, state.now)
    live = (pos >= 0) & pattern.live(pos, first[:, None])
    pos = torch.where(live, pos, -1)
    if torch.compiler.is_compiling():  # values cannot be inspected: a step takes a dead slot, a chunk is compacted
        if length == 1 and size > 0:
            return _plan_into_slots(pos, live, new, after, ctx.used_slots.get(size))
        return _plan_compacted(pos, new, after, pattern)
    joined, count = torch.cat([pos, new], 1), live.sum(1)
    last = (live * torch.arange(1, size + 1, device=pos.device)).amax() if size else count.amax()
    numbers = [count.amax(), count.amin(), last]
    if length == 1:  # a step that may read every key needs no mask
        heads = range(queries.head, queries.head + queries.q.shape[1])
        numbers.append(pair_mask(pattern, queries.pos, joined[:, None], heads).sum(-1).amin())
    else:
        numbers.append(_count_remaining(joined, after, pattern))
    alive, least, end, extra = ctx.memo.look(*numbers)
    used = end + length
    if least == end and used <= size:  # every row uses the same consecutive slots
        filled = torch.cat([pos[:, :end], new, pos[:, used:]], 1)
        plan = CachePlan(filled, after, filled[:, None, :used], lo=end, used=used, alone=not end)
        if length == 1 and extra == used:
            ctx.memo.store(None, "mask", pattern, queries.pos, plan.read_pos, heads, None)
        return plan
    if alive + length <= size:
        return _plan_into_slots(pos, live, new, after, min(used, size))
    max_remaining = extra if length > 1 else ctx.memo.look(_count_remaining(joined, after, pattern))[0]
    if max_remaining <= size:
        return _plan_compacted(pos, new, after, pattern)
    grow = alive + length - size + max_remaining // 2  # the row exceeds `start`'s length; reserve half of its keys
    pos, live = F.pad(pos, (0, grow), value=-1), F.pad(live, (0, grow))
    return _plan_into_slots(pos, live, new, after)._replace(grow=grow)


def _count_remaining(joined: Tensor, after: Tensor, pattern: Pattern) -> Tensor:
    """Return the largest number of keys in a row that a later query may still read."""
    return ((joined >= 0) & pattern.live(joined, after[:, None])).sum(1).amax()


def _plan_into_slots(pos: Tensor, live: Tensor, new: Tensor, after: Tensor, used: int | None = None) -> CachePlan:
    """Put new keys into dead slots, the first dead slots first."""
    size, length = pos.shape[1], new.shape[1]
    at = torch.arange(size, device=pos.device)
    rank = torch.where(live, at + size, at)
    if length == 1:  # a minimum is faster than a sort
        slots = rank.amin(1, keepdim=True) % size
        filled = torch.where(at == slots, new, pos)
    else:
        slots = rank.topk(length, dim=1, largest=False, sorted=True).indices
        filled = pos.scatter(1, slots, new)
    overflows = (live.take_along_dim(slots, 1) & (new >= 0)).any(1) if torch.compiler.is_compiling() else None
    return CachePlan(filled, after, filled[:, None, :used], slots, used=used, overflows=overflows)


def _plan_compacted(pos: Tensor, new: Tensor, after: Tensor, pattern: Pattern) -> CachePlan:
    """Append new keys to old ones and keep the readable ones, if a chunk does not fit into dead slots."""
    joined = torch.cat([pos, new], 1)
    live = (joined >= 0) & pattern.live(joined, after[:, None])
    order, kept_pos = surviving_columns(joined, live, pos.shape[1])
    overflows = live.sum(1) > pos.shape[1] if torch.compiler.is_compiling() else None
    return CachePlan(kept_pos, after, joined[:, None], order=order, overflows=overflows)


def _apply_plan(plan: CachePlan, state: KV, keys: Keys) -> tuple[Keys, KV]:
    # no in-place writes with gradients enabled, even if keys are frozen: a graph may hold keys read from the cache
    learning = torch.is_grad_enabled()

    def write(old: Tensor, new: Tensor, dim: int) -> Tensor:
        if plan.order is not None:
            return torch.cat([old, new.to(old.dtype)], dim)
        if plan.slots is None:
            if learning:
                return old.slice_scatter(new.to(old.dtype), dim, plan.lo, plan.used)
            old.narrow(dim, plan.lo, new.shape[dim]).copy_(new)
            return old
        new = _mark_lost(new.to(old.dtype), plan.overflows)
        if not learning and torch.compiler.is_compiling():  # inductor does only this one in place
            return old.index_put_(_indices(plan.slots, old.shape[:dim]), new)
        at = plan.slots.view(len(new), *[1] * (dim - 1), -1, *[1] * (new.dim() - dim - 1)).expand_as(new)
        return old.scatter(dim, at, new) if learning else old.scatter_(dim, at, new)

    full = cache = (state.with_more_slots(plan.grow) if plan.grow else state).map_with_keys(write, keys, plan)
    if (order := plan.order) is not None:
        cache = full.map_with_keys(lambda old, new, dim: _mark_lost(cut(old, order, dim), plan.overflows), keys, plan)
    elif not learning and not torch.compiler.is_compiling() and not cache.k.is_inference():
        cache.k.latest = plan.pos, cache.k._version  # type: ignore[attr-defined]
    if plan.alone:
        return keys, cache
    return _cast_keys(full.keys(plan.read_pos, plan.used), keys.k), cache


def _indices(slots: Int[Tensor, "B T"], outer: torch.Size) -> list[Tensor | None]:
    """Return indices of slots in a tensor whose dimensions before them have the sizes `outer`, the batch first."""
    dim = len(outer)
    counts = (torch.arange(n, device=slots.device).view(-1, *[1] * (dim - i)) for i, n in enumerate(outer))
    return [*counts, slots.view(len(slots), *[1] * (dim - 1), -1)]


def _cast_keys(keys: Keys, like: Tensor) -> Keys:
    """Cast cached keys, values and extras to the dtype of the queries."""
    if keys.k.dtype == like.dtype:
        return keys
    extras = {name: side.to(like.dtype) for name, side in keys.extras.items()}
    return keys._replace(k=keys.k.to(like.dtype), v=keys.v.to(like.dtype), extras=extras)


def _mark_lost(x: Tensor, overflows: Tensor | None) -> Tensor:
    """Write NaN to rows that lost a live key, because a wrong number would go unnoticed."""
    if overflows is None or not x.is_floating_point():
        return x
    return torch.where(overflows.view(-1, *[1] * (x.dim() - 1)), torch.nan, x)


def widen_caches(state: State, like: State) -> State:
    """Return a decoding state whose caches have at least as many slots as the caches of `like`.

    state: the decoding state to widen.
    like: another decoding state of the same model.
    """
    least: list[int] = []
    pos: dict[tuple[int, int], Tensor] = {}  # layers that share positions still share them afterwards

    def note(cache: KV) -> KV:
        least.append(cache.pos.shape[1])
        return cache

    def widen(cache: KV) -> KV:
        extra = max(next(slots) - cache.pos.shape[1], 0)
        wider = cache.with_more_slots(extra)
        return wider._replace(pos=pos.setdefault((id(cache.pos), extra), wider.pos))

    _map_caches(note, like)
    slots = iter(least)
    return _map_caches(widen, state)


def _map_caches(change: Callable[[KV], KV], state: State) -> State:
    return map_state(lambda _, leaf: leaf, state, at=lambda part: change(part) if isinstance(part, KV) else None)
