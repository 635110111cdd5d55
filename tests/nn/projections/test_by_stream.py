"""ByStream: each position by its own stream's projection."""

import pytest
import torch
from torch import Tensor

from kinformer.core.heads import Keys, Queries
from kinformer.nn.projections.by_stream import ByStream
from kinformer.nn.projections.qkv import QKV
from tests.unhooked import refusals, unhooked


def test_each_position_is_projected_by_its_stream() -> None:
    wide, long = QKV(16, 4, key_heads=2), QKV(16, 4, key_heads=2)
    streams, x, pos = (
        ByStream(3, wide, long),
        torch.randn(2, 6, 16),
        torch.tensor([[0, 2, 3, 4, 5, -1], [7, 1, 0, 3, 2, 9]]),
    )
    for call in (lambda part: part(x, pos, x, pos), lambda part: part.queries_and_keys(x, pos)):
        for projected, first, second in zip(*(flat(call(part)) for part in (streams, wide, long)), strict=True):
            for b in range(2):
                for t in range(6):
                    if pos[b, t] >= 0:
                        assert torch.equal(projected[b, :, t], (first if pos[b, t] < 3 else second)[b, :, t])


def flat(bundles: tuple[Queries, Keys]) -> list[Tensor]:
    queries, keys = bundles
    return [queries.q, keys.k, keys.v]


def test_both_is_one_product_a_stream() -> None:
    part, x, pos = ByStream(3, QKV(16, 4), QKV(16, 4)), torch.randn(2, 6, 16), torch.arange(6).expand(2, -1)
    products: list[int] = []
    for stream in (part.wide, part.long):
        stream.qkv.register_forward_hook(lambda *_: products.append(1))
    projected = part.queries_and_keys(x, pos)
    assert len(products) == 2
    for first, other in zip(flat(projected), flat(part(x, pos, x, pos)), strict=True):
        assert torch.allclose(first, other, atol=1e-6)


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (QKV(16, 2), "heads=4 and heads=2"),
        (QKV(16, 4, key_heads=2), "key_heads=4 and key_heads=2"),
        (QKV(12, 4), "d=16 and d=12"),
        (QKV(16, 4, head_dim=3), "k_dim=4 and k_dim=3"),
        (QKV(16, 4, v_dim=3), "v_dim=4 and v_dim=3"),
        (QKV(16, 4, bias=False), "bias=True and bias=False"),
    ],
)
def test_both_streams_have_the_same_sizes(other: QKV, name: str) -> None:
    with pytest.raises(ValueError, match=rf"the two projections of ByStream have {name}\. Make them equal"):
        ByStream(3, QKV(16, 4), other)


def test_it_has_no_one_matrix_and_says_so() -> None:
    with pytest.raises(ValueError, match="two matrices for 'q', for global and for other tokens"):
        ByStream(3, QKV(16, 4), QKV(16, 4)).matrix("q")


def refusal_messages() -> list[str]:
    return refusals([lambda: ByStream(-1, QKV(16, 4), QKV(16, 4)), lambda: ByStream(1, QKV, QKV(16, 4))])  # type: ignore[arg-type]


def test_arguments_are_checked() -> None:
    n, wide = unhooked(f"{__name__}:{refusal_messages.__name__}")
    assert n.startswith("ValueError: n=-1: give") and wide.startswith("ValueError: wide is the class QKV; give")
