"""Law projection: queries, keys and values are of the sizes that it says, made at once as apart, by its matrices."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.heads import Keys, Queries
from kinformer.core.projection import Projection, by_head
from kinformer.laws.support.batch import numbers, positions
from kinformer.laws.support.compare import agree
from kinformer.laws.support.finding import Broken, found
from kinformer.laws.support.subject import built

SAYS = "queries and keys have the sizes that it says, and are the same at once, apart and by its matrices"
OVER = "projection"
LENGTH = 7


def judge(projection: Projection) -> Iterator[str]:
    """A row and one that is padded; matrices at position 0, where nothing is turned, of what is linear in x."""
    projection = built(lambda: projection)
    yield from found(_at_once, projection)
    for name in ("q", "k", "v"):
        yield from found(_by_matrix, projection, name)


@torch.no_grad()
def _at_once(projection: Projection) -> None:
    x, pos = numbers(2, LENGTH, projection.d, 0), positions([LENGTH, LENGTH - 3], [0, 2], LENGTH)
    want = _named(projection.queries(x, pos), projection.keys(x, pos))
    sizes = projection.sizes()
    shapes = {
        "q": (2, sizes.heads, LENGTH, sizes.k_dim),
        "k": (2, sizes.key_heads, LENGTH, sizes.k_dim),
        "v": (2, sizes.value_heads, LENGTH, sizes.v_dim),
    }
    for name, shape in shapes.items():
        if want[name].shape != shape:
            raise Broken(f"{name} has shape {list(want[name].shape)}, and by its sizes() it is {list(shape)}")
    for how, made in (("both", projection.both(x, pos)), ("forward", projection(x, pos, x, pos))):
        for name, value in _named(*made).items():
            agree(value, want[name], f"{how}() makes another {name} than queries() and keys()")


@torch.no_grad()
def _by_matrix(projection: Projection, name: str) -> None:
    try:
        weight, bias = projection.matrix(name)
    except ValueError as error:
        if "\n" in str(error):
            raise Broken(f"matrix({name!r}) is refused in more than one line: {error}") from error
        return
    heads = {"q": projection.heads, "k": projection.key_heads, "v": projection.value_heads}[name]
    x = numbers(2, LENGTH, projection.d, 1)

    def made(x: Tensor) -> Tensor:
        pos = torch.zeros(x.shape[:2], dtype=torch.long)
        return _named(projection.queries(x, pos), projection.keys(x, pos))[name]

    if not _linear(made, x):
        return  # a norm stands between
    want = made(x)
    if (got := len(weight)) != heads * want.shape[-1]:
        raise Broken(f"matrix({name!r}) has {got} rows for {heads} heads of width {want.shape[-1]}")
    agree(by_head(F.linear(x, weight, bias), heads), want, f"matrix({name!r}) makes another {name} than it does itself")


def _linear(made: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Is it linear in x, up to a constant?"""
    there, nothing = made(x), made(torch.zeros_like(x))
    return torch.allclose(made(2 * x) - nothing, 2 * (there - nothing), atol=1e-9, rtol=1e-9)


def _named(queries: Queries, keys: Keys) -> dict[str, Tensor]:
    return {"q": queries.q, "k": keys.k, "v": keys.v, "pos of queries": queries.pos, "pos of keys": keys.pos}
