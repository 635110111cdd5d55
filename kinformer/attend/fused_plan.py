"""Attention by a plan (calls over tiles) with PyTorch's fused CPU kernel, forward and backward.

Tiles of keys at equal steps are views of the row and not copies, except large tiles with gaps.

A bias by distance becomes a part of the kernel's mask. The kernel computes no gradient of its mask. Therefore plain
operations compute the backward of a trainable bias, and the forward too if the bias adds to the values.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.attend import fused_kernel as kernel
from kinformer.attend import plain_call as plain
from kinformer.attend.distance_bands import DistanceBand, by_head, spread
from kinformer.attend.fused_kernel import ReadWithGradients, SavedTensors
from kinformer.attend.position_runs import Line
from kinformer.attend.tile_access import TileSum, add, cut, cut_contiguous, write
from kinformer.attend.tile_plan import Stage, TileCall, TilePlan, shares

SCORES = 1 << 21  # most scores in memory at once: more do not fit into the cache and cost a new system allocation


class PlannedRead(ReadWithGradients):
    """Method that computes attention by a plan, with calls of PyTorch's fused kernel over its tiles.

    The forward merges the outputs of later stages (groups of calls) into the output in place. The backward needs no
    merge: each call gets the final y and log-sum-exp, and returns its part of the gradients. The extra inputs are
    `table`, `asks` and `values` of the bias by distance (`DistanceBand`), or three times None.

    plan: the plan of the request.
    rows: index in the batch of each row, or None.
    scale: factor of the product.
    head: index of the first head in the layer.
    furthest: the largest distance in the table of the bias, in positions.
    """

    def __init__(self, plan: TilePlan, rows: Int[Tensor, " B"] | None, scale: float, head: int, furthest: int = 0):
        self.plan, self.rows, self.scale, self.head, self.furthest = plan, rows, scale, head, furthest

    def read(self, q: Tensor, k: Tensor, v: Tensor, *extra_inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        plan, scale, band = self.plan, self.scale, self._band(*extra_inputs)
        if band is None and (call := plan.single_call) is not None:
            mask, empty = self._make_mask(plan.stages[0], call, slice(0, len(q)), q, None)
            return kernel.call_forward(q, k, v, mask, empty, call.causal, scale)
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k, v = map(self._make_contiguous, (q, k, v))
        # one stage writes each query once; several stages are merged in float32 or better
        y = (torch.empty_like if plan.covers else torch.zeros_like)(
            q, dtype=q.dtype if len({s.first for s in plan.stages}) == len(plan.stages) else wide
        )
        lse = q.new_full(q.shape[:3], -torch.inf, dtype=wide)
        begun: set[int] = set()
        for stage in plan.forward_stages if band is None else plan.stages:
            ends = _Ends(stage, q, k)
            q_, k_, v_ = ends.queries(q), ends.keys(k), ends.keys(v)
            of_y, of_lse = (ends.heads(x) for x in (y, lse))
            if stage.q.source is not None:
                of_y, of_lse = _gather_line(of_y, stage.q), _gather_line(of_lse[..., None], stage.q)[..., 0]
            for batch, tiles in _calls_by_rows(stage, q, band is not None and band.asks is not None):
                mask, empty = self._make_mask(stage, tiles, batch, q, band)
                ends_of = (
                    cut_contiguous(q_, tiles.q, batch),
                    cut_contiguous(k_, tiles.k, batch),
                    cut_contiguous(v_, tiles.k, batch),
                )
                if mask is None or band is None or band.values is None:
                    new, level = kernel.forward(*ends_of, 0.0, tiles.causal, attn_mask=mask, scale=scale)
                else:
                    new, level = plain.forward(*ends_of, mask, scale, band.values[:, band.table_rows(stage, tiles)])
                if empty is not None:
                    level = level.masked_fill(empty, -torch.inf)
                if stage.first in begun:
                    old = cut(of_y, tiles.q, batch), cut(of_lse[..., None], tiles.q, batch)[..., 0]
                    new, level = _merge_in_place(*old, new, level)
                write(of_y, tiles.q, batch, new)
                write(of_lse[..., None], tiles.q, batch, level[..., None])
            if stage.q.source is not None:
                _scatter_line(ends.heads(y), of_y, stage.q)
                _scatter_line(ends.heads(lse), of_lse, stage.q)
            begun.add(stage.first)
        return y.to(q.dtype), lse

    def gradients(self, gy: Tensor, saved: SavedTensors, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        plan, scale, band = self.plan, self.scale, self._band(*saved.extra_inputs)
        q, k, v, y, lse, extra_inputs = saved
        if band is None and (call := plan.single_call) is not None:
            mask, _ = self._make_mask(plan.stages[0], call, slice(0, len(q)), q, None)
            return *kernel.call_backward(gy, saved, mask, call.causal, scale), None, None, None
        q, k, v, y, gy, lse = (*map(self._make_contiguous, (q, k, v, y, gy)), kernel.finite_lse(lse))
        # a bias without a gradient is an ordinary mask, unless it also adds to the values
        learns = band is not None and (band.values is not None or any(needs[3:5]))
        wide = torch.promote_types(q.dtype, torch.float32)
        # the first stage may write instead of add
        of_q, of_k = plan.begins_with("q"), plan.begins_with("k")
        fresh = of_q, of_k, of_k
        grads = [
            (torch.empty_like if first else torch.zeros_like)(x, dtype=wide)
            for x, first in zip((q, k, v), fresh, strict=True)
        ]
        into_band = _zero_band(band, wide) if band is not None and learns else None
        for n, stage in enumerate(plan.backward_stages if band is None else plan.stages):
            ends = _Ends(stage, q, k)
            q_, k_, v_ = ends.queries(q), ends.keys(k), ends.keys(v)
            gy_, y_, lse_ = ends.queries(gy), ends.queries(y), ends.queries(lse[..., None])
            dq = ends.heads(grads[0])
            dq_ = dq if stage.q.source is None else dq.new_zeros(q_.shape)
            into = [ends.of_keys(x) for x in grads[1:]]
            dk_, dv_ = into if stage.k.source is None else [x.new_zeros(k_.shape) for x in into]
            sums = [TileSum(to, n == 0 and first) for to, first in zip((dq_, dk_, dv_), fresh, strict=True)]
            for batch, tiles in _calls_by_rows(stage, q, into_band is not None):
                mask, _ = self._make_mask(stage, tiles, batch, q, band)
                ends_of = (
                    cut_contiguous(q_, tiles.q, batch),
                    cut_contiguous(k_, tiles.k, batch),
                    cut_contiguous(v_, tiles.k, batch),
                )
                gy_tile, whole, level = (cut_contiguous(x, tiles.q, batch) for x in (gy_, y_, lse_))
                if mask is None or band is None or into_band is None:
                    new_grads = kernel.backward(
                        gy_tile, *ends_of, whole, level[..., 0], 0.0, tiles.causal, attn_mask=mask, scale=scale
                    )
                else:
                    added = None if band.values is None else band.values[:, band.table_rows(stage, tiles)]
                    *new_grads, ds, p = plain.backward(gy_tile, *ends_of, whole, level, mask, scale, added)
                    _add_band_gradients(band, into_band, stage, tiles, batch, ds, p, gy_tile)
                for first, at, grad in zip(sums, (tiles.q, tiles.k, tiles.k), new_grads, strict=True):
                    first.add(at, batch, grad)
            for first in sums:
                first.end()
            if stage.q.source is not None:
                dq.scatter_add_(2, _index(stage.q, dq), dq_)
            if stage.k.source is not None:
                for to, new_grads in zip(into, (dk_, dv_), strict=True):
                    to.scatter_add_(2, _index(stage.k, to), new_grads)
        pairs = zip((*grads, *(into_band or (None,) * 3)[:3]), (q, k, v, *extra_inputs), strict=True)
        return tuple(None if grad is None else grad.to(x.dtype) for grad, x in pairs)  # type: ignore[union-attr]

    def _make_contiguous(self, x: Tensor) -> Tensor:
        """Copy `x` to contiguous memory if the plan looks up blocks, so that a block is one piece."""
        return x.contiguous() if self.plan.looks_up else x

    def _band(self, table: Tensor | None, asks: Tensor | None, values: Tensor | None) -> DistanceBand | None:
        return None if table is None else DistanceBand(table, asks, values, self.furthest)

    def _make_mask(
        self, stage: Stage, tiles: TileCall, batch: slice, q: Tensor, band: DistanceBand | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the additive mask of a call, with the bias, and the queries without a key."""
        shut, empty = self.plan.make_mask(stage, tiles, self.rows, batch, range(self.head, self.head + q.shape[1]), q)
        if band is None:
            return shut, empty
        asks = None if band.asks is None else cut(band.asks, tiles.q, batch)
        added = band.make_bias(stage, tiles, batch, asks)
        if shut is not None:
            added = added + shut if asks is None else added.add_(shut)
        if asks is None and bool((band.table == -torch.inf).any()):
            empty = (added == -torch.inf).all(-1)
            empty = empty if bool(empty.any()) else None
        return added, empty


def _zero_band(band: DistanceBand, dtype: torch.dtype) -> DistanceBand:
    """Return zeros for the gradients of a band."""
    asks, values = (None if x is None else torch.zeros_like(x, dtype=dtype) for x in (band.asks, band.values))
    return DistanceBand(torch.zeros_like(band.table, dtype=dtype), asks, values, band.furthest)


def _merge_in_place(y: Tensor, lse: Tensor, new: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Merge y and lse with the output `new` and `level` of other keys; `new` is overwritten."""
    total = torch.logaddexp(lse, level)
    safe = total.masked_fill(total == -torch.inf, 0.0)
    old_share, new_share = (lse - safe).exp_()[..., None], (level - safe).exp_()[..., None]
    return new.to(y.dtype).mul_(new_share).addcmul_(y, old_share), total


def _add_band_gradients(
    band: DistanceBand,
    into: DistanceBand,
    stage: Stage,
    call: TileCall,
    batch: slice,
    ds: Tensor,
    p: Tensor,
    gy: Tensor,
) -> None:
    """Add the gradients of a call to the gradients of the table, the asks and the values."""
    at = band.table_rows(stage, call)
    if band.asks is None or into.asks is None:
        band.learn(into.table, stage, call, batch, ds)
    else:
        of_distances, asks = spread(ds), by_head(cut(band.asks, call.q, batch)).to(ds.dtype)
        to_asks = of_distances @ band.table[:, at].to(ds.dtype)
        add(into.asks, call.q, batch, to_asks.unflatten(1, (len(ds), -1)).transpose(0, 1))
        into.table[:, at] += (of_distances.mT @ asks).sum_to_size(into.table[:, at].shape)
    if into.values is not None:
        into.values[:, at] += (spread(p).mT @ by_head(gy.to(p.dtype))).sum_to_size(into.values[:, at].shape)


def _calls_by_rows(stage: Stage, q: Float[Tensor, "B H L D"], holds_scores: bool) -> Iterator[tuple[slice, TileCall]]:
    """Yield each call with its rows: all rows at once, or row by row for several tiles or block tables.

    Several rows with several tiles have no common stride. If `holds_scores`, the number of rows at once is limited.
    """
    batch, heads, _, _ = q.shape
    for call in stage.calls:
        rows = max(1, SCORES // max(1, heads * call.q.size * call.k.size)) if holds_scores else max(1, batch)
        rows = 1 if call.by_row else rows
        yield from ((slice(b, min(b + rows, batch)), call) for b in range(0, batch, rows))


def _index(line: Line, x: Tensor) -> Tensor:
    return line.source[:, None, :, None].expand(len(x), x.shape[1], -1, x.shape[3])  # type: ignore[index]


def _gather_line(x: Float[Tensor, "B H L D"], line: Line) -> Float[Tensor, "B H N D"]:
    return x if line.source is None else x.gather(2, _index(line, x))


def _scatter_line(to: Tensor, gathered: Tensor, line: Line) -> None:
    """Write gathered tokens back to their places, without the padding of each row."""
    for b in range(len(to)):
        row = min(b, len(line.pos) - 1)
        real = line.pos[row] >= 0
        to[b, :, line.source[row][real]] = gathered[b, :, real]  # type: ignore[index]


class _Ends:
    """Selection of the query heads and key heads of a stage."""

    def __init__(self, stage: Stage, q: Tensor, k: Tensor):
        self.stage = stage
        self.of_q, self.of_k = shares(stage.first, stage.turns, q.shape[1], k.shape[1])

    def heads(self, x: Tensor) -> Tensor:
        return x[:, self.of_q]

    def of_keys(self, x: Tensor) -> Tensor:
        return x[:, self.of_k]

    def queries(self, x: Tensor) -> Tensor:
        return _gather_line(self.heads(x), self.stage.q)

    def keys(self, x: Tensor) -> Tensor:
        return _gather_line(self.of_keys(x), self.stage.k)
