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


def call(mechanism: Softmax, tensors: list[torch.Tensor], first: int = 0) -> list[torch.Tensor]:
    """y, lse, and the gradients of queries, keys, values and vectors of edges."""
    q, k, v = tensors
    ctx = Context((first + torch.arange(q.shape[2])).expand(len(q), -1), run=True, full=True)
    output = mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y
    learned = [*tensors, *mechanism.parameters()]
    return [output.y, output.lse, *torch.autograd.grad(output.y.sin().sum() + output.lse.cos().sum(), learned)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("k", "nodes", "groups", "edges", "rows"), [(1, 63, 4, True, 2), (2, 40, 2, True, 1), (3, 90, 1, False, 2)]
)
def test_tiles_and_spans_are_the_whole(
    causal: bool, k: int, nodes: int, groups: int, edges: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [torch.randn(rows, heads, nodes, 3, requires_grad=True) for heads in (4, groups, groups)]
    mechanism = TreeSoftmax(k, TreeEdges(3, k, 2, causal=causal) if edges else None, causal=causal)
    whole = call(mechanism, tensors)
    monkeypatch.setattr(tree_softmax, "LONG", 1)
    monkeypatch.setattr(tree_softmax, "TILE", 8)
    tile_counts: list[int] = []
    inner = TreeSoftmax._tokens
    monkeypatch.setattr(
        TreeSoftmax,
        "_tokens",
        lambda *arguments: (tile_counts.append(arguments[3].column.shape[0]), inner(*arguments))[1],
    )
    for ours, theirs in zip(call(mechanism, tensors), whole, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert tile_counts == [-(-len([node for node in in_post_order(64)[:nodes] if not node[0]]) // 8)]
    tile_counts.clear()
    call(mechanism, tensors, first=1)  # a row that begins elsewhere
    assert not tile_counts


@pytest.mark.parametrize(
    ("k", "level", "causal"), [(1, 0, False), (2, 1, False), (3, 2, True), (1, 1, True), (2, 0, True)]
)
def test_a_level_holds_the_spans_that_are_walked(k: int, level: int, causal: bool) -> None:
    tokens = 64
    read = TreeLevel(k, level, causal).matrix(tokens)[:, : tokens >> level]
    order = {span: n for n, span in enumerate(in_post_order(tokens))}
    for token, row in enumerate(read):
        spans = [span for span in walked(token, k, tokens, 1) if not causal or order[span] <= order[0, token]]
        assert row.nonzero().flatten().tolist() == sorted(x for m, x in spans if m == level)


def test_a_bias_of_another_k_is_refused() -> None:
    with pytest.raises(ValueError, match="k=2 must equal the k of the bias: got bias.k=3"):
        TreeSoftmax(2, TreeEdges(4, 3))
