"""What a plan folds into few calls, and what its gradients are read by."""

import pytest
import torch
from torch import Tensor

from kinformer.attend.fold_tiles import Tile, fold_tiles
from kinformer.attend.plan_maker import SHARED, plan_of_runs
from kinformer.attend.plan_sizes import PlanSizes
from kinformer.attend.position_runs import PositionRun, RunPair
from kinformer.attend.tile_plan import Stage, TileCall
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.segment import Segment
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.fixed import Fixed

CPU = torch.device("cpu")


def tiles_of(calls: list[TileCall]) -> list[tuple[int, int, int, int]]:
    """Each tile of queries and of keys: first place, size."""
    return [
        (call.q.start + n * call.q.step, call.q.size, call.k.start + n * call.k.step, call.k.size)
        for call in calls
        for n in range(call.q.many)
    ]


def read(pattern: Pattern, stages: list[Stage], length: int) -> Tensor:
    """How often each pair is read."""
    counts, allowed = torch.zeros(length, length), pattern.matrix(length)
    for stage in stages:
        q_line, k_line = (
            torch.arange(length) if line.source is None else line.source[0] for line in (stage.q, stage.k)
        )
        for call in stage.calls:
            for q, k in zip(call.q.indices(CPU), call.k.indices(CPU), strict=True):
                q_at, k_at = q_line[q][:, None], k_line[k]
                counts[q_at, k_at] += 1.0 if call.where is None else call.where(0, 0, q_at, k_at).float()
    assert not counts[~allowed].any()
    return counts[allowed]


def test_tiles_whose_keys_are_another_step_apart_are_one_call() -> None:
    """A staircase: 100 queries further on, 10 keys further on; a step that is none stands alone."""
    tiles = [Tile(100 * n, 100, 10 * n, 10, 1, False) for n in range(1, 8)]
    tiles += [Tile(800, 100, 70, 10, 1, False), Tile(900, 50, 80, 10, 1, False)]
    calls = fold_tiles(Full(), tiles, 1_000_000, 1)
    assert sorted(tiles_of(calls)) == [tile[:4] for tile in tiles]
    assert [(call.q.many, call.q.step, call.k.step) for call in calls] == [(7, 100, 10), (1, 0, 0), (1, 0, 0)]


def test_a_call_for_each_row_is_made_where_it_saves_calls() -> None:
    tiles = [Tile(100 * n, 100, 10 * n, 10, 1, False) for n in range(1, 8)]
    for batch, calls in ((1, 1), (6, 1), (7, 7)):
        calls_made = fold_tiles(Full(), tiles, 1_000_000, batch)
        assert (len(calls_made), sorted(tiles_of(calls_made))) == (calls, [tile[:4] for tile in tiles])


def test_a_call_holds_so_many_places() -> None:
    tiles = [Tile(100 * n, 100, 10 * n, 10, 1, False) for n in range(1, 8)]
    assert [call.q.many for call in fold_tiles(Full(), tiles, 330, 1)] == [3, 3, 1]


@pytest.mark.parametrize(
    "pattern", (Causal() & Band(256), Band(100), Causal() & Segment(128, 128), Causal() & Fixed(128, 8)), ids=str
)
def test_gradients_go_through_the_pairs_that_were_read(pattern: Pattern) -> None:
    run = PositionRun(0, 1300)
    plan = plan_of_runs(pattern, RunPair(run, run), PlanSizes(1, 2, 2, 0, 64), CPU)
    for stages in (plan.stages, plan.forward_stages, plan.backward_stages):
        assert bool((read(pattern, stages, run.size) == 1).all())


@pytest.mark.parametrize("pattern", (Causal() & Band(256), Band(100)), ids=str)
def test_a_window_is_gone_back_through_by_its_keys(pattern: Pattern) -> None:
    """Each key is in one tile, where in the forward it is in several, of fewer queries and pairs than are planned."""
    run = PositionRun(0, 2048)
    plan = plan_of_runs(pattern, RunPair(run, run), PlanSizes(1, 2, 2, 0, 64), CPU)
    (stage,), (ahead,), (back,) = plan.stages, plan.forward_stages, plan.backward_stages
    assert sum(call.pairs for call in ahead.calls) < 0.85 * sum(call.pairs for call in stage.calls)
    assert sum(call.k.many * call.k.size for call in stage.calls) > SHARED * run.size
    places = torch.cat([call.k.indices(CPU).flatten() for call in back.calls])
    assert torch.equal(places.sort().values, torch.arange(run.size))
