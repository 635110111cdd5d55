"""The causal table of edges in a tree against the whole one."""

import torch

from kinformer.core.patterns.causal import Causal
from kinformer.core.span_tree import edge, node
from kinformer.nn.biases.tree_edges import TreeEdges
from kinformer.nn.patterns.tree import Tree


def test_the_causal_table_has_a_row_for_each_type_that_a_causal_tree_reads() -> None:
    for k, clip in ((1, 0), (2, 2), (3, 1)):
        q, key = (Causal() & Tree(k)).matrix(255).nonzero().T
        kinds = edge(node(q), node(key), k, clip)
        whole, few = TreeEdges(4, k, clip), TreeEdges(4, k, clip, causal=True)
        few.load_state_dict(whole.state_dict())
        assert len(few.keys) == len(kinds.unique()) == (k + 1) * (clip + 1)
        assert torch.equal(few.keys[few.row(kinds)], whole.keys[kinds])
