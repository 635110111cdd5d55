"""Custom operator that computes attention by a plan (calls over tiles) in compiled graphs.

It has a backward. The operator makes its plan when it runs, because a plan depends on the values of the positions.
Therefore one graph serves all lengths. A graph cannot hold a pattern, so the operator takes the serialized pattern. The
operator takes no bias, because the tensors of a bias need gradients of their own.
"""

from typing import Any

import torch
from torch import Tensor

from kinformer.attend import fused_kernel as kernel
from kinformer.attend.fused_plan import PlannedRead
from kinformer.attend.pattern_serialization import Spelling, pattern_of, spell_pattern
from kinformer.attend.plan_request import plan_request
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import to_autocast
from kinformer.core.function_transforms import is_transformed
from kinformer.core.heads import Keys, Queries
from kinformer.core.patterns.full import Full
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product

CALL = 2e-4  # seconds: every call inspects the positions
SECONDS = 1e-11  # per pair and number of a head's width
# inputs of both operators: tensors, positions, the serialized pattern, and the other fields of a request
INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor q_pos, Tensor? k_pos, Tensor? rows, "
    "str text, int[] numbers, Tensor[] tensors, bool[] flags, int head, float scale"
)


def cost(request: Request) -> float | Refusal:
    """Return the seconds of the operator, estimated from the reach of the pattern, or a Refusal.

    request: the attention call. Its plan, and so its exact time, is known only when the operator runs.
    """
    q, k, v = request.queries.q, request.keys.k, request.keys.v
    if is_transformed():
        return Refusal("this executor does not support vmap and forward-mode derivatives")
    if type(request.score) is not Product or request.bias is not None or not kernel.serves(request):
        return Refusal(
            "in a compiled graph this executor needs dot-product scores on a CPU, without bias or dropout, and value "
            "heads of the same number and width as the key heads"
        )
    if not request.pairs:
        return Refusal("this executor needs at least one pair of a query and a key")
    if request.where is not None:
        return Refusal("this executor computes all pairs of the pattern, but a mask allows fewer")
    if spell_pattern(request.pattern) is None:
        return Refusal(
            "in a compiled graph this executor supports only patterns made of integers, bools, strings, tensors, "
            "tuples and other patterns"
        )
    back, ahead = request.pattern.reach()
    keys = k.shape[2] if isinstance(request.pattern, Full) else min(k.shape[2] / 2, back + 1 + ahead)
    return CALL + q.shape[0] * q.shape[1] * q.shape[2] * keys * SECONDS * (q.shape[3] + v.shape[3])


def read(request: Request) -> AttentionOutput:
    """Compute `request` with the custom operator, in the dtype of autocast if it is enabled."""
    queries, keys = request.queries, request.keys
    spelling = spell_pattern(request.pattern)
    assert spelling is not None
    q, k, v = (to_autocast(x) for x in (queries.q, keys.k, keys.v))
    same, flags = queries.pos is keys.pos, [request.run, request.full]
    k_pos = None if same else keys.pos
    return AttentionOutput(
        *reads(q, k, v, queries.pos, k_pos, request.rows, *spelling, flags, queries.head, request.scale)
    )


def _make_read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor | None,
    rows: Tensor | None,
    text: str,
    numbers: list[int],
    tensors: list[Tensor],
    flags: list[bool],
    head: int,
    scale: float,
) -> tuple[kernel.ReadWithGradients, tuple[Tensor | None, ...]]:
    """Return a planned read and its inputs, or one masked call if the positions are not consecutive."""
    pattern = pattern_of(Spelling(text, numbers, tensors))
    queries, keys = Queries(q, q_pos, head=head), Keys(k, v, q_pos if k_pos is None else k_pos)
    run, full = flags
    request = Request(queries, keys, pattern, Product(), scale=scale, rows=rows, run=run, full=full)
    plan = plan_request(request)
    if isinstance(plan, Refusal):
        return kernel.MaskedRead(scale), (kernel.additive_mask(request),)
    return PlannedRead(plan, rows, scale, head), (None, None, None)


def _read(*inputs: Any) -> tuple[Tensor, Tensor]:
    method, extra_inputs = _make_read(*inputs)
    y, lse = method.read(*(kernel.to_contiguous(x) for x in inputs[:3]), *extra_inputs)
    return y.contiguous(), lse.contiguous()


def _gradients(gy: Tensor, gl: Tensor | None, y: Tensor, lse: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    method, extra_inputs = _make_read(*inputs)
    q, k, v = (kernel.to_contiguous(x) for x in inputs[:3])
    grads = kernel.compute_gradients(
        method, gy, gl, kernel.SavedTensors(q, k, v, y, lse, extra_inputs), (True,) * 3 + (False,) * len(extra_inputs)
    )
    return tuple(x.contiguous() for x in grads[:3] if x is not None)


reads = torch.library.custom_op("kinformer::pieces", _read, mutates_args=(), schema=f"({INPUTS}) -> (Tensor, Tensor)")
gradients = torch.library.custom_op(
    "kinformer::pieces_backward",
    _gradients,
    mutates_args=(),
    schema=f"(Tensor gy, Tensor? gl, Tensor y, Tensor lse, {INPUTS}) -> (Tensor, Tensor, Tensor)",
)


@reads.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=wide)


@gradients.register_fake
def _(gy: Tensor, gl: Tensor | None, y: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Any:
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, q_pos, k_pos, rows, text, numbers, tensors, *rest = inputs
    ctx.save_for_backward(*output, q, k, v, q_pos, k_pos, rows, *tensors)
    ctx.rest = text, numbers, rest


def _backward(ctx: Any, gy: Tensor, gl: Tensor | None) -> tuple[Any, ...]:
    text, numbers, rest = ctx.rest
    y, lse, q, k, v, q_pos, k_pos, rows, *tensors = ctx.saved_tensors
    grads = gradients(gy, gl, y, lse, q, k, v, q_pos, k_pos, rows, text, numbers, tensors, *rest)
    # PyTorch takes an empty list of numbers for a list of tensors
    return *grads, *[None] * 4, None if numbers else [], [None] * len(tensors), *[None] * 3


reads.register_autograd(_backward, setup_context=_save_inputs)
