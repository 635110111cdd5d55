"""Executor pieces: any pattern over consecutive positions, as tiles of dense attention.

Its time grows with the number of allowed pairs, not with all pairs. PyTorch's fused kernel for the CPU computes the
tiles if it supports the request. Otherwise the operations of the reference executor compute them.
"""

import torch

from kinformer.attend import custom_operator as operator
from kinformer.attend import distance_bands as banded
from kinformer.attend import explicit_tiles as explicit
from kinformer.attend import fused_kernel as kernel
from kinformer.attend.fused_plan import PlannedRead
from kinformer.attend.plan_maker import plan_of_runs
from kinformer.attend.plan_request import plan_request
from kinformer.attend.plan_sizes import PlanSizes
from kinformer.attend.position_runs import PositionRun, RunPair
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.bias import Bias
from kinformer.core.function_transforms import are_plain_tensors
from kinformer.core.pattern import Pattern
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product

PLAN = 2e-4  # seconds
CALL = 1e-5  # constant seconds of a read by a single kernel call
FLASH, BAND, EXPLICIT = 1e-11, 3e-11, 6e-11  # seconds per pair and number of a head's width


def estimation_time(request: Request) -> float:
    """Return the seconds that `cost` itself takes, because it makes a plan of tiles.

    request: the attention call. For self-attention over whole rows without padding, the plan is cached, so the result
        is 0.
    """
    return 0.0 if request.run and request.full and request.queries.pos is request.keys.pos else PLAN


def cost(request: Request) -> float | Refusal:
    """Return the estimated seconds of the planned calls over tiles, or a Refusal.

    request: the attention call. This function makes its plan but no masks.
    """
    if torch.compiler.is_compiling():
        return operator.cost(request)
    if request.where is not None:
        return Refusal("this executor computes all pairs of the pattern, but a mask allows fewer")
    if not are_plain_tensors(request.queries.q, request.keys.k, request.keys.v):
        return Refusal("this executor needs plain tensors; some are traced, fake or under a function transform")
    if type(request.score) is not Product or (request.bias is not None and request.bias.wants):
        return Refusal(
            "this executor needs dot-product scores, without a bias that reads a matrix from an earlier block"
        )
    if not request.pairs:
        return Refusal("this executor needs at least one pair of a query and a key")
    plan = plan_request(request)
    if isinstance(plan, Refusal):
        return plan
    if not plan.stages and (request.bias is not None or not kernel.serves(request)):
        return Refusal("no query attends to a key, so the result would have no gradient")
    by_distance = request.bias is not None and type(request.bias).by_distance is not Bias.by_distance
    rate = (
        EXPLICIT if not kernel.serves(request) else FLASH if request.bias is None else BAND if by_distance else EXPLICIT
    )
    once, width = (
        plan.single_call if request.bias is None else None,
        request.queries.q.shape[3] + request.keys.v.shape[3],
    )
    if once is None or rate is EXPLICIT:
        return plan.pairs * rate * width
    return CALL + once.pairs * request.queries.q.shape[:2].numel() * rate * width


def read(request: Request) -> AttentionOutput:
    """Compute y and log-sum-exp of a `request`, merged from calls over tiles of queries and keys."""
    if torch.compiler.is_compiling():
        return operator.read(request)
    plan, queries, keys = plan_request(request), request.queries, request.keys
    if isinstance(plan, Refusal):
        raise ValueError(plan.reason)
    fused = kernel.serves(request)
    with_band = banded.band_of(request, plan) if fused else None
    if with_band is None and (request.bias is not None or not fused):
        return explicit.read(request, plan)
    q, band = (queries.q, None) if with_band is None else with_band
    planned = PlannedRead(plan, request.rows, request.scale, queries.head, 0 if band is None else band.furthest)
    return kernel.read(planned, q, keys.k, keys.v, *((None, None, None) if band is None else band[:3]))


def relative_cost(pattern: Pattern, length: int, heads: int = 4, width: int = 64) -> float:
    """Return the estimated time of a pattern in tiles, divided by that for dense attention; at most 1.

    pattern: a pattern without tensors.
    length: number of tokens of the row.
    heads: number of heads.
    width: width of a key.

    Dense attention counts all pairs of query and key, or half of all pairs if the pattern allows no later key.
    """
    row = PositionRun(0, length)
    dense = heads * length**2 * (0.5 if pattern.reach()[1] <= 0 else 1)
    plan = plan_of_runs(pattern, RunPair(row, row), PlanSizes(1, heads, heads, 0, width), torch.device("cpu"))
    return min(1.0, plan.pairs / dense)
