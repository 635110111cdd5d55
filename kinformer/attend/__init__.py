"""attend: one function, several executors of one meaning. `reference` defines it; the others are only faster.

An executor is a file with `cost(request)`, estimated seconds or a Refusal, and `read(request)`. The folder is the list.
An executor whose `cost` itself takes long has `estimation_time(request)`, the seconds of that call. It is skipped if
another executor reads in less time.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import autocast_dtype
from kinformer.core.bias import Bias
from kinformer.core.checks import check_option, check_part
from kinformer.core.discover import modules
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context, has_integer_dtype
from kinformer.core.memo import Memo
from kinformer.core.pattern import Pattern, check_pattern, narrow_pattern
from kinformer.core.patterns.full import Full
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product

PRODUCT, FULL = Product(), Full()

__all__ = ["EXECUTORS", "attend", "explain", "impl_of", "read"]


def read(request: Request, impl: str = "auto") -> AttentionOutput:
    """What a request reads: by the cheapest executor, or by the named one. ValueError where that one refuses."""
    if impl != "auto":
        named_cost = EXECUTORS[impl_of(impl)].cost(request)
        if isinstance(named_cost, Refusal):
            raise ValueError(f"impl={impl!r} cannot do this: {named_cost.reason}; use impl='auto'")
        return EXECUTORS[impl].read(request)
    best, least, compiling = "reference", torch.inf, torch.compiler.is_compiling()
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
    """Every executor's estimate in seconds for a request, or why it refuses; the cheapest first."""
    costs = {name: executor.cost(request) for name, executor in EXECUTORS.items()}
    return dict(sorted(costs.items(), key=lambda item: torch.inf if isinstance(item[1], Refusal) else item[1]))


def impl_of(name: str) -> str:
    """The name of an executor, or "auto"; ValueError for another."""
    return check_option("impl", name, ("auto", *EXECUTORS))


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
    """Read the keys that the pattern allows.

    y = softmax(scale q.k + bias) v over them, and the log-sum-exp of their scores.

    pattern: which keys each query may read.
    q_pos, k_pos: absolute positions [B 1 T] or [B H T], -1 is padding; keys may lie in any order. Without k_pos keys
        stand at 0 .. S - 1, and without q_pos queries where the last T keys do.
    bias: a change of the scores; its `extras` are given by name.
    scale: the factor of the product, 1/sqrt(K) unless given.
    lse: whether the log-sum-exp is wanted, which `merge` needs; without it faster executors may serve.
    dropout: the share of weights that are dropped, never of the lse.
    rows: the batch row of each row, where queries or buckets are folded into the batch.
    impl: an executor by name; "auto" takes the cheapest that can.
    ctx: narrows and widens the pattern by its `only` and `also`, and brings labels, `below` and the memo.

    Errors: ValueError for shapes that do not fit, for positions [B T], for an unknown impl or one that cannot do what
    was asked. Source: Vaswani et al., 2017, arXiv:1706.03762.
    """
    check_pattern("pattern", pattern)
    if bias is not None:
        check_part("bias", bias, Bias, "a bias, such as ALiBi(heads)")
    _check_shapes(q, k, v, q_pos, k_pos)
    if q_pos is None and q.shape[2] > k.shape[2] and type(pattern) is not Full:
        raise ValueError(f"{q.shape[2]} queries are no last ones of {k.shape[2]} keys; give q_pos= and k_pos=")
    plain = q_pos is None and k_pos is None
    # what a context promises of its positions says nothing of others
    same = ctx is not None and q_pos is ctx.by_head and (k_pos is q_pos or _of_source(k_pos, ctx))
    is_own = ctx is None or k_pos is None or k_pos is ctx.by_head
    if k_pos is None:
        k_pos = torch.arange(k.shape[2], device=q.device).expand(k.shape[0], 1, -1)
    if q_pos is None:
        # one object where queries stand where keys do: by that executors know it
        few = q.shape[2] < k.shape[2]
        q_pos = k_pos[..., k.shape[2] - q.shape[2] :] if few else k_pos
        if q.shape[2] > k.shape[2]:  # of `Full`, which asks for no position
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
    """True if there is padding, or on a device other than a CPU, where a check would wait for the device."""
    if torch.compiler.is_compiling() or any(pos.device.type != "cpu" for pos in positions):
        return True
    return any(bool((pos < 0).any()) for pos in positions)


def _of_source(k_pos: Tensor | None, ctx: Context) -> bool:
    return ctx.source_pos is not None and k_pos is ctx.source_by_head


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor | None, k_pos: Tensor | None) -> None:
    if {q.dim(), k.dim(), v.dim()} != {4} or len({len(x) for x in (q, k, v)}) > 1 or k.shape[2] != v.shape[2]:
        raise ValueError(f"attend wants q [B H T K], k [B G S K] and v [B U S V]; {_shapes(q, k, v)} came")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"queries and keys have other widths ({_shapes(q, k, v)}); give both the same K")
    if len({autocast_dtype(x) for x in (q, k, v)}) > 1:
        raise ValueError(f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}; give all the same")
    for name, pos, x in (("q_pos", q_pos, q), ("k_pos", k_pos, k)):
        if pos is None:
            continue
        fits = pos.dim() == 3 and len(pos) == len(x) and pos.shape[2] == x.shape[2] and has_integer_dtype(pos)
        if not fits or pos.shape[1] not in (1, q.shape[1]):
            raise ValueError(
                f"{name} has shape {list(pos.shape)} and {pos.dtype}; positions are whole numbers [B 1 N] or [B H N] "
                f"for {_shapes(q, k, v)}; positions [B N] want {name}[:, None]"
            )


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return ", ".join(f"{name} {list(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))


# Built last, because an executor may import the functions of this file.
EXECUTORS = modules("executors")
