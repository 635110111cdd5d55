"""Law impl: every executor (a way to compute attention) gives the results of the reference executor.

The law compares the output y, the log-sum-exp (lse) of the scores, and the gradients of a loss that uses both.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kinformer.attend import EXECUTORS
from kinformer.attend.executors import reference
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.bias import Bias
from kinformer.core.pattern import Pattern
from kinformer.core.request import Refusal, Request
from kinformer.laws.support.findings import Broken, Unjudged, find_smallest
from kinformer.laws.support.random_requests import draw_request, requests_of_each_feature
from kinformer.laws.support.subject import EFFORT

SAYS = "every executor gives the result of the reference executor"
OVER = ("executor", "pattern", "bias")
LENGTH = 11
DRAWS, FEW = 40 * EFFORT, 6 * EFFORT  # requests for an executor; for each executor with one pattern or bias


def judge(subject: ModuleType | Pattern | Bias) -> Iterator[str]:
    """Compare executors with the reference executor on random requests, and yield each difference.

    subject: module of an executor (a way to compute attention), or a pattern or bias. A pattern or bias is tested with
        all executors.

    A request holds the inputs of one attention call. Requests have grouped heads, other numbers of value heads,
    padding, keys in any order, and several lengths. An executor is also tested with and without each feature of a
    request, such as padding, under patterns of each kind. A request that the executor refuses is skipped. If all
    requests are refused, the law counts as not tested.
    """
    refused: Counter[str] = Counter()
    component = None if isinstance(subject, ModuleType) else subject
    executors = EXECUTORS.values() if component is not None else (subject,)
    count = DRAWS if component is None else FEW
    makers: list[Callable[[int], Request]] = [
        partial(draw_request, component=component, seed=seed) for seed in range(count)
    ]
    makers += requests_of_each_feature() if component is None else ()
    for executor in executors:
        for request in makers:
            yield from find_smallest(_check_executor, LENGTH, executor, request, refused)
    if refused.total() and refused.total() >= len(makers) * len(list(executors)):
        raise Unjudged(
            f"all requests are refused: {', '.join(f'{reason} ({n} times)' for reason, n in refused.most_common())}"
        )


def _check_executor(length: int, executor: Any, make: Callable[[int], Request], refused: Counter[str]) -> None:
    request = make(length)
    cost = executor.cost(request)
    if isinstance(cost, Refusal):
        refused[cost.reason] += 1
        return
    name = executor.__name__.rpartition(".")[2]
    if not cost >= 0:
        raise Broken(f"cost of executor {name!r} is {cost}; return a number of seconds of at least 0, or a Refusal")
    actual, expected = executor.read(request), reference.read(request)
    description = f"under {request.pattern}, {_describe(request)}"
    _check_same(actual, expected, request, f"executor {name!r} differs from the reference", description)


def _check_same(
    actual: AttentionOutput, expected: AttentionOutput, request: Request, sentence: str, description: str
) -> None:
    _check_near(actual.y, expected.y, f"{sentence} in y {description}")
    if request.lse:
        if actual.lse is None or expected.lse is None:
            raise Broken(f"{sentence}: the request asks for the lse, but there is none {description}")
        _check_near(actual.lse, expected.lse, f"{sentence} in lse {description}")
    leaves = _differentiable(request)
    ours, theirs = (_gradients(read, request, leaves) for read in (actual, expected))
    for name in leaves:
        _check_near(ours[name], theirs[name], f"{sentence} in the gradient of {name} {description}")


def _check_near(actual: Tensor, expected: Tensor, sentence: str) -> None:
    if actual.shape != expected.shape or not torch.allclose(actual, expected, atol=1e-9, rtol=1e-9):
        raise Broken(sentence)


def _differentiable(request: Request) -> dict[str, Tensor]:
    queries, keys = request.queries, request.keys
    by_name = {"q": queries.q, "k": keys.k, "v": keys.v}
    sides = {**queries.extras, **keys.extras}
    by_name |= {f"side {name}": side for name, side in sides.items() if side.requires_grad and side.is_leaf}
    return by_name | ({} if request.bias is None else dict(request.bias.named_parameters()))


def _gradients(read: AttentionOutput, request: Request, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    loss = (read.y * torch.randn(read.y.shape, generator=g, dtype=read.y.dtype)).sum()
    if request.lse and read.lse is not None:
        loss = loss + torch.where(read.lse > -torch.inf, read.lse, 0.0).sin().sum()
    if not loss.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    # both outputs share the graph of what the bias prepared, so the graph is retained
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, retain_graph=True)
    return {n: torch.zeros_like(x) if d is None else d for (n, x), d in zip(leaves.items(), gradients, strict=True)}


def _describe(request: Request) -> str:
    q, k, v = (list(x.shape) for x in (request.queries.q, request.keys.k, request.keys.v))
    bias = "" if request.bias is None else f", bias {type(request.bias).__name__}"
    by_rows = ", with exchanged or repeated batch rows" if request.rows is not None else ""
    fewer = "" if request.where is None else ", with a mask that allows fewer pairs"
    return f"q {q}, k {k}, v {v}, lse={request.lse}{bias}{by_rows}{fewer}"
