"""GlobalNodes and GlobalEnds: who reads whom where nodes stand outside a text, and where its last block is global."""

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.depth.global_ends import GlobalEnds
from kinformer.nn.depth.global_nodes import GlobalNodes
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.pieces import Pieces
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.shifted import Shifted
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")
N, D, LENGTH = 2, 8, 9
IDS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])


def nodes(depth: int = 1) -> GlobalNodes:
    pattern = Shifted(Band(1), N) | Tokens(N) | Rows(N)
    return GlobalNodes(Stack([Attention(QKV(D, 2), Softmax(pattern)) for _ in range(depth)]), N)


def test_it_is_the_layer_over_nodes_and_text() -> None:
    """One attention over [nodes, x]: x reads its window and every node; what comes of the nodes stays inside."""
    layer, x = nodes(), torch.randn(3, LENGTH, D)
    joined = torch.cat([layer.node.expand(3, N, D), x], 1)
    at = torch.arange(LENGTH + N)
    mask = ((at[:, None] - at).abs() <= 1) | (at < N) | (at < N)[:, None]
    p = layer.layer.layers[0]
    q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in p.projection.qkv(joined).chunk(3, -1))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(layer(x).y, p.aggregation(y, at.expand(3, -1))[:, N:], rtol=0, atol=1e-12)


def moves(layer: torch.nn.Module, ctx: Context, length: int = LENGTH) -> Tensor:
    """Which outputs change with which token of row 0."""
    x = torch.randn(len(ctx.pos), length, D)
    before, rows = layer(x, None, ctx).y, []
    for place in range(length):
        changed = x.clone()
        changed[0, place] += 1.0
        rows.append((layer(changed, None, ctx).y - before)[0].abs().amax(-1) > 1e-9)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("depth", [1, 2])
def test_two_layers_connect_all_through_a_node(depth: int) -> None:
    at = torch.arange(LENGTH)
    near = (at[:, None] - at).abs() <= 1
    assert torch.equal(
        moves(nodes(depth), Context.of_sequence(torch.zeros(1, LENGTH, D))), near if depth == 1 else near | True
    )


def test_nodes_pass_nothing_between_documents_unless_the_batch_says_so() -> None:
    at = torch.arange(LENGTH)[None]
    same = IDS[0][:, None] == IDS[0]
    near = (at[0][:, None] - at[0]).abs() <= 2
    assert torch.equal(moves(nodes(2), Context(at, only=Document(IDS))), same & near)
    open_ = Pieces(N, l2l=Document(IDS))
    assert moves(nodes(2), Context(at, only=open_)).all()
    assert torch.equal(moves(nodes(2), Context(at, only=open_ & Pieces(N, g2l=Tokens(0)))), same & near)


def test_each_node_is_a_vector_of_its_own_and_labels_are_of_none() -> None:
    layer, contexts = nodes(), []
    assert layer.node.shape == (N, D) and not torch.equal(layer.node[0], layer.node[1])
    layer.layer.register_forward_hook(lambda part, inputs, out: contexts.append(inputs[2]))
    layer(torch.randn(1, LENGTH, D), None, Context(torch.arange(LENGTH)[None], labels={"segment": IDS}))
    assert contexts[0].labels["segment"].tolist() == [[-1] * N + IDS[0].tolist()]
    assert contexts[0].pos.tolist() == [list(range(LENGTH + N))]


def test_they_do_not_decode() -> None:
    for layer in (nodes(), GlobalEnds(Attention(QKV(D, 2), Softmax(Full())), 2)):
        with pytest.raises(NoState, match="Use a causal layer"):
            layer.start(1, 4)
    with pytest.raises(NoState, match=r"or generate\(..., recompute=True\)"):
        nodes().start(1, 4)


@pytest.mark.parametrize("length", [4, 5, 7, 9])
def test_the_last_block_of_a_row_is_global_wherever_it_ends(length: int) -> None:
    """Under padding on both sides and beside another row."""
    layer = GlobalEnds(Attention(QKV(D, 2), Softmax(Block(3))), 3)
    pos = torch.full((2, length + 3), -1)
    pos[0, 1 : 1 + length], pos[1] = torch.arange(length), torch.arange(length + 3)
    actual = moves(layer, Context(pos), length + 3)[1 : 1 + length, 1 : 1 + length]
    at = torch.arange(length)
    last = at // 3 == (length - 1) // 3
    assert torch.equal(actual, (at[:, None] // 3 == at // 3) | last | last[:, None])


@pytest.mark.parametrize(("length", "full"), [(4, True), (5, True), (6, False)])
def test_short_rows_are_global_as_a_whole(length: int, full: bool) -> None:
    layer = GlobalEnds(Attention(QKV(D, 2), Softmax(Block(2))), 2, full_up_to=5)
    pos = torch.full((2, 9), -1)
    pos[0, 1 : 1 + length], pos[1] = torch.arange(length), torch.arange(9)
    assert moves(layer, Context(pos), 9)[1 : 1 + length, 1 : 1 + length].all() == full


def test_what_a_batch_adds_stays() -> None:
    layer, at = GlobalEnds(Attention(QKV(D, 2), Softmax(Band(0))), 1), torch.arange(LENGTH)
    actual = moves(layer, Context(at[None], also=Tokens(2)))
    assert torch.equal(actual, (at[:, None] == at) | (at < 2) | (at == LENGTH - 1) | (at == LENGTH - 1)[:, None])


@pytest.mark.parametrize("join", [lambda p: p | Document(IDS), lambda p: ~p, lambda p: Band(3) & (p | Band(1))])
def test_pieces_whose_directions_would_be_lost_are_refused(join) -> None:  # type: ignore[no-untyped-def]
    only, at = join(Pieces(N, l2l=Document(IDS))), torch.arange(LENGTH)[None]
    with pytest.raises(ValueError, match="contains Pieces inside.*Join the Pieces to the rest with &"):
        nodes()(torch.randn(1, LENGTH, D), None, Context(at, only=only))
    nodes()(torch.randn(1, LENGTH, D), None, Context(at, only=Pieces(N) & Document(IDS)))
