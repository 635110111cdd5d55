"""MAB, ISAB and PMA: the paper's equations element by element, sets in any order, and their cost."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.nn.blocks.isab import ISAB
from kinformer.nn.blocks.mab import MAB, PublishedMAB
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.poolers.max import MaxPooler
from kinformer.nn.poolers.mean import MeanPooler
from kinformer.nn.poolers.pma import PMA
from kinformer.nn.poolers.sum import SumPooler

D, HEADS = 8, 2
REAL = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 0], [0, 0, 0, 0, 0, 1]]).bool()
BLOCKS = {"paper": MAB, "published": PublishedMAB}


def filled(part: Any) -> Any:
    for weight in part.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return part.eval()


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """What each query reads, head by head."""
    width, rows = D // HEADS, []
    for query in q:
        heads = []
        for at in (slice(h * width, (h + 1) * width) for h in range(HEADS)):
            weights = torch.softmax(torch.stack([query[at] @ key[at] for key in k]) * scale, 0) if len(k) else []
            heads.append(sum((w * value[at] for w, value in zip(weights, v, strict=True)), torch.zeros(width)))
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def by_hand(block: Any, x: Tensor, y: Tensor) -> Tensor:
    """MAB(X, Y) of one set, in the form of the block."""
    if isinstance(block, PublishedMAB):
        q, k, v = block.queries(x), block.keys(y), block.values(y)
        h = block.attended(q + attended(q, k, v, D**-0.5))
        return block.mapped(h + F.relu(block.out(h)))
    attention, mlp = block.layers
    q, k, v = (F.linear(z, *attention.projection.matrix(n)) for n, z in zip("qkv", (x, y, y), strict=True))
    h = block.norms[0](x + attention.aggregation.linear(attended(q, k, v, (D / HEADS) ** -0.5)))
    return block.norms[1](h + mlp.down(F.relu(mlp.up(h))))


def mixed(x: Tensor, real: Tensor = REAL) -> Context:
    """Padding anywhere, positions in no order."""
    return Context(torch.where(real, torch.tensor([7, 3, 900, 0, 5, 12]), -1))


@pytest.mark.parametrize("norm", [LayerNorm, nn.Identity])
@pytest.mark.parametrize("form", BLOCKS)
def test_blocks_are_the_equations(form: str, norm: Any, float64: None) -> None:
    make = BLOCKS[form]
    x, other = torch.randn(3, 6, D), torch.randn(3, 4, D)
    sab, mab = filled(make(D, HEADS, cross=False, norm=norm)), filled(make(D, HEADS, norm=norm))
    isab = filled(ISAB(make(D, HEADS, norm=norm), make(D, HEADS, norm=norm), 3))
    pma = filled(PMA(make(D, HEADS, norm=norm), 2, feedforward=MLP(D) if form == "paper" else None))
    ctx, real = mixed(x), REAL
    source = torch.tensor([[0, 1, 2, 3], [-1, -1, 0, -1], [-1] * 4])
    outputs = sab(x, None, ctx).y, isab(x, None, ctx).y, pma(x, real).unflatten(-1, (2, D))
    across = mab(x, None, ctx.replace(source=other, source_pos=source)).y
    for row, mask in enumerate(real):
        own = x[row, mask]
        torch.testing.assert_close(outputs[0][row, mask], by_hand(sab, own, own))
        gathered = by_hand(isab.gathers, isab.point, own)
        torch.testing.assert_close(outputs[1][row, mask], by_hand(isab.spreads, own, gathered))
        values = own if pma.feedforward is None else pma.feedforward(own[None]).y[0]
        torch.testing.assert_close(outputs[2][row], by_hand(pma.block, pma.seed, values))
        torch.testing.assert_close(across[row, mask], by_hand(mab, own, other[row, source[row] >= 0]))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("form", BLOCKS)
def test_the_order_of_a_set_says_nothing(form: str, dtype: torch.dtype, bound: float) -> None:
    torch.manual_seed(0)
    make, x, order = BLOCKS[form], torch.randn(3, 6, D, dtype=dtype), torch.tensor([4, 2, 0, 5, 1, 3])
    other, real = x[:, order], REAL[:, order]
    for layer in (make(D, HEADS, cross=False), ISAB(make(D, HEADS), make(D, HEADS), 3)):
        layer.to(dtype)
        want = layer(x, None, mixed(x)).y[:, order]
        for ctx in (mixed(other, real), Context(mixed(x).pos[:, order])):  # positions stay, or go with the elements
            far = (layer(other, None, ctx).y - want)[real].abs().max() / want[real].abs().max()
            assert far <= bound
    for pooling in (PMA(make(D, HEADS), 2), MeanPooler(), SumPooler(), MaxPooler()):
        pooling.to(dtype)
        want = pooling(x, REAL)
        assert (pooling(other, real) - want).abs().max() <= bound * want.abs().max()


def test_an_empty_set_is_what_seeds_and_points_are_alone(float64: None) -> None:
    x, empty = torch.randn(2, 6, D), torch.zeros(2, 6, dtype=torch.bool)
    pma, isab = filled(PMA(MAB(D, HEADS))), filled(ISAB(MAB(D, HEADS), MAB(D, HEADS), 3))
    torch.testing.assert_close(pma(x, empty)[1], by_hand(pma.block, pma.seed, x[0, :0])[0])
    torch.testing.assert_close(isab.induce(x, mixed(x, empty)).y[1], by_hand(isab.gathers, isab.point, x[0, :0]))
    assert torch.equal(MaxPooler()(x, empty), torch.zeros(2, D)) and torch.equal(
        SumPooler()(x, empty), torch.zeros(2, D)
    )


class Largest(TorchDispatchMode):
    """The most numbers of any tensor that is made meanwhile."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            self.most = max(self.most, tensor.numel() if isinstance(tensor, Tensor) else 0)
        return out


@pytest.mark.parametrize("form", BLOCKS)
def test_inducing_points_never_make_all_pairs(form: str) -> None:
    make, length = BLOCKS[form], 1024
    isab, x = ISAB(make(D, HEADS), make(D, HEADS), 3), torch.randn(1, length, D, requires_grad=True)
    with Largest() as largest:
        isab(x, None, Context(torch.randperm(length)[None])).y.sum().backward()
    assert largest.most <= 4 * D * length < length**2


def test_wrong_uses_are_one_line() -> None:
    x = torch.randn(1, 6, D)
    with pytest.raises(ValueError, match="a MAB with cross=True got no source"):
        PublishedMAB(D, HEADS)(x)
    with pytest.raises(ValueError, match="asks=8 and tells=5 must be equal with cross=False"):
        PublishedMAB(D, HEADS, cross=False, asks=8, tells=5)
    with pytest.raises(ValueError, match="d=8 is not a multiple of heads=3"):
        PublishedMAB(D, 3)
    with pytest.raises(ValueError, match="points=0"):
        ISAB(MAB(D, HEADS), MAB(D, HEADS), 0)
    for make in BLOCKS.values():  # it would read its points or seeds alone, and no set
        alone = make(D, HEADS, cross=False)
        for name, wrong in (
            ("gathers", lambda alone=alone, make=make: ISAB(alone, make(D, HEADS), 3)),
            ("spreads", lambda alone=alone, make=make: ISAB(make(D, HEADS), alone, 3)),
            ("block", lambda alone=alone: PMA(alone)),
        ):
            with pytest.raises(
                ValueError, match=rf"^{name} was made with cross=False, so it reads its own set\. Pass a block"
            ):
                wrong()
    with pytest.raises(ValueError, match="seeds=0"):
        PMA(MAB(D, HEADS), 0)
    with pytest.raises(NoState, match="inducing points read the whole set"):
        ISAB(MAB(D, HEADS), MAB(D, HEADS), 3).start(1, 4)
