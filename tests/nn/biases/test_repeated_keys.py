"""RepeatedKeys against copies of keys: a softmax over a first block that really stands there several times."""

import pytest
import torch
from torch import Tensor

from kinformer.attend import attend
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.biases.repeated_keys import RepeatedKeys
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")
BLOCK, TIMES, FULL_UP_TO = 3, 4, 6
# rows of 11, 7 and 6 tokens, with padding on both sides
POS = torch.full((3, 12), -1)
POS[0, 1:], POS[1, 2:9], POS[2, :6] = torch.arange(11), torch.arange(7), torch.arange(6)


def naive(q: Tensor, k: Tensor, v: Tensor, times: int) -> Tensor:
    """Queries between the first and the last block read each key of the first block `times` times."""
    y = torch.zeros_like(q)
    for b, h, t in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        i, row = int(POS[b, t]), [s for s in range(POS.shape[1]) if POS[b, s] >= 0]
        if i < 0:
            continue
        last_block = (len(row) - 1) // BLOCK
        if len(row) > FULL_UP_TO and 0 < i // BLOCK < last_block:
            row = row + [s for s in row if POS[b, s] < BLOCK] * (times - 1)
        y[b, h, t] = (k[b, h, row] @ q[b, h, t] / q.shape[-1] ** 0.5).softmax(0) @ v[b, h, row]
    return y


def test_equals_a_softmax_over_copies() -> None:
    q, k, v = torch.randn(3, 3, 2, 12, 4)
    bias = RepeatedKeys(BLOCK, TIMES, FULL_UP_TO)
    actual = attend(q, k, v, q_pos=POS[:, None], k_pos=POS[:, None], bias=bias).y
    torch.testing.assert_close(actual, naive(q, k, v, TIMES), rtol=0, atol=1e-12)
    assert not torch.allclose(actual, naive(q, k, v, TIMES - 1))


def test_it_does_not_decode_and_checks_its_numbers() -> None:
    with pytest.raises(NoState, match="the last block is known only from the whole row"):
        Attention(QKV(8, 2), Softmax(Full(), RepeatedKeys(2, 2))).start(1, 4)
    for numbers in ((0, 2), (2, 0), (2, 2, -1)):
        with pytest.raises(ValueError, match="give a whole number of at least"):
            RepeatedKeys(*numbers)
