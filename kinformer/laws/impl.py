"""Law impl: every executor equals the reference in y, lse and gradients, through the lse too."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kinformer.attend import EXECUTORS
from kinformer.attend.executors import reference
from kinformer.core.bias import Bias
from kinformer.core.pattern import Pattern
from kinformer.core.read import AttentionOutput
from kinformer.core.request import Refusal, Request
from kinformer.laws.support.finding import Broken, Unjudged, smallest
from kinformer.laws.support.requests import drawn, of_each_feature
from kinformer.laws.support.subject import EFFORT

SAYS = "every executor reads what the reference reads"
OVER = ("executor", "pattern", "bias")
LENGTH = 11
DRAWS, FEW = 40 * EFFORT, 6 * EFFORT  # requests for an executor; for each executor with one pattern or bias


def judge(subject: ModuleType | Pattern | Bias) -> Iterator[str]:
    """Requests drawn at random: heads in groups, value heads of their own, padding, keys in any order, other lengths.

    An executor is asked for each feature of a request too, with and without it, under patterns of each sort. One that
    refuses a request is passed over. Where all were refused, nothing was judged.
    """
    refused: Counter[str] = Counter()
    one = None if isinstance(subject, ModuleType) else subject
    executors = EXECUTORS.values() if one is not None else (subject,)
    count = DRAWS if one is None else FEW
    asked: list[Callable[[int], Request]] = [partial(drawn, one=one, seed=seed) for seed in range(count)]
    asked += of_each_feature() if one is None else ()
    for executor in executors:
        for request in asked:
            yield from smallest(_one, LENGTH, executor, request, refused)
    if refused.total() and refused.total() >= len(asked) * len(list(executors)):
        raise Unjudged(f"refused, {', '.join(f'{n} times: {reason}' for reason, n in refused.most_common())}")


def _one(length: int, executor: Any, make: Callable[[int], Request], refused: Counter[str]) -> None:
    request = make(length)
    cost = executor.cost(request)
    if isinstance(cost, Refusal):
        refused[cost.reason] += 1
        return
    name = executor.__name__.rpartition(".")[2]
    if not cost >= 0:
        raise Broken(f"executor {name!r} estimates {cost} seconds; give a number or a Refusal")
    got, want = executor.read(request), reference.read(request)
    told = f"under {request.pattern}, {_told(request)}"
    _same(got, want, request, f"executor {name!r} differs from the reference", told)


def _same(got: AttentionOutput, want: AttentionOutput, request: Request, sentence: str, told: str) -> None:
    _near(got.y, want.y, f"{sentence} in y {told}")
    if request.lse:
        if got.lse is None or want.lse is None:
            raise Broken(f"{sentence}: an lse was asked for and none came {told}")
        _near(got.lse, want.lse, f"{sentence} in lse {told}")
    leaves = _leaves(request)
    ours, theirs = (_gradients(read, request, leaves) for read in (got, want))
    for name in leaves:
        _near(ours[name], theirs[name], f"{sentence} in the gradient of {name} {told}")


def _near(got: Tensor, want: Tensor, sentence: str) -> None:
    if got.shape != want.shape or not torch.allclose(got, want, atol=1e-9, rtol=1e-9):
        raise Broken(sentence)


def _leaves(request: Request) -> dict[str, Tensor]:
    queries, keys = request.queries, request.keys
    found = {"q": queries.q, "k": keys.k, "v": keys.v}
    found |= {f"side {name}": side for of in (queries, keys) for name, side in of.extras.items() if side.is_leaf}
    return found | ({} if request.bias is None else dict(request.bias.named_parameters()))


def _gradients(read: AttentionOutput, request: Request, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    loss = (read.y * torch.randn(read.y.shape, generator=g, dtype=read.y.dtype)).sum()
    if request.lse and read.lse is not None:
        loss = loss + torch.where(read.lse > -torch.inf, read.lse, 0.0).sin().sum()
    if not loss.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    # both reads stand on what the bias prepared once, so the graph serves twice
    given = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, retain_graph=True)
    return {n: torch.zeros_like(x) if d is None else d for (n, x), d in zip(leaves.items(), given, strict=True)}


def _told(request: Request) -> str:
    q, k, v = (list(x.shape) for x in (request.queries.q, request.keys.k, request.keys.v))
    bias = "" if request.bias is None else f", bias {type(request.bias).__name__}"
    more = ", by batch rows" if request.rows is not None else ""
    some = "" if request.where is None else ", of these pairs fewer"
    return f"q {q}, k {k}, v {v}, lse={request.lse}{bias}{more}{some}"
