"""Law 4: every executor equals the reference in y, lse and gradients."""

import torch
from torch import Tensor

from kinformer.core.bias import Bias
from kinformer.core.pattern import Pattern
from kinformer.execute import Impl, attend
from kinformer.laws.broken import Broken

BATCH, HEADS, GROUPS, WIDTH = 2, 4, 2, 8


def check(
    impl: Impl, pattern: Pattern, bias: Bias | None = None, *, lse: bool = False, length: int = 11, seed: int = 0
) -> None:
    """Keys in any order, rows padded differently, grouped heads, and queries that may read nothing."""
    g = torch.Generator().manual_seed(seed)
    keys = length + 2
    shapes = ((HEADS, length), (GROUPS, keys), (GROUPS, keys))
    q, k, v = (torch.randn(BATCH, h, n, WIDTH, generator=g, dtype=torch.float64, requires_grad=True) for h, n in shapes)
    k_pos = torch.stack([torch.randperm(keys, generator=g) for _ in range(BATCH)])
    k_pos[0, : keys // 3] = -1
    q_pos = torch.arange(length).expand(BATCH, -1).clone()
    q_pos[1, :3] = -1

    def read(executor: Impl) -> list[Tensor | None]:
        found = attend(
            q, k, v, q_pos=q_pos[:, None], k_pos=k_pos[:, None], pattern=pattern, bias=bias, lse=lse, impl=executor
        )
        g2 = torch.Generator().manual_seed(seed)
        loss = (found.y * torch.randn(found.y.shape, generator=g2, dtype=torch.float64)).sum()
        if lse and found.lse is not None:
            loss = loss + torch.where(found.lse > -torch.inf, found.lse, 0.0).sin().sum()
        return [found.y, found.lse if lse else None, *torch.autograd.grad(loss, (q, k, v))]

    for what, ours, theirs in zip(("y", "lse", "dq", "dk", "dv"), read(impl), read("reference"), strict=True):
        if ours is None and theirs is None:
            continue
        if ours is None or theirs is None or not torch.allclose(ours, theirs, atol=1e-10, rtol=1e-9):
            raise Broken(f"executor {impl!r} differs from the reference in {what} under {pattern}")
        if not torch.isfinite(theirs).all() and what != "lse":
            raise Broken(f"the reference gives {what} that is not finite under {pattern}")
