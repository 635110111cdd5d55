"""Law projection: the queries, keys and values of a projection have the sizes that it declares.

All methods and matrices of the projection must give the same queries, keys and values.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.heads import Keys, Queries
from kinformer.core.projection import Projection, by_head
from kinformer.laws.support.comparisons import agree
from kinformer.laws.support.findings import Broken, findings
from kinformer.laws.support.input_batch import numbers, positions
from kinformer.laws.support.subject import build_module

SAYS = "queries, keys and values have the declared sizes, and all methods and matrices give the same numbers"
OVER = "projection"
LENGTH = 7


def judge(projection: Projection) -> Iterator[str]:
    """Compare the queries, keys and values of all methods of a projection; yield each difference.

    projection: the projection to test.

    The shapes must agree with `sizes()`. The methods are compared on a full and a padded row. The matrices of
    `matrix()` are compared at position 0, because a rotation does nothing there. If queries, keys or values are not
    linear in x (for example after a norm), their matrix is not compared.
    """
    projection = build_module(lambda: projection)
    yield from findings(_at_once, projection)
    for name in ("q", "k", "v"):
        yield from findings(_by_matrix, projection, name)


@torch.no_grad()
def _at_once(projection: Projection) -> None:
    x, pos = numbers(2, LENGTH, projection.d, 0), positions([LENGTH, LENGTH - 3], [0, 2], LENGTH)
    want = _by_name(projection.queries(x, pos), projection.keys(x, pos))
    sizes = projection.sizes()
    shapes = {
        "q": (2, sizes.heads, LENGTH, sizes.k_dim),
        "k": (2, sizes.key_heads, LENGTH, sizes.k_dim),
        "v": (2, sizes.value_heads, LENGTH, sizes.v_dim),
    }
    for name, shape in shapes.items():
        if want[name].shape != shape:
            raise Broken(f"{name} has shape {list(want[name].shape)}, but sizes() says {list(shape)}")
    for method, outputs in (("both", projection.queries_and_keys(x, pos)), ("forward", projection(x, pos, x, pos))):
        for name, value in _by_name(*outputs).items():
            agree(value, want[name], f"{method}() gives a different {name} than queries() and keys()")


@torch.no_grad()
def _by_matrix(projection: Projection, name: str) -> None:
    try:
        weight, bias = projection.matrix(name)
    except ValueError as error:
        if "\n" in str(error):
            raise Broken(f"matrix({name!r}) is refused with an error of more than one line: {error}") from error
        return
    heads = {"q": projection.heads, "k": projection.key_heads, "v": projection.value_heads}[name]
    x = numbers(2, LENGTH, projection.d, 1)

    def project(x: Tensor) -> Tensor:
        pos = torch.zeros(x.shape[:2], dtype=torch.long)
        return _by_name(projection.queries(x, pos), projection.keys(x, pos))[name]

    if not _linear(project, x):
        return  # a norm makes the result nonlinear
    expected = project(x)
    if (rows := len(weight)) != heads * expected.shape[-1]:
        raise Broken(f"matrix({name!r}) has {rows} rows, expected {heads} heads times width {expected.shape[-1]}")
    agree(
        by_head(F.linear(x, weight, bias), heads),
        expected,
        f"matrix({name!r}) gives a different {name} than queries() and keys()",
    )


def _linear(project: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return True if the projection is linear in x, up to a constant."""
    at_x, nothing = project(x), project(torch.zeros_like(x))
    return torch.allclose(project(2 * x) - nothing, 2 * (at_x - nothing), atol=1e-9, rtol=1e-9)


def _by_name(queries: Queries, keys: Keys) -> dict[str, Tensor]:
    return {"q": queries.q, "k": keys.k, "v": keys.v, "pos of queries": queries.pos, "pos of keys": keys.pos}
