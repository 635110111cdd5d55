"""Luna's stack: the equations row by row, p through the layers, padding, what it keeps, and what is refused."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.document import Document
from kinformer.members.luna import luna
from kinformer.nn.attention import Attention
from kinformer.nn.depth.luna import LunaBlock, LunaStack, Nested
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.luna_causal import LunaCausal
from kinformer.nn.mechanisms.luna_packs import Packs
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.tied_kv import TiedKV

pytestmark = pytest.mark.usefixtures("float64")

D = 8


def stack(tied: bool = False, packs: int = 3, pack_heads: int | None = 4) -> LunaStack:
    blocks = [LunaBlock(Nested(D, 2, pack_heads=pack_heads, tied=tied), MLP(D)) for _ in range(2)]
    luna_stack = LunaStack(blocks, Packs(packs, D))
    for weight in luna_stack.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return luna_stack.eval()


def attended(part: Attention, x: Tensor, context: Tensor) -> Tensor:
    """Heads side by side of softmax(x Wq (context Wk)^T / sqrt(K)) context Wv, one query and head at a time."""
    heads = part.projection.heads
    matrices = [part.projection.matrix(name) for name in "qkv"]
    q, k, v = (
        F.linear(z, *m).view(-1, heads, D // heads) for z, m in zip((x, context, context), matrices, strict=True)
    )
    rows = []
    for i in range(len(x)):
        y = [torch.softmax(k[:, h] @ q[i, h] / (D // heads) ** 0.5, 0) @ v[:, h] for h in range(heads)]
        rows.append(torch.cat(y))
    return torch.stack(rows)


def by_hand(stack: LunaStack, x: Tensor) -> tuple[Tensor, Tensor]:
    p = stack.packs()
    for block in stack.blocks:
        packed = attended(block.nested.pack, p, x)
        unpacked = block.nested.unpack.aggregation.linear(attended(block.nested.unpack, x, packed))
        x, p = block.x_norm(unpacked + x), block.p_norm(packed + p)
        x = block.mlp_norm(block.mlp(x[None]).y[0] + x)
    return x, p


@pytest.mark.parametrize("tied", [False, True])
def test_blocks_are_the_equations_and_hand_the_packs_up(tied: bool) -> None:
    body, x = stack(tied), torch.randn(3, 7, D)
    real = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [0, 0] + [1] * 5]).bool()
    y, packs = body.read(x, Context.of_sequence(x, real))
    for row, mask in enumerate(real):
        expected = by_hand(body, x[row, mask])
        torch.testing.assert_close(y[row, mask], expected[0])
        torch.testing.assert_close(packs[row], expected[1])


def test_a_pack_alone_makes_one_of_all_tokens() -> None:
    """With one pack and one head every token hears the same of all others."""
    stack, x = LunaStack([LunaBlock(Nested(D, 1), MLP(D))], Packs(1, D)), torch.randn(1, 9, D)
    block = stack.blocks[0]
    unpacked = block.nested.unpack(
        x, None, Context.of_sequence(x).replace(source=torch.randn(1, 1, D), source_pos=torch.zeros(1, 1).long())
    )
    torch.testing.assert_close(unpacked.y, unpacked.y[:, :1].expand_as(unpacked.y))
    permuted = stack(x[:, torch.randperm(9)]).y
    assert sorted(permuted[0, :, 0].tolist()) == pytest.approx(sorted(stack(x).y[0, :, 0].tolist()))


def test_the_packs_learn_and_every_token_reaches_every_other() -> None:
    body, x = stack(), torch.randn(1, 9, D, requires_grad=True)
    y = body(x).y
    (flow,) = torch.autograd.grad(y[0, 0].sum(), x, retain_graph=True)
    assert (flow[0].abs().sum(-1) > 0).all()
    y.sum().backward()
    assert body.packs.p.grad is not None and bool(body.packs.p.grad.any())


def test_what_it_cannot_do_is_refused() -> None:
    body, x = stack(), torch.randn(1, 5, D)
    with pytest.raises(ValueError, match=r"do not support ctx.only"):
        body(x, None, Context.of_sequence(x).replace(only=Document(torch.zeros(1, 5, dtype=torch.long))))
    with pytest.raises(NoState, match="Use LunaCausal"):
        body.start(1, 5)
    with pytest.raises(ValueError, match="packs of width 4 and blocks of width 8"):
        LunaStack([LunaBlock(Nested(D, 2), MLP(D))], Packs(3, 4))


SMALL = {"d": 8, "heads": 2, "depth": 2, "packs": 3, "length": 10, "vocab": 11}


def test_the_member_s_keywords_reach_its_parts() -> None:
    model = luna(**SMALL, pack_heads=4, tied=True, start="sinusoidal", dropout=0.1).body  # type: ignore[arg-type]
    assert isinstance(model, LunaStack) and len(model.blocks) == 2 and not list(model.packs.parameters())
    nested = model.blocks[0].nested
    assert (nested.pack.projection.heads, nested.unpack.projection.heads, model.packs.count) == (4, 2, 3)
    assert isinstance(nested.pack.projection, TiedKV) and nested.pack.mechanism.dropout == 0.1
    writer = luna(**SMALL, form="decoder", weight="elu").body  # type: ignore[arg-type]
    assert isinstance(writer, Stack)
    first, other = (block.layers[0] for block in writer.layers)
    assert isinstance(first.mechanism, LunaCausal) and first.mechanism.weight == "elu"
    assert first.mechanism.packs is other.mechanism.packs and isinstance(first.projection, QKV)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"weight": "elu"}, "weight=elu has no effect with form=encoder"),
        ({"form": "decoder", "pack_heads": 2}, "pack_heads=2 has no effect with form=decoder"),
        ({"packs": 0}, "^packs=0"),
        ({"pack_heads": 0}, "^pack_heads=0"),
        ({"pack_heads": 3}, "^d=8 is not a multiple of pack_heads=3"),
        ({"depth": 0}, "depth=0"),
    ],
)
def test_keywords_that_nothing_reads_are_refused(wrong: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        luna(**{**SMALL, **wrong})
