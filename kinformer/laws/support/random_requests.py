"""Requests (inputs of attention calls) for the law `impl`: random ones, and ones with each feature."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kinformer.core.bias import Bias
from kinformer.core.discover import examples
from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.core.pattern import Heads, Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.score_matrix import full_mask
from kinformer.core.scores.product import Product
from kinformer.laws.pattern import draw
from kinformer.laws.support.input_batch import LABEL, equal_keys, vary_rows
from kinformer.laws.support.subject import EFFORT

ROWS, WIDTH = 2, 8
NAMED = (1, 0), (1, 1)  # batch rows in another order, and a row that is used twice
SORTS = "Full", "Causal", "another", "of the batch", "of the batch, biased", "Full, raised", "another, raised"
OFF_ON = False, True


class RaisedProduct(Product):
    """Score for tests: the dot product, plus 0.5 if the positions of query and key have an odd sum.

    The added numbers have a lower precision than the vectors and are the same for all rows.
    """

    def change(self, request: Request) -> Tensor:
        q_pos, k_pos = request.queries.pos[:1, :1, :, None], request.keys.pos[:1, :1, None]
        return (q_pos + k_pos).remainder(2).float() / 2


@dataclass(frozen=True, eq=False)
class RequestForm:
    """Settings of a random request (inputs of an attention call), without its queries, keys and values.

    The law `impl` makes requests from them, to compare ways to compute attention.

    pattern, bias: pattern and bias of the request.
    groups, value_heads: number of key heads, and number of value heads.
    same: True if the queries have the positions of the keys, as in self-attention.
    keys: number of keys.
    width: width of queries and keys; 0 for a request in which only pattern and bias decide.
    by_head: True if each head has positions of its own.
    run: True if the request promises that positions are consecutive.
    padded: True if the first row has padding.
    ordered: True if the keys are in order of position.
    scale: factor of the scores.
    lse: True if the request asks for the log-sum-exp of the scores.
    rows: for each row, the row of the batch that the pattern sees, if rows are exchanged or repeated.
    where: True if a mask allows fewer pairs than the pattern.
    """

    pattern: Pattern
    bias: Bias | None
    groups: int
    value_heads: int
    same: bool
    keys: int
    width: int
    by_head: bool
    run: bool
    padded: bool
    ordered: bool
    scale: float
    lse: bool
    rows: tuple[int, int] | None
    where: bool

    @property
    def heads(self) -> int:
        """Number of query heads: two with a bias, because the examples of biases have two heads, else four."""
        return 4 if self.bias is None else 2


def draw_request(length: int, component: Pattern | Bias | None, seed: int) -> Request:
    """Return a random request (inputs of an attention call) for the law `impl`.

    length: number of queries; the number of keys is close to it.
    component: pattern or bias of the request; None draws them from the examples of the package.
    seed: seed of all random choices and numbers.
    """
    return _make(length, _draw_form(length, component, random.Random(seed)), seed)


def requests_of_each_feature() -> Iterator[Callable[[int], Request]]:
    """Yield functions that make a request (inputs of an attention call) of a given number of queries.

    The requests combine all features, each present or absent: exchanged rows, a mask, consecutive positions, padding
    and log-sum-exp. Each combination is made with several patterns: `Full`, `Causal`, any other pattern, and patterns
    with one tensor row per batch row (with and without a bias). Further requests have scores of a subclass of `Product`
    (scaled dot product). Everything else is plain, so that no executor (way to compute attention) refuses a request for
    another reason.
    """
    every = itertools.product(SORTS, (None, *NAMED), OFF_ON, OFF_ON, OFF_ON, OFF_ON)
    for seed, (sort, rows, where, run, padded, lse) in enumerate(list(every) * EFFORT):
        yield partial(_request_with, seed=seed, sort=sort, rows=rows, where=where, run=run, padded=padded, lse=lse)


def _request_with(
    length: int, *, seed: int, sort: str, rows: tuple[int, int] | None, where: bool, run: bool, padded: bool, lse: bool
) -> Request:
    rng = random.Random(seed)
    pattern = _draw_pattern(sort.removesuffix(", raised"), rng)
    kind = _draw_form(length, rng.choice(_examples("biases")) if sort.endswith("biased") else pattern, rng)
    if run:
        kind = replace(kind, same=True, by_head=False, keys=length)
    kind = replace(kind, pattern=pattern, value_heads=kind.groups, width=WIDTH, ordered=run, run=run)
    kind = replace(kind, padded=padded, lse=lse, rows=rows, where=where)
    if not sort.endswith("raised"):
        return _make(length, kind, seed)
    # enough keys for the kernel to load several entries of a mask at once
    kind = replace(kind, bias=None, same=False, run=False, keys=2 * length)
    return _make(length, kind, seed).replace(score=RaisedProduct())


def _draw_pattern(sort: str, rng: random.Random) -> Pattern:
    if sort in ("Full", "Causal"):
        return Full() if sort == "Full" else Causal()
    plain, tabled = _patterns()
    if sort == "another":
        return draw([pattern for pattern in plain if not isinstance(pattern, Full | Causal)], 1, rng)
    return vary_rows(draw(tabled, 1, rng))


def _draw_form(length: int, component: Pattern | Bias | None, rng: random.Random) -> RequestForm:
    bias = component if isinstance(component, Bias) else None
    if component is None and rng.random() < 0.3:
        bias = rng.choice(_examples("biases"))
    heads = 2 if bias is not None else 4
    if isinstance(component, Pattern):
        pattern = vary_rows(component) if component.tensors() else component
    else:
        plain, _ = _patterns()
        pattern = draw(plain, 1 + (EFFORT > 1), rng)
        if rng.random() < 0.2:
            pattern = Heads(pattern, draw(plain, 1, rng))
    groups = rng.choice([n for n in (1, 2, 4) if n <= heads])
    value_heads = groups if rng.random() < 0.7 else rng.choice([1, heads])
    same = rng.random() < 0.4  # queries at the positions of the keys, as in self-attention
    keys = length if same else rng.choice((length + 2, max(1, length - 3)))
    width = 0 if rng.random() < 0.1 and bias is None else WIDTH
    by_head = rng.random() < 0.2
    run = same and not by_head and rng.random() < 0.6
    padded = rng.random() < 0.7
    ordered = run or rng.random() < 0.5
    scale, lse = rng.choice((1.0, 0.3)), rng.random() < 0.6
    rows = NAMED[0] if rng.random() < 0.2 else None
    where = rng.random() < 0.15  # a mask allows fewer pairs than the pattern
    return RequestForm(
        pattern, bias, groups, value_heads, same, keys, width, by_head, run, padded, ordered, scale, lse, rows, where
    )


def _make(length: int, kind: RequestForm, seed: int) -> Request:
    g = torch.Generator().manual_seed(seed)
    heads, groups, keys, bias = kind.heads, kind.groups, kind.keys, kind.bias
    of_heads = heads if kind.by_head else 1
    k_pos = _positions(of_heads, keys, kind.ordered, kind.padded, g)
    q_pos = k_pos if kind.same else _positions(of_heads, length, True, kind.padded, g)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(ROWS, *shape, generator=g, dtype=torch.float64, requires_grad=True)

    sizes = HeadSizes(heads, groups, kind.value_heads, kind.width, WIDTH)
    extras = {} if bias is None else {n: numbers(heads, length, s.width) for n, s in bias.query_extras(sizes).items()}
    key_extras = {} if bias is None else {n: numbers(groups, keys, s.width) for n, s in bias.key_extras(sizes).items()}
    labels, key_labels = ({"segment": pos[:, 0].clamp_min(0) // LABEL % 2} for pos in (q_pos, k_pos))
    request = Request(
        Queries(numbers(heads, length, kind.width), q_pos, extras, labels),
        Keys(
            equal_keys(numbers(groups, keys, kind.width), seed),
            numbers(kind.value_heads, keys, WIDTH),
            k_pos,
            key_extras,
            key_labels,
        ),
        kind.pattern,
        Product(),
        None if bias is None else bias.double().eval(),
        kind.scale,
        lse=kind.lse,
        rows=None if kind.rows is None else torch.tensor(kind.rows),
        run=kind.run,
        full=bool((q_pos >= 0).all() and (k_pos >= 0).all()),
    )
    if kind.where:
        is_allowed = full_mask(request)
        request = request.replace(where=is_allowed & (torch.rand(is_allowed.shape, generator=g) < 0.7))
    return request.prepare_bias()


def _positions(heads: int, count: int, ordered: bool, padded: bool, g: torch.Generator) -> Tensor:
    """Return positions [B #H N], in order or shuffled; some are padding if `padded`."""
    pos = torch.arange(count).expand(ROWS, heads, count).clone()
    if padded:
        pos[0, :, : count // 3] = -1
    return pos if ordered else pos[..., torch.randperm(count, generator=g)]


def _patterns() -> tuple[list[Pattern], list[Pattern]]:
    """Return the example patterns of the package: without tensors of a batch, and with them."""
    every = _examples("patterns")
    return [pattern for pattern in every if not pattern.tensors()], [pattern for pattern in every if pattern.tensors()]


def _examples(kind: str) -> list[Any]:
    return [example.make() for _, example in examples(kind)]
