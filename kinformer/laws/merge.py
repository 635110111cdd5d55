"""Law 14: the reads of any partition of the keys merge to the read of all, in values, lse and gradients."""

import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism
from kinformer.core.read import Read, merge
from kinformer.laws.broken import Broken

BATCH, HEADS, WIDTH, TOKENS = 2, 2, 8, 9


def check(mechanism: Mechanism, *, pieces: int = 3, seed: int = 0) -> None:
    """Split the keys at random, read each piece alone (the others marked as padding), and merge."""
    g = torch.Generator().manual_seed(seed)
    mechanism = mechanism.double()
    q, k, v = (
        torch.randn(BATCH, HEADS, TOKENS, WIDTH, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    sides = {
        name: torch.randn(BATCH, HEADS, TOKENS, n, generator=g, dtype=torch.float64)
        for name, n in mechanism.sides(WIDTH, WIDTH).items()
    }
    pos = torch.arange(TOKENS).expand(BATCH, -1)
    ctx = Context(pos, run=True)
    owner = torch.randint(pieces, (BATCH, TOKENS), generator=g)

    def read(k_pos: Tensor) -> Read:
        found = mechanism(q, k, v, k_pos, None, ctx, sides).y
        if found.lse is None:
            raise Broken(f"{type(mechanism).__name__} gives no lse, so what it reads cannot be merged with anything")
        return found

    whole = read(pos)
    joined = merge(*(read(torch.where(owner == n, pos, -1)) for n in range(pieces)))
    _same(type(mechanism).__name__, "y", whole.y, joined.y)
    _same(type(mechanism).__name__, "lse", whole.lse, joined.lse)
    ones = torch.randn(whole.y.shape, generator=g, dtype=torch.float64)
    for name, x in (("q", q), ("k", k), ("v", v)):
        gradients = [_gradient(_sum(r, ones), x) for r in (whole, joined)]
        _same(type(mechanism).__name__, f"the gradient of {name}", *gradients)


def _sum(read: Read, ones: Tensor) -> Tensor:
    assert read.lse is not None
    return (read.y * ones).sum() + torch.where(read.lse > -torch.inf, read.lse, 0.0).sum()


def _gradient(value: Tensor, x: Tensor) -> Tensor:
    """Zeros where the mechanism makes nothing of x."""
    (found,) = torch.autograd.grad(value, x, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


def _same(name: str, what: str, whole: Tensor | None, joined: Tensor | None) -> None:
    assert whole is not None and joined is not None
    if not torch.allclose(whole, joined, atol=1e-9, rtol=1e-9):
        apart = (whole - joined).detach().abs()
        raise Broken(
            f"{name}: {what} of merged pieces is {float(apart[apart.isfinite()].max()):.2g} away from that of one read"
        )
