"""attend: one function, several executors of one meaning. `reference` defines it; the others are only faster."""

from collections.abc import Mapping
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.bias import Bias, BindFn
from kinformer.core.layer import Context
from kinformer.core.pattern import Pattern, narrowed
from kinformer.core.read import Read
from kinformer.execute import reference, sdpa

Impl = Literal["auto", "reference", "sdpa"]


def attend(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S V"],
    *,
    q_pos: Int[Tensor, "B #H T"],
    k_pos: Int[Tensor, "B #H S"],
    pattern: Pattern,
    bias: Bias | BindFn | None = None,
    scale: float | None = None,
    lse: bool = True,
    dropout: float = 0.0,
    rows: Int[Tensor, " B"] | None = None,
    run: bool = False,
    impl: Impl = "auto",
    ctx: Context | None = None,
    sides: Mapping[str, Tensor] | None = None,
) -> Read:
    """Read the keys that the pattern allows.

    Y = softmax(scale q.k + bias) v over them, and the log-sum-exp of their scores.

    What every mechanism that multiplies queries and keys calls. Positions are absolute, -1 is padding; keys may lie
    in any order. A ctx narrows and widens the pattern by its `only` and `also`. `rows` names the batch row of each
    row where queries or buckets are folded into the batch; `run` promises that positions are consecutive, which
    executors that read by array index need. `impl="auto"` takes sdpa where no lse and no bias is wanted, else the
    reference. Dropout drops weights, never the lse.

    Errors: ValueError for an unknown impl, or one that cannot do what was asked. Source: Vaswani et al., 2017,
    arXiv:1706.03762.
    """
    if ctx is not None:
        pattern = narrowed(pattern, ctx.only, ctx.also)
    if impl == "auto":
        impl = "sdpa" if bias is None and not lse else "reference"
    if impl == "reference":
        return reference.attend(
            q,
            k,
            v,
            q_pos=q_pos,
            k_pos=k_pos,
            pattern=pattern,
            bias=bias,
            scale=scale,
            dropout=dropout,
            rows=rows,
            ctx=ctx,
            sides=sides,
        )
    if impl != "sdpa":
        raise ValueError(f"impl={impl!r} is not an executor; choose 'auto', 'reference' or 'sdpa'")
    if bias is not None or lse:
        what = "a bias" if bias is not None else "an lse"
        raise ValueError(f"impl='sdpa' was asked for {what}, which it cannot give; use impl='reference', or drop it")
    return sdpa.attend(q, k, v, q_pos=q_pos, k_pos=k_pos, pattern=pattern, scale=scale, dropout=dropout, rows=rows)


__all__ = ["Impl", "attend"]
