"""Top-k Transformer: its lowest attention is the equation, k by layer, and what is refused."""

from typing import Any

import pytest
import torch

from kinformer.members.topk_transformer import topk_transformer
from tests.by_hand import attention_by_hand, first_read

SMALL: dict[str, Any] = {"d": 8, "heads": 2, "length": 16, "vocab": 11}


@pytest.mark.parametrize("ties", ["all", "latest"])
def test_the_lowest_attention_is_the_equation(ties: str, float64: None) -> None:
    layer, x, y = first_read(topk_transformer(depth=1, k=3, ties=ties, **SMALL), torch.randint(0, 11, (1, 9)))
    q, k = (torch.nn.functional.linear(x, *layer.projection.matrix(name)).view(9, 2, 4) for name in "qk")

    def may(h: int, i: int, j: int) -> bool:
        score = q[i, h] @ k[: i + 1, h].T
        return j <= i and bool(score[j] >= score.topk(min(3, i + 1)).values[-1])

    torch.testing.assert_close(y, attention_by_hand(layer, x, may))


def test_k_by_layer() -> None:
    model: Any = topk_transformer(depth=2, k=(2, 5), ties="latest", **SMALL)
    assert [block.layers[0].mechanism.k for block in model.body.layers] == [2, 5]
    with pytest.raises(ValueError, match=r"k=\(2, 4\) has the wrong length: got 2, expected depth=3"):
        topk_transformer(depth=3, k=(2, 4), **SMALL)
