"""Multi-Scale Transformer: heads per scale by layer, who sees whom, and what is refused."""

import math

import pytest

from kinformer.members.multi_scale import default_scales, multi_scale, shares
from tests.members.test_longformer import moves


def test_heads_are_shared_out_by_the_papers_distribution() -> None:
    """z by its recursion, from the widest scale down; then the nearest whole numbers of heads."""
    for depth, heads, scales, alpha in ((4, 8, 6, 0.5), (6, 10, 4, 1.5), (3, 16, 5, -0.7), (2, 3, 6, 0.5)):
        for layer in range(1, depth + 1):
            z = [0.0]
            for _ in range(scales - 1):
                z.append(z[-1] + alpha / layer if layer < depth else 0.0)
            z.reverse()
            expected = [heads * math.exp(value) / sum(map(math.exp, z)) for value in z]
            actual = shares(layer, depth, heads, scales, alpha)
            assert sum(actual) == heads
            assert all(abs(count - share) < 1 for count, share in zip(actual, expected, strict=True))
            # no other whole numbers of the same sum are nearer
            away = [share - count for count, share in zip(actual, expected, strict=True)]
            assert max(away) - min(away) <= 1 + 1e-9
    assert shares(2, 2, 4, 6, 0.5) == (1, 1, 1, 1, 0, 0)  # ties go to the narrow ones
    assert shares(1, 4, 12, 3, 1.0) == (8, 3, 1) and shares(4, 4, 12, 3, 1.0) == (4, 4, 4)


def test_scales_follow_the_length() -> None:
    assert default_scales(512) == (1, 3, 32, 64, 128, 256) and default_scales(16) == (1, 2, 3, 4, 8)


def test_a_layer_sees_as_far_as_its_widest_head() -> None:
    """One layer of two heads: 1 and 3 to each side; as a decoder to the left alone."""
    for form in ("encoder", "decoder"):
        model = multi_scale(d=8, depth=1, heads=2, scales=(1, 3), form=form, length=12, vocab=11)  # type: ignore[arg-type]
        model = model.double()
        reach = moves(model)
        for i in range(12):
            for j in range(12):
                assert bool(reach[i, j]) == (abs(i - j) <= 3 and (form == "encoder" or j <= i))


def test_what_is_wrong_is_told() -> None:
    with pytest.raises(ValueError, match="are not in ascending order; give each width once, the narrowest first"):
        multi_scale(scales=(3, 1))
    with pytest.raises(ValueError, match="alpha=nan"):
        multi_scale(alpha=math.nan)
    with pytest.raises(ValueError, match="heads=0"):
        multi_scale(heads=0)
