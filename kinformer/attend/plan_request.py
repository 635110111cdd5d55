"""Plans of attention calls (calls over tiles of queries and keys), with their caches.

All layers of a forward pass share one plan. All training steps share it if all rows have the same positions.
"""

from kinformer.attend import fused_kernel as kernel
from kinformer.attend.plan_maker import make_plan, plan_of_runs
from kinformer.attend.plan_sizes import PlanSizes
from kinformer.attend.position_runs import RunPair, find_runs
from kinformer.attend.tile_plan import TilePlan
from kinformer.core.request import Refusal, Request


def plan_request(request: Request) -> TilePlan | Refusal:
    """Return the plan of an attention call (`request`), or a Refusal if positions are not consecutive."""
    batch, heads, _, width = request.queries.q.shape
    fused = request.bias is None and kernel.serves(request)
    sizes = PlanSizes(batch, heads, _groups(request), request.queries.head, max(width, 1), fused)
    rows = request.rows if request.pattern.tensors() else None
    key = ("pieces", request.pattern, request.queries.pos, request.keys.pos, sizes, rows)
    return request.memo.get(lambda: _make_plan(request, sizes), *key)


def _groups(request: Request) -> int | None:
    """Number of key heads; None if all heads must be read together, as a bias requires.

    Other devices than CPUs read all heads together, because the cost of smaller calls was measured only on CPUs.
    """
    q, k, v = request.queries.q, request.keys.k, request.keys.v
    if request.bias is not None or q.device.type != "cpu":
        return None
    return k.shape[1] if k.shape[1] == v.shape[1] and q.shape[1] % k.shape[1] == 0 else None


def _make_plan(request: Request, sizes: PlanSizes) -> TilePlan | Refusal:
    pattern, device, runs = request.pattern, request.queries.q.device, find_runs(request)
    if isinstance(runs, Refusal):
        return runs
    if not isinstance(runs, RunPair):
        return make_plan(pattern, runs, False, sizes, True)
    if pattern.tensors():
        return make_plan(pattern, runs.lines(device), True, sizes, True)
    return plan_of_runs(pattern, runs, sizes, device)
