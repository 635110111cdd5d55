"""ByHeads: each run of heads by its own projection."""

import pytest
import torch
from torch import Tensor

from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.nn.projections.by_heads import ByHeads
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.shared_qk import SharedQK


def flat(bundles: tuple[Queries, Keys]) -> list[Tensor]:
    queries, keys = bundles
    return [queries.q, keys.k, keys.v]


def test_each_run_of_heads_is_its_projections() -> None:
    first, second = QKV(16, 4, key_heads=2, head_dim=3, v_dim=5), QKV(16, 4, key_heads=2, head_dim=3, v_dim=5)
    joined, x, pos = ByHeads(first, second), torch.randn(2, 6, 16), torch.arange(6).expand(2, -1)
    assert joined.sizes() == HeadSizes(8, 4, 4, 3, 5)
    for call in (lambda part: part(x, pos, x[:, :4], pos[:, :4]), lambda part: part.queries_and_keys(x, pos)):
        for projected, one_side, other in zip(*(flat(call(part)) for part in (joined, first, second)), strict=True):
            assert torch.equal(projected, torch.cat([one_side, other], 1))
    for name in "qkv":
        weight, bias = joined.matrix(name)
        assert torch.equal(weight, torch.cat([first.matrix(name)[0], second.matrix(name)[0]]))
        assert torch.equal(bias, torch.cat([first.matrix(name)[1], second.matrix(name)[1]]))
    bare = ByHeads(QKV(16, 2, head_dim=4, bias=False), SharedQK(16, 2, head_dim=4, bias=False))
    assert bare.matrix("q")[1] is None and not bare.bias


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (QKV(16, 2, head_dim=4), "heads=4 and heads=2"),
        (QKV(16, 4, key_heads=2), "key_heads=4 and key_heads=2"),
        (QKV(12, 4), "d=16 and d=12"),
        (QKV(16, 4, head_dim=3), "k_dim=4 and k_dim=3"),
        (QKV(16, 4, v_dim=3), "v_dim=4 and v_dim=3"),
        (QKV(16, 4, bias=False), "bias=True and bias=False"),
    ],
)
def test_all_runs_have_the_same_sizes(other: QKV, name: str) -> None:
    with pytest.raises(ValueError, match=rf"projections of ByHeads have {name}\. Make them equal"):
        ByHeads(QKV(16, 4), other)


def test_without_a_projection_there_is_nothing_to_run() -> None:
    with pytest.raises(ValueError, match=r"ByHeads got no projection\. Pass one for each group of heads"):
        ByHeads()
