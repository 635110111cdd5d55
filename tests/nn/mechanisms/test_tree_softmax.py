"""TreeSoftmax: tiles of tokens, and spans, are the whole read, with gradients; others go as under any pattern."""

import pytest
import torch

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.biases.tree_edges import TreeEdges
from kinformer.nn.mechanisms import tree_softmax
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.tree_softmax import TreeSoftmax
from kinformer.nn.patterns.tree_level import TreeLevel
from tests.nn.patterns.test_tree import in_post_order, walked

pytestmark = pytest.mark.usefixtures("float64")


def call(mechanism: Softmax, given: list[torch.Tensor], first: int = 0) -> list[torch.Tensor]:
    """y, lse, and the gradients of queries, keys, values and vectors of edges."""
    q, k, v = given
    ctx = Context((first + torch.arange(q.shape[2])).expand(len(q), -1), run=True, full=True)
    found = mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y
    learned = [*given, *mechanism.parameters()]
    return [found.y, found.lse, *torch.autograd.grad(found.y.sin().sum() + found.lse.cos().sum(), learned)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("k", "nodes", "groups", "edges", "rows"), [(1, 63, 4, True, 2), (2, 40, 2, True, 1), (3, 90, 1, False, 2)]
)
def test_tiles_and_spans_are_the_whole(
    causal: bool, k: int, nodes: int, groups: int, edges: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [torch.randn(rows, heads, nodes, 3, requires_grad=True) for heads in (4, groups, groups)]
    made = TreeSoftmax(k, TreeEdges(3, k, 2, causal=causal) if edges else None, causal=causal)
    whole = call(made, given)
    monkeypatch.setattr(tree_softmax, "LONG", 1)
    monkeypatch.setattr(tree_softmax, "TILE", 8)
    asked: list[int] = []
    inner = TreeSoftmax._tokens
    monkeypatch.setattr(
        TreeSoftmax, "_tokens", lambda *given: (asked.append(given[3].column.shape[0]), inner(*given))[1]
    )
    for ours, theirs in zip(call(made, given), whole, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert asked == [-(-len([one for one in in_post_order(64)[:nodes] if not one[0]]) // 8)]
    asked.clear()
    call(made, given, first=1)  # a row that begins elsewhere
    assert not asked


@pytest.mark.parametrize(
    ("k", "level", "causal"), [(1, 0, False), (2, 1, False), (3, 2, True), (1, 1, True), (2, 0, True)]
)
def test_a_level_holds_the_spans_that_are_walked(k: int, level: int, causal: bool) -> None:
    tokens = 64
    read = TreeLevel(k, level, causal).matrix(tokens)[:, : tokens >> level]
    order = {one: n for n, one in enumerate(in_post_order(tokens))}
    for token, row in enumerate(read):
        spans = [one for one in walked(token, k, tokens, 1) if not causal or order[one] <= order[0, token]]
        assert row.nonzero().flatten().tolist() == sorted(x for m, x in spans if m == level)


def test_a_bias_of_another_k_is_refused() -> None:
    with pytest.raises(ValueError, match="k=2, and the bias is of k=3; give both the same"):
        TreeSoftmax(2, TreeEdges(4, 3))
