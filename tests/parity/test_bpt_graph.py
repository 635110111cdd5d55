"""BP-Transformer's graph against the authors' builder: nodes, edges and their types, in both forms."""

import torch
from torch import Tensor

from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.span_tree import Node, edge, leaf, node
from kinformer.nn.patterns.tree import Tree
from tests.parity.goldens import Golden, goldens


@goldens("bpt_graph")
def test_bpt_graph(golden: Golden) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    length, k, clip = sizes["L"], sizes["step"], sizes["clip_dist"]
    assert tensors.keys() <= {"L", "n_nodes", "pos", "edges_bidirectional", "edges_causal"}
    nodes = node(torch.arange(2 * length - 1))
    order = theirs(nodes, length)
    assert "n_nodes" not in tensors or tensors["n_nodes"].item() == len(order)
    assert torch.equal(order.sort().values, torch.arange(len(order)))
    if "pos" in tensors:
        assert torch.equal((nodes.end - 1)[order.argsort()], tensors["pos"])
    assert torch.equal(order[leaf(torch.arange(length))], torch.arange(length))
    forms: dict[str, Pattern] = {"edges_bidirectional": Tree(k), "edges_causal": Causal() & Tree(k)}
    for name, pattern in forms.items():
        if name in tensors:
            q, key = pattern.matrix(2 * length - 1).nonzero().T
            types = edge(node(q), node(key), k, clip)
            ours = sorted(zip(order[q].tolist(), order[key].tolist(), types.tolist(), strict=True))
            assert ours == sorted(map(tuple, tensors[name].tolist()))


def theirs(nodes: Node, length: int) -> Tensor:
    """Their numbers of nodes: level by level, the root last."""
    starts = torch.tensor([0, *(length >> level for level in range(length.bit_length()))]).cumsum(0)
    return starts[nodes.level] + nodes.number
