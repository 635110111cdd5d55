"""Law impl: every executor equals the reference in y, lse and gradients, through the lse too."""

import random
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kinformer.core.bias import Bias
from kinformer.core.heads import Keys, Queries, Sizes
from kinformer.core.pattern import Heads, Pattern
from kinformer.core.read import Read
from kinformer.core.request import Refusal, Request
from kinformer.core.scores import allowed
from kinformer.discover import examples
from kinformer.execute import EXECUTORS, reference
from kinformer.laws.pattern import draw
from kinformer.laws.support.batch import LABEL, varied
from kinformer.laws.support.finding import Broken, Unjudged, smallest
from kinformer.laws.support.subject import EFFORT
from kinformer.scores.product import Product

SAYS = "every executor reads what the reference reads"
OVER = ("executor", "pattern", "bias")
ROWS, WIDTH, LENGTH = 2, 8, 11
DRAWS, FEW = 40 * EFFORT, 6 * EFFORT  # requests for an executor; for each executor with one pattern or bias


def judge(subject: ModuleType | Pattern | Bias) -> Iterator[str]:
    """Requests drawn at random: heads in groups, value heads of their own, padding, keys in any order, other lengths.

    An executor that refuses a request is passed over. Where all were refused, nothing was judged.
    """
    refused: Counter[str] = Counter()
    one = None if isinstance(subject, ModuleType) else subject
    executors = EXECUTORS.values() if one is not None else (subject,)
    asked = FEW if one is not None else DRAWS
    for executor in executors:
        for seed in range(asked):
            yield from smallest(_one, LENGTH, executor, one, seed, refused)
    if refused.total() and refused.total() >= asked * len(list(executors)):
        raise Unjudged(f"refused, {', '.join(f'{n} times: {reason}' for reason, n in refused.most_common())}")


def _one(length: int, executor: Any, one: Pattern | Bias | None, seed: int, refused: Counter[str]) -> None:
    request = drawn(length, one, seed)
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


def _same(got: Read, want: Read, request: Request, sentence: str, told: str) -> None:
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
    found |= {f"side {name}": side for of in (queries, keys) for name, side in of.sides.items() if side.is_leaf}
    return found | ({} if request.bias is None else dict(request.bias.named_parameters()))


def _gradients(read: Read, request: Request, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    loss = (read.y * torch.randn(read.y.shape, generator=g, dtype=read.y.dtype)).sum()
    if request.lse and read.lse is not None:
        loss = loss + torch.where(read.lse > -torch.inf, read.lse, 0.0).sin().sum()
    if not loss.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    # both reads stand on what the bias prepared once, so the graph serves twice
    given = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, retain_graph=True)
    return {n: torch.zeros_like(x) if d is None else d for (n, x), d in zip(leaves.items(), given, strict=True)}


def drawn(length: int, one: Pattern | Bias | None, seed: int) -> Request:
    """A request by a seed, with one pattern or bias, or with those that the folders hold."""
    rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
    plain = [pattern for pattern in _examples("patterns") if not pattern.tensors()]
    bias = (
        one
        if isinstance(one, Bias)
        else rng.choice(_examples("biases"))
        if one is None and rng.random() < 0.3
        else None
    )
    heads = 2 if bias is not None else 4
    if isinstance(one, Pattern):
        pattern = varied(one) if one.tensors() else one
    else:
        pattern = draw(plain, 1 + (EFFORT > 1), rng)
        if rng.random() < 0.2:
            pattern = Heads(pattern, draw(plain, 1, rng))
    groups = rng.choice([n for n in (1, 2, 4) if n <= heads])
    value_heads = groups if rng.random() < 0.7 else rng.choice([1, heads])
    same = rng.random() < 0.4  # queries where the keys are, as in self-attention
    keys = length if same else rng.choice((length + 2, max(1, length - 3)))
    width = 0 if rng.random() < 0.1 and bias is None else WIDTH
    by_head = rng.random() < 0.2
    run = same and not by_head and rng.random() < 0.6
    padded = rng.random() < 0.7
    k_pos = _positions(ROWS, heads if by_head else 1, keys, run or rng.random() < 0.5, padded, g)
    q_pos = k_pos if same else _positions(ROWS, heads if by_head else 1, length, True, padded, g)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(ROWS, *shape, generator=g, dtype=torch.float64, requires_grad=True)

    sizes = Sizes(heads, groups, value_heads, width, WIDTH)
    sides = {} if bias is None else {n: numbers(heads, length, s.width) for n, s in bias.sides(sizes).items()}
    key_sides = {} if bias is None else {n: numbers(groups, keys, s.width) for n, s in bias.key_sides(sizes).items()}
    labels, key_labels = ({"segment": pos[:, 0].clamp_min(0) // LABEL % 2} for pos in (q_pos, k_pos))
    request = Request(
        Queries(numbers(heads, length, width), q_pos, sides, labels),
        Keys(numbers(groups, keys, width), numbers(value_heads, keys, WIDTH), k_pos, key_sides, key_labels),
        pattern,
        Product(),
        None if bias is None else bias.double().eval(),
        rng.choice((1.0, 0.3)),
        lse=rng.random() < 0.6,
        rows=torch.tensor([1, 0]) if rng.random() < 0.2 else None,
        run=run,
        full=bool((q_pos >= 0).all() and (k_pos >= 0).all()),
    )
    if rng.random() < 0.15:  # fewer pairs than the pattern's
        found = allowed(request)
        request = request.but(where=found & (torch.rand(found.shape, generator=g) < 0.7))
    return request.prepared()


def _positions(rows: int, heads: int, count: int, run: bool, padded: bool, g: torch.Generator) -> Tensor:
    """Positions [B #H N], in order or shuffled, of which some are padding."""
    pos = torch.arange(count).expand(rows, heads, count).clone()
    if padded:
        pos[0, :, : count // 3] = -1
    return pos if run else pos[..., torch.randperm(count, generator=g)]


def _examples(kind: str) -> list[Any]:
    return [example.make() for _, example in examples(kind)]


def _told(request: Request) -> str:
    q, k, v = (list(x.shape) for x in (request.queries.q, request.keys.k, request.keys.v))
    bias = "" if request.bias is None else f", bias {type(request.bias).__name__}"
    more = ", by batch rows" if request.rows is not None else ""
    some = "" if request.where is None else ", of these pairs fewer"
    return f"q {q}, k {k}, v {v}, lse={request.lse}{bias}{more}{some}"
