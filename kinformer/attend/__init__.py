"""The function `attend` and the choice of an executor, one of several ways to compute attention.

All executors compute the same result. The executor `reference` defines this result; the others are only faster.

Each file in the folder `executors` is an executor. It has the functions `cost(request)`, which returns estimated
seconds or a Refusal, and `read(request)`. If `cost` itself is slow, the file also has `estimation_time(request)`, the
seconds of a call of `cost`. Such an executor is skipped if another executor reads in less time.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import autocast_dtype
from kinformer.core.bias import Bias
from kinformer.core.checks import check_option, check_part, check_scale
from kinformer.core.discover import modules
from kinformer.core.heads import Keys, Queries
from kinformer.core.keyword_hints import hint_keywords
from kinformer.core.layer import Context, has_integer_dtype
from kinformer.core.memo import Memo
from kinformer.core.pattern import Pattern, check_pattern, narrow_pattern
from kinformer.core.patterns.full import Full
from kinformer.core.quote import quote
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product

PRODUCT, FULL = Product(), Full()
CHOICE = 2e-5  # seconds that the estimates of all executors take

__all__ = ["EXECUTORS", "attend", "explain", "impl_of", "read"]


def read(request: Request, impl: str = "auto") -> AttentionOutput:
    """Compute an attention call with the fastest executor or with a named one.

    request: queries, keys, pattern, score and bias of one attention call.
    impl: name of an executor (a way to compute attention), or "auto" for the one with the least estimated time. For one
        query, "auto" takes PyTorch's function without further estimates if it reads in less time than they take.

    Returns y and, if the executor computes it, the log-sum-exp.
    Errors: ValueError if `impl` names no executor, or if the named executor refuses the request.
    """
    if impl != "auto":
        named_cost = EXECUTORS[impl_of(impl)].cost(request)
        if isinstance(named_cost, Refusal):
            raise ValueError(f"impl={quote(impl)} cannot compute this call: {named_cost.reason}; use impl='auto'")
        return EXECUTORS[impl].read(request)
    compiling = torch.compiler.is_compiling()
    is_single = request.queries.q.shape[2] == 1
    # such a graph serves all lengths: it holds no estimates. An exported one also runs without our operators
    is_general = torch.compiler.is_exporting() or (compiling and is_single)
    if is_general or is_single:
        cost = EXECUTORS["sdpa"].cost(request)
        is_refused = isinstance(cost, Refusal)
        if is_general or (not is_refused and cost < CHOICE):
            return EXECUTORS["reference" if is_refused else "sdpa"].read(request)
    best, least = "reference", torch.inf
    asking = {} if compiling else {name: _estimation_time(name, request) for name in EXECUTORS}
    for name in sorted(asking, key=asking.__getitem__) if asking else EXECUTORS:
        if asking and least < asking[name]:
            break
        cost = EXECUTORS[name].cost(request)
        if not isinstance(cost, Refusal) and cost < least:
            best, least = name, cost
    return EXECUTORS[best].read(request)


def _estimation_time(name: str, request: Request) -> float:
    estimate = getattr(EXECUTORS[name], "estimation_time", None)
    return 0.0 if estimate is None else estimate(request)


def explain(request: Request) -> dict[str, float | Refusal]:
    """Return the estimated seconds, or the Refusal, of every executor for a request, the fastest first."""
    costs = {name: executor.cost(request) for name, executor in EXECUTORS.items()}
    return dict(sorted(costs.items(), key=lambda item: torch.inf if isinstance(item[1], Refusal) else item[1]))


def impl_of(name: str) -> str:
    """Return `name` if it is "auto" or an executor (way to compute attention); else raise ValueError."""
    return check_option("impl", name, ("auto", *EXECUTORS))


@hint_keywords
def attend(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B U S V"],
    *,
    pattern: Pattern = FULL,
    q_pos: Int[Tensor, "B #H T"] | None = None,
    k_pos: Int[Tensor, "B #H S"] | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    lse: bool = True,
    dropout: float = 0.0,
    rows: Int[Tensor, " B"] | None = None,
    impl: str = "auto",
    ctx: Context | None = None,
    extras: Mapping[str, Tensor] | None = None,
) -> AttentionOutput:
    """Compute attention of queries over the keys that a pattern allows.

        y = softmax(scale q.k + bias) v

    The softmax runs over the allowed keys of each query. The function also returns the log-sum-exp of their scores.
    Use this function if you have q, k and v already. A layer with projections is in `kinformer.nn`.

    q: queries [B, H, T, K].
    k: keys [B, G, S, K]; H is a multiple of G.
    v: values [B, U, S, V]; H is a multiple of U. Tensors of FlashAttention's layout [B, T, H, K] are passed as
        x.transpose(1, 2). Otherwise the token axis is read as heads; the shapes do not show it.
    pattern: the keys that each query may read.
    q_pos, k_pos: absolute positions of queries [B, 1, T] or [B, H, T] and of keys [B, 1, S] or [B, H, S]. -1 marks
        padding. Keys may lie in any order. Without both, the positions of `ctx` count. Without `ctx` too, keys have
        positions 0 .. S - 1, and queries have the positions of the last T keys.
    bias: a change of the scores. It finds tensors that it needs for each query in `extras`.
    scale: factor of the product q.k, by default 1/sqrt(K).
    lse: True to return the log-sum-exp, which `merge` needs. False allows executors (ways to compute attention) that do
        not return it and may be faster.
    dropout: probability with which a weight is dropped. Dropout does not change the log-sum-exp.
    rows: index in the batch of each row [B], if queries or hash buckets are folded into the batch.
    impl: name of an executor; "auto" selects the one with the least estimated time.
    ctx: context of the layer, such as `Context.of_sequence(x, mask)`. Its `only` narrows the pattern and its `also`
        widens it. It also provides the labels of tokens, values from earlier blocks (`below`) and the memo of shared
        results.
    extras: tensors with numbers for each query by name, for the bias.

    Returns y [B, H, T, V] and the log-sum-exp [B, H, T]. The latter may be None if `lse` is False.
    Errors: ValueError if shapes do not fit, if positions have shape [B, T], if `impl` is unknown, or if the named
    executor refuses the call. Queries may outnumber keys only under `Full` or with a given `q_pos`.
    Source: Vaswani et al., 2017, arXiv:1706.03762.
    """
    check_pattern("pattern", pattern)
    check_scale(scale)
    if bias is not None:
        check_part("bias", bias, Bias, "a bias, such as ALiBi(heads), or AttentionMask(table) of numbers [B, H, T, S]")
    if ctx is not None and q_pos is None and k_pos is None:
        q_pos, k_pos = ctx.by_head, ctx.by_head if ctx.source_pos is None else ctx.source_by_head
    _check_shapes(q, k, v, q_pos, k_pos)
    if q_pos is None and q.shape[2] > k.shape[2] and type(pattern) is not Full:
        raise ValueError(
            f"got {q.shape[2]} queries but only {k.shape[2]} keys; pass q_pos= and k_pos=, because without positions "
            "queries are the last tokens of the keys"
        )
    plain = q_pos is None and k_pos is None
    # the promises of a context hold only for its own positions
    same = ctx is not None and q_pos is ctx.by_head and (k_pos is q_pos or _of_source(k_pos, ctx))
    is_own = ctx is None or k_pos is None or k_pos is ctx.by_head
    if k_pos is None:
        k_pos = torch.arange(k.shape[2], device=q.device).expand(k.shape[0], 1, -1)
    if q_pos is None:
        # executors recognise equal positions by object identity
        few = q.shape[2] < k.shape[2]
        q_pos = k_pos[..., k.shape[2] - q.shape[2] :] if few else k_pos
        if q.shape[2] > k.shape[2]:  # only under `Full`, which ignores positions
            q_pos = torch.arange(q.shape[2], device=q.device).expand(q.shape[0], 1, -1)
    labels = {} if ctx is None else ctx.labels
    queries, keys = (
        Queries(q, q_pos, extras or {}, labels),
        Keys(k, v, k_pos, labels=labels if is_own else {}, own=is_own),
    )
    full = plain or (same and ctx is not None and ctx.full)
    if not full and not (ctx is not None and ctx.is_clean) and _may_be_padded(q_pos, k_pos):
        queries, keys = queries.with_zeroed_padding(), keys.with_zeroed_padding()
    request = Request(
        queries,
        keys,
        pattern if ctx is None else narrow_pattern(pattern, ctx.only, ctx.also),
        PRODUCT,
        bias,
        (q.shape[-1] or 1) ** -0.5 if scale is None else scale,
        lse,
        dropout,
        rows,
        plain or (same and ctx is not None and ctx.run),
        full,
        {} if ctx is None else ctx.below,
        Memo() if ctx is None else ctx.memo,
    )
    return read(request.prepare_bias(), impl)


def _may_be_padded(*positions: Tensor) -> bool:
    """True if there is padding, or if a check would have to wait for a device other than the CPU."""
    if torch.compiler.is_compiling() or any(pos.device.type != "cpu" for pos in positions):
        return True
    return any(bool((pos < 0).any()) for pos in positions)


def _of_source(k_pos: Tensor | None, ctx: Context) -> bool:
    return ctx.source_pos is not None and k_pos is ctx.source_by_head


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor | None, k_pos: Tensor | None) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"attend needs tensors: got {name}={quote(x)}; make it with torch.as_tensor({name})")
    has_dims = {q.dim(), k.dim(), v.dim()} == {4}
    if not has_dims or not len(q) == len(k) == len(v) or k.shape[2] != v.shape[2]:
        advice = ""
        if has_dims:
            advice = "; give a value for each key" if k.shape[2] != v.shape[2] else "; give all three the same batch B"
        elif q.dim() == 3:
            advice = "; split the heads of [B, T, D] with x.unflatten(-1, (H, -1)).transpose(1, 2)"
        raise ValueError(
            f"attend needs q [B, H, T, K], k [B, G, S, K] and v [B, U, S, V], got {_shapes(q, k, v)}{advice}"
        )
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"queries and keys have different widths ({_shapes(q, k, v)}); give both the same K")
    if not q.is_floating_point():
        raise ValueError(f"q is {q.dtype}, expected a floating tensor; pass q.float(), k.float() and v.float()")
    if len({autocast_dtype(x) for x in (q, k, v)}) > 1:
        raise ValueError(f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}; give all three the same dtype")
    for name, pos, x in (("q_pos", q_pos, q), ("k_pos", k_pos, k)):
        if pos is None:
            continue
        fits = pos.dim() == 3 and len(pos) == len(x) and pos.shape[2] == x.shape[2] and has_integer_dtype(pos)
        if not fits or pos.shape[1] not in (1, q.shape[1]):
            raise ValueError(
                f"{name} must be integers [B, 1, N] or [B, H, N] for {_shapes(q, k, v)}, got {pos.dtype} of shape "
                f"{list(pos.shape)}; pass positions [B, N] as {name}[:, None]"
            )


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return ", ".join(f"{name} {list(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))


# Built last, because an executor may import the functions of this file.
EXECUTORS = modules("executors")
