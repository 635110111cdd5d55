"""The pieces executor: any pattern over runs of positions at its own order of cost, as tiles of dense attention.

Tiles are read by PyTorch's fused kernel for the CPU where it can, else by the reference's own lines.
"""

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn import Parameter

from kinformer.core.bias import Bias
from kinformer.core.pattern import Pattern
from kinformer.core.read import Read
from kinformer.core.request import Refusal, Request
from kinformer.execute.support import banded, explicit, flash
from kinformer.execute.support.calls import Plan
from kinformer.execute.support.lines import Lines, Run, runs
from kinformer.execute.support.plan import Sizes, made, of_runs
from kinformer.scores.product import Product

FLASH, BAND, EXPLICIT = 1e-11, 3e-11, 6e-11  # seconds per pair and number of a head's width


def cost(request: Request) -> float | Refusal:
    """What its calls take, each a little more than its pairs. A plan is made, masks are not."""
    found = _plan(request)
    if isinstance(found, Refusal):
        return found
    told = request.bias is not None and type(request.bias).by_distance is not Bias.by_distance
    rate = EXPLICIT if not flash.serves(request) else FLASH if request.bias is None else BAND if told else EXPLICIT
    return found.pairs * rate * (request.queries.q.shape[3] + request.keys.v.shape[3])


def read(request: Request) -> Read:
    """The same y and lse as the reference, merged from calls over tiles."""
    found, queries, keys = _plan(request), request.queries, request.keys
    if isinstance(found, Refusal):
        raise ValueError(found.reason)
    told = banded.asked(request, found) if flash.serves(request) else None
    if told is None and (request.bias is not None or not flash.serves(request)):
        return explicit.read(request, found)
    q, band = (queries.q, (None, None, None, 0)) if told is None else told
    rows = torch.arange(len(q), device=q.device) if request.rows is None else request.rows
    return Read(*flash.Flash.apply(q, keys.k, keys.v, *band, rows, found, request.scale, queries.head))


def work(pattern: Pattern, length: int, heads: int = 4, width: int = 64) -> float:
    """What reading a row costs, as planned, over dense attention: of all pairs, or half of them where none is ahead."""
    row = Run(0, length)
    dense = heads * length**2 * (0.5 if pattern.reach()[1] <= 0 else 1)
    plan = of_runs(pattern, row, row, Sizes(1, heads, heads, 0, width), torch.device("cpu"))
    return min(1.0, plan.pairs / dense)


def _plan(request: Request) -> Plan | Refusal:
    """How a request is read; made once for all layers, and for every step where rows are alike."""
    if torch.compiler.is_compiling():
        return Refusal("its plan is made outside of a graph")
    if not _plain(request.queries.q, request.keys.k, request.keys.v):
        return Refusal("it takes plain tensors: none that are traced, faked or under a transform of functions")
    if type(request.score) is not Product or (request.bias is not None and request.bias.wants):
        return Refusal("what comes from the block beneath is a matrix that it does not cut")
    if not request.pairs:
        return Refusal("it wants at least one pair")
    lines = runs(request)
    if isinstance(lines, Refusal):
        return lines
    batch, heads, _, width = request.queries.q.shape
    pattern, device = request.pattern, request.queries.q.device
    # a bias knows all the heads of its layer
    groups = request.keys.k.shape[1] if flash.serves(request) and request.bias is None else None
    sizes = Sizes(batch, heads, groups, request.queries.head, max(width, 1))
    if isinstance(lines, tuple) and not isinstance(lines, Lines) and not pattern.tensors():
        return of_runs(pattern, *lines, sizes, device)
    both = lines if isinstance(lines, Lines) else Lines(*(run.line(device) for run in lines))
    key = ("pieces", pattern, request.queries.pos, request.keys.pos, sizes)
    return request.memo.get(lambda: made(pattern, both, both is not lines, sizes, True), *key)


def _plain(*tensors: Tensor) -> bool:
    """Are tensors what they seem, and no part of a trace or of a transform such as vmap and jvp?"""
    if torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():  # type: ignore[attr-defined]
        return False
    return all(type(x) in (Tensor, Parameter) and unpack_dual(x).tangent is None for x in tensors)
