"""The masked executor: positions in any order, scores that shut pairs out, queries without keys."""

import pytest
import torch
from torch import Tensor

from kinformer.attend import explain, read
from kinformer.attend.executors import masked, reference
from kinformer.core.heads import Keys, Queries
from kinformer.core.memo import Memo
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product
from kinformer.laws import impl
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.mechanisms.key_groups import SameGroupScore
from kinformer.nn.scores.residual import ResidualScores


def shuffled(score: Product, *, groups: int = 2, dtype: torch.dtype = torch.float64, width: int = 8) -> Request:
    """Keys in any order, some of them padding; a query before all keys; two rounds of three groups."""
    g = torch.Generator().manual_seed(0)
    pos = torch.stack([torch.randperm(23, generator=g) for _ in range(2)])[:, None]
    k_pos = torch.where(pos % 7 == 3, -1, pos)
    k_pos = torch.where(k_pos < 2, -1, k_pos)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=g, dtype=dtype, requires_grad=True)

    def tags(*shape: int) -> dict[str, Tensor]:
        return {"bucket": torch.randint(3, (2, *shape), generator=g)}

    queries = Queries(numbers(4, 23, width), pos, tags=tags(4, 23, 2))
    keys = Keys(numbers(groups, 23, width), numbers(groups, 23, width), k_pos, tags=tags(groups, 23, 8 // groups))
    return Request(queries, keys, Causal(), score, scale=0.3)


SCORES = {"product": Product(), "groups": SameGroupScore("bucket"), "lonely": SameGroupScore("bucket", lonely=True)}


@pytest.mark.parametrize("groups", (1, 2, 4))
@pytest.mark.parametrize("score", SCORES)
def test_is_the_reference(score: str, groups: int) -> None:
    request = shuffled(SCORES[score], groups=groups)
    assert not isinstance(masked.cost(request), Refusal)
    read = masked.read(request)
    assert read.lse is not None and bool((read.lse == -torch.inf).any()), "a query has no key"
    impl._check_same(read, reference.read(request), request, "masked differs", score)


def test_all_pairs_want_no_mask() -> None:
    request = shuffled(Product())
    pos = torch.arange(23).expand(2, 1, -1)
    request = request.replace(
        pattern=Full(), queries=request.queries._replace(pos=pos), keys=request.keys._replace(pos=pos), full=True
    )
    impl._check_same(masked.read(request), reference.read(request), request, "masked differs", "without a mask")


def test_what_it_refuses() -> None:
    request = shuffled(Product())
    narrow = request.keys._replace(v=request.keys.v[..., :4])
    for other in (
        request.replace(dropout=0.1),
        request.replace(keys=narrow),
        request.replace(score=ResidualScores()),
        request.replace(bias=ALiBi(4)),
    ):
        assert isinstance(masked.cost(other), Refusal)


def test_auto_takes_it_where_positions_are_no_runs() -> None:
    for width in (8, 256):
        assert next(iter(explain(shuffled(Product(), width=width)))) == "masked"


def test_second_derivatives_are_refused_in_words() -> None:
    request = shuffled(Product())
    (first,) = torch.autograd.grad(masked.read(request).y.square().sum(), request.queries.q, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


@pytest.mark.parametrize("name", ["sdpa", "masked"])
def test_layers_of_a_forward_keep_one_mask(name: str) -> None:
    memo, masks = Memo(), dict[int, Tensor]()
    first = shuffled(Product()).replace(pattern=Causal(), lse=False)

    def keep(x: Tensor) -> Tensor:
        if x.shape[2:] == (23, 23):
            masks[x.untyped_storage().data_ptr()] = x  # alive, so that no address is used twice
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        reads = [read(first.replace(memo=memo), name).y for _ in range(3)]
    assert len(masks) == 1 and all(torch.equal(y, reads[0]) for y in reads)
