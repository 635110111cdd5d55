"""NaN and infinite numbers at padding of queries and keys change no mechanism's read, and no gradient of real ones."""

import math
from typing import Any

import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism
from kinformer.laws.support.queries_and_keys import draw_queries_and_keys
from tests.discovered import discovered

WILD = (math.nan, math.inf, -math.inf)


def spoiled(x: Tensor, real: Tensor) -> Tensor:
    wild = torch.tensor(WILD).repeat(x.numel())[: x.numel()].view_as(x).to(x)
    return torch.where(real[:, None, :, None], x.detach(), wild).requires_grad_()


def read(mechanism: Any, wild: bool) -> list[Tensor]:
    """What the second row's last six tokens read, and the gradients of all that made it."""
    queries, keys = draw_queries_and_keys(mechanism)
    pos = torch.arange(queries.q.shape[2]) - torch.tensor([0, 3])[:, None]
    real = pos >= 0
    at = torch.where(real, pos, -1)[:, None]
    queries, keys = queries._replace(pos=at), keys._replace(pos=at)
    if wild:
        extras = {name: spoiled(side, real) for name, side in queries.extras.items()}
        queries = queries._replace(q=spoiled(queries.q, real), extras=extras)
        extras = {name: spoiled(side, real) for name, side in keys.extras.items()}
        keys = keys._replace(k=spoiled(keys.k, real), v=spoiled(keys.v, real), extras=extras)
    out = mechanism(queries, keys, None, Context(at[:, 0], run=True, labels=queries.labels))
    y = out.y.y.transpose(1, 2)[real]
    leaves = [queries.q, keys.k, keys.v, *queries.extras.values(), *keys.extras.values()]
    weights = [weight for weight in mechanism.parameters() if weight.requires_grad]
    gradients = torch.autograd.grad(y.sin().sum(), [*leaves, *weights], allow_unused=True)
    by_token = [None if tensor is None else tensor.transpose(1, 2)[real] for tensor in gradients[: len(leaves)]]
    return [y, *(tensor for tensor in (*by_token, *gradients[len(leaves) :]) if tensor is not None)]


def test_what_stands_at_padding_may_be_no_number() -> None:
    """Of each file the first example."""
    judged = {entry.name: entry.part for entry in discovered("mechanisms") if entry.name.endswith(".0")}
    alone = {name: part.double().eval() for name, part in judged.items() if isinstance(part, Mechanism)}
    assert len(alone) > 30
    for name, mechanism in alone.items():
        for ours, theirs in zip(read(mechanism, True), read(mechanism, False), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10, msg=lambda text: f"{name}: {text}")  # noqa: B023
