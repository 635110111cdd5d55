"""Law merge: attention outputs for pieces of the keys can be merged to the output for all keys.

The merge uses the log-sum-exp of the scores of each piece. The law compares y, the log-sum-exp and the gradients.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism
from kinformer.laws.support.findings import Broken, findings
from kinformer.laws.support.queries_and_keys import draw_queries_and_keys

SAYS = "attention outputs for pieces of the keys can be merged to the output for all keys"
OVER = "mechanism"
PIECES = (2, 3, 9)


def judge(mechanism: Mechanism) -> Iterator[str]:
    """Merge attention outputs for random pieces of the keys, and compare them with one call over all keys.

    mechanism: the mechanism to test.

    For each piece, the mechanism gets the keys of the other pieces as padding. The test yields a sentence for each
    difference.
    """
    mechanism = mechanism.double().eval()
    queries, keys = draw_queries_and_keys(mechanism)
    whole = _read(mechanism, queries, keys)
    if whole.lse is None:
        yield (
            f"{type(mechanism).__name__} returns no lse, so its outputs cannot merge; return AttentionOutput(y, lse) "
            "with the log-sum-exp of its scores, or declare in breaks why there is none"
        )
        return
    for seed, pieces in enumerate(PIECES):
        yield from findings(_check_merge, mechanism, queries, keys, whole, pieces, seed)


def _check_merge(
    mechanism: Mechanism, queries: Queries, keys: Keys, whole: AttentionOutput, pieces: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    owner = torch.randint(pieces, keys.pos.shape, generator=g)
    reads = [_read(mechanism, queries, keys._replace(pos=keys.pos.masked_fill(owner != n, -1))) for n in range(pieces)]
    joined = merge(*reads)
    name = type(mechanism).__name__
    _check_same(name, "y", whole.y, joined.y)
    _check_same(name, "lse", whole.lse, joined.lse)
    weights = torch.randn(whole.y.shape, generator=g, dtype=torch.float64)
    for name_of_input, x in (("q", queries.q), ("k", keys.k), ("v", keys.v)):
        _check_same(
            name, f"the gradient of {name_of_input}", *(_gradient(_sum(read, weights), x) for read in (whole, joined))
        )


def _read(mechanism: Mechanism, queries: Queries, keys: Keys) -> AttentionOutput:
    return mechanism(queries, keys, None, Context(queries.pos[:, 0], run=True)).y


def _sum(read: AttentionOutput, weights: Tensor) -> Tensor:
    assert read.lse is not None
    return (read.y * weights).sum() + torch.where(read.lse > -torch.inf, read.lse, 0.0).sum()


def _gradient(value: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a value by x, or zeros if the value does not depend on x."""
    (gradient,) = torch.autograd.grad(value, x, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if gradient is None else gradient


def _check_same(name: str, quantity: str, whole: Tensor | None, joined: Tensor | None) -> None:
    assert whole is not None and joined is not None
    if not torch.allclose(whole, joined, atol=1e-9, rtol=1e-9):
        apart = (whole - joined).detach().abs()
        max_difference = float(apart[apart.isfinite()].max())
        raise Broken(
            f"{name}: {quantity} of merged pieces differs from one attention call over all keys by {max_difference:.2g}"
        )
