"""Law received_attention: the attention that each key received is the sum of its attention weights."""

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.bias import Bias
from kinformer.core.choice import Choices
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.full import Full
from kinformer.core.score import Score
from kinformer.laws.support.comparisons import agree
from kinformer.laws.support.findings import Broken, Unjudged, findings
from kinformer.laws.support.queries_and_keys import WIDTH, draw_queries_and_keys
from kinformer.laws.support.subject import make_rounded_pair
from kinformer.nn.mechanisms.softmax import Softmax

SAYS = "the received attention of each key is the sum of the weights of its value"
OVER = ("mechanism", "score", "bias")
NEAR = {torch.float32: 1e-4, torch.bfloat16: 5e-2}  # relative to the largest received attention
PIECES = 3
ROUNDING = 1e-12  # of weights, which add up to 1
Part = TypeVar("Part", Queries, Keys)
KEYS = PIECES * WIDTH  # groups of WIDTH keys get one-hot values in turn


def judge(part: Mechanism | Score | Bias) -> Iterator[str]:
    """Compare `received_attention` with sums of attention weights, and yield each difference.

    part: the mechanism, score or bias to test.

    The received attention of a key is the sum of its weights over all queries, averaged over heads. It is compared in a
    full and in a padded row. One-hot values reveal the weights if the output is a weighted sum of the values.
    Otherwise, the sums are reported as not tested. In float32 and bfloat16, the result must be close to the result of
    the same rounded numbers in float64.
    """
    if isinstance(part, Score):
        part = Softmax(Full(), score=part)
    mechanism = (Softmax(Full(), part) if isinstance(part, Bias) else part).double().eval()
    queries, keys = draw_queries_and_keys(mechanism, tokens=KEYS)
    pos = torch.arange(KEYS) - torch.tensor([0, 3])[:, None, None]
    pos = pos.where(pos >= 0, -1)
    queries, keys = queries._replace(pos=pos), keys._replace(pos=pos)
    read = _read(mechanism, queries, keys)
    try:
        received = mechanism.received_attention(queries, keys, read, _context(queries))
    except (ValueError, TypeError) as error:
        if "\n" in str(error):
            yield f"received_attention is refused with an error of more than one line: {error}"
        raise Unjudged(f"refused: {error}") from error
    yield from findings(_check_plausible, received, pos)
    for dtype in NEAR:
        yield from findings(_check_rounded, mechanism, queries, keys, pos, dtype)
    yield from findings(_check_sums, mechanism, queries, keys, read, received)


def _check_plausible(received: Tensor, pos: Tensor) -> None:
    if received.shape != (shape := pos.squeeze(1).shape):
        raise Broken(f"the received attention has shape {list(received.shape)}, expected {list(shape)}")
    if not received.isfinite().all() or bool((received < -ROUNDING).any()):
        raise Broken(
            f"a key has a received attention of {float(received.nan_to_num().min()):.6g}, NaN or infinity; a sum of "
            "weights is finite and at least 0"
        )
    if bool((received[pos.squeeze(1) < 0].abs() > ROUNDING).any()):
        raise Broken("a key at padding has a received attention above 0, but no query reads it")


@torch.no_grad()
def _check_sums(mechanism: Mechanism, queries: Queries, keys: Keys, read: AttentionOutput, received: Tensor) -> None:
    nothing = _read(mechanism, queries, keys._replace(v=torch.zeros_like(keys.v))).y
    one_hot = (torch.eye(KEYS, dtype=keys.v.dtype)[:, at].expand_as(keys.v) for at in torch.arange(KEYS).split(WIDTH))
    weights = torch.cat([_read(mechanism, queries, keys._replace(v=v)).y - nothing for v in one_hot], -1)  # [B H T S]
    if weights.shape[1] != keys.v.shape[1] or not torch.allclose(weights @ keys.v + nothing, read.y, atol=1e-9):
        raise Unjudged(
            "the output is not a weighted sum of the values of the same head, so weights cannot be summed by key"
        )
    real = (queries.pos >= 0)[..., None]
    want = weights.where(real, 0.0).sum(2).mean(1)
    unread = (want <= ROUNDING) & (received > 1000 * ROUNDING)
    if unread.any():
        b, k = unread.nonzero()[0].tolist()
        raise Broken(
            f"key {k} of row {b} has a received attention of {float(received[b, k]):.6g}, but no query reads it"
        )
    agree(received, want, "the received attention of a key differs from the sum of the weights of its value")


@torch.no_grad()
def _check_rounded(mechanism: Mechanism, queries: Queries, keys: Keys, pos: Tensor, dtype: torch.dtype) -> None:
    """Compare a lower precision with float64 on the same rounded numbers."""
    (low, exact), choices, received = make_rounded_pair(mechanism, dtype), Choices(), []
    for mechanism_copy, wide, choosing in ((low, dtype, choices.record), (exact, torch.float64, choices.replay)):
        q, k = _rounded_to(dtype, wide, queries), _rounded_to(dtype, wide, keys)
        with choosing():
            received.append(mechanism_copy.received_attention(q, k, _read(mechanism_copy, q, k), _context(q)))
    _check_plausible(received[0], pos)
    agree(
        received[0], received[1], f"the received attention of a key in {dtype} differs from float64", bound=NEAR[dtype]
    )


def _rounded_to(dtype: torch.dtype, wide: torch.dtype, part: Part) -> Part:
    """Round queries or keys to `dtype` and store them as `wide`."""

    def cast(x: Tensor) -> Tensor:
        return x.to(dtype).to(wide)

    extras = {name: cast(side) for name, side in part.extras.items()}
    if isinstance(part, Queries):
        return part._replace(q=cast(part.q), extras=extras)
    return part._replace(k=cast(part.k), v=cast(part.v), extras=extras)


def _context(queries: Queries) -> Context:
    return Context(queries.pos[:, 0], run=True, labels=queries.labels)


def _read(mechanism: Mechanism, queries: Queries, keys: Keys) -> AttentionOutput:
    return mechanism(queries, keys, None, _context(queries)).y
