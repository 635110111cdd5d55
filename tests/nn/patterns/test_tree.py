"""Tree: post-order, the graph walked span by span for any k, types of edges, and what cover says of blocks."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.core.patterns.causal import Causal
from kinformer.core.span_tree import HIGHEST, edge, leaf, node
from kinformer.nn.patterns.tree import Tree
from tests.nn.patterns.compare import compare

Nodes = list[tuple[int, int]]  # level and number, in post-order


def in_post_order(tokens: int) -> Nodes:
    """A span stands behind its last token, smaller ones first."""
    nodes: Nodes = []
    for token in range(tokens):
        nodes.append((0, token))
        for level in range(1, tokens.bit_length() + 1):
            if (token + 1) % 2**level == 0:
                nodes.append((level, token // 2**level))
    return nodes


def walked(token: int, k: int, tokens: int, clip: int) -> dict[tuple[int, int], int]:
    """The spans that a token reads and their types: k a level and side, each as large as its place allows."""
    labels, lo, hi = {(0, token): 0}, token, token + 1
    for level in range(tokens.bit_length() + 2):
        base = (2 * k + 1) * min(level, clip)
        for nth in range(k):
            if hi < tokens:
                size = level if hi % 2**level == 0 else level - 1
                assert hi % 2**size == 0
                labels[(size, hi >> size)], hi = base + 2 * (nth + 1), hi + 2**size
            if lo > 0:
                size = level if lo % 2**level == 0 else level - 1
                assert lo % 2**size == 0
                lo -= 2**size
                labels[(size, lo >> size)] = base + 2 * nth + 1
    assert lo == 0 and hi >= tokens
    return labels


def on_tree(k: int, tokens: int = 16) -> Callable[[int, int], bool]:
    """Does node i of a tree read node j? A span its tokens, a token the spans that are walked."""
    nodes = in_post_order(tokens)
    inside = {
        i: {(0, j) for j in range(x << level, (x + 1) << level)} if level else set(walked(x, k, tokens, 1))
        for i, (level, x) in enumerate(nodes)
    }
    return lambda i, j: nodes[j] in inside[i]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_each_pair_is_that_of_the_walked_graph(k: int) -> None:
    is_read = on_tree(k, 64)
    compare(Tree(k), lambda b, h, i, j: is_read(i, j), bounds=("cover",))


class OneMore(Tree):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return Tree(self.k + 1)(b, h, q, k)


def test_another_number_of_spans_is_noticed() -> None:
    is_read = on_tree(2, 64)
    with pytest.raises(AssertionError, match="query 0 and key 17"):
        compare(OneMore(2), lambda b, h, i, j: is_read(i, j))


def test_nodes_stand_in_post_order() -> None:
    expected = in_post_order(200)
    actual = node(torch.arange(len(expected)))
    assert list(zip(actual.level.tolist(), actual.number.tolist(), strict=True)) == expected
    assert leaf(torch.arange(200)).tolist() == [n for n, entry in enumerate(expected) if entry[0] == 0]
    far = torch.tensor([2**30, 2**31 - 1])
    assert torch.equal(node(leaf(far)).number, far)
    levels = torch.arange(1, HIGHEST)
    first = 2 ** (levels + 1) - 2  # as many nodes are below the first of a level
    assert torch.equal(node(first).level, levels) and not node(first).number.any()
    assert node(first + 1).level.eq(0).all() and torch.equal(node(first - 1).level, levels - 1)


@pytest.mark.parametrize(("k", "tokens", "clip"), [(1, 16, 9), (1, 64, 3), (2, 32, 2), (3, 64, 9), (5, 16, 1)])
def test_the_graph_is_the_one_that_is_walked(k: int, tokens: int, clip: int) -> None:
    nodes = in_post_order(tokens)
    read, at = Tree(k).matrix(len(nodes)), node(torch.arange(len(nodes)))
    types = edge(type(at)(at.level[:, None], at.number[:, None]), at, k, clip)
    for q, (level, number) in enumerate(nodes):
        if level:
            inside = range(number << level, (number + 1) << level)
            expected = {(0, token): (2 * k + 1) * min(level, clip) for token in inside}
        else:
            expected = walked(number, k, tokens, clip)
        assert {nodes[j]: int(types[q, j]) for j in read[q].nonzero().flatten().tolist()} == expected


@pytest.mark.parametrize("k", [1, 2, 7])
def test_a_token_reads_each_other_token_once(k: int) -> None:
    """The spans that a token reads hold all tokens of a row, none of them twice; causally all before it."""
    nodes = in_post_order(64)
    for pattern, all_ in ((Tree(k), True), (Causal() & Tree(k), False)):
        for q, (level, token) in enumerate(nodes):
            if not level:
                spans = [nodes[j] for j in pattern.matrix(len(nodes))[q].nonzero().flatten().tolist()]
                covered = sorted(leaf_token for m, x in spans for leaf_token in range(x << m, (x + 1) << m))
                assert covered == list(range(64 if all_ else token + 1))


@pytest.mark.parametrize("k", [1, 4])
def test_cover_says_of_each_block_whether_any_pair_is_read(k: int) -> None:
    pattern, rng, size = Tree(k), random.Random(0), 90
    read = pattern.matrix(size)
    ends = torch.tensor(
        [[*sorted(rng.choices(range(size), k=2)), *sorted(rng.choices(range(size), k=2))] for _ in range(400)]
    )
    any_read, every = pattern.cover(*ends.T)
    for n, (q_lo, q_hi, k_lo, k_hi) in enumerate(ends.tolist()):
        block = read[q_lo : q_hi + 1, k_lo : k_hi + 1]
        assert bool(any_read[n]) == bool(block.any())
        assert not every[n] or bool(block.all())
