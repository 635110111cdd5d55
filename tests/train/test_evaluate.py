import math

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.layer import Out
from kinformer.train.evaluate import evaluate
from tests.train import tiny

TEXT = torch.randint(256, (501,), dtype=torch.uint8)


class Scribe(nn.Module):
    """Notes every window it is shown, and is the surer of the next byte the more it has read."""

    recurrent = False

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.rows: list[list[int]] = []

    def logits(self, tokens: Tensor, state: None = None) -> Out:
        self.rows += tokens.tolist()
        known = torch.arange(1.0, tokens.shape[1] + 1)[None, :, None]
        return Out(torch.nn.functional.one_hot((tokens + 1) % 256, 256) * known)


@pytest.mark.parametrize("count", [2, 17, 18, 33, 34, 36, 100, 501])
@pytest.mark.parametrize("length", [1, 16, 32, 5])
def test_every_byte_but_the_first_is_scored_once(count: int, length: int) -> None:
    model, text = Scribe(), torch.arange(count).to(torch.uint8)
    score = evaluate(model, text, length)
    width = min(length, count - 1)
    ends = [width, *range(width + max(width // 2, 1), count - 1, max(width // 2, 1)), count - 1]
    ends = sorted(set(ends))
    bits, before = 0.0, 0
    for end in ends:
        for place in range(before, end):
            known = place - (end - width) + 1
            bits += -math.log2(math.exp(known) / (math.exp(known) + 255))
        before = end
    assert score.bytes == count - 1
    assert score.bits == pytest.approx(bits / (count - 1), rel=1e-5)
    assert all(len(row) == width for row in model.rows)


def test_a_uniform_model_needs_eight_bits() -> None:
    model = tiny.bigram()
    torch.nn.init.zeros_(model.embedding.weight)
    assert evaluate(model, TEXT, 16).bits == pytest.approx(8.0)


def test_a_carried_state_makes_the_chunks_one_lane() -> None:
    model = tiny.lane()
    whole = evaluate(model, TEXT, 500)
    assert evaluate(model, TEXT, 7).bits == pytest.approx(whole.bits, rel=1e-4)
    assert evaluate(model, TEXT, 1).bits == pytest.approx(whole.bits, rel=1e-4)
    assert whole.bytes == 500


def test_a_limit_takes_the_first_bytes_and_the_mode_comes_back() -> None:
    model = tiny.bigram()
    assert evaluate(model, TEXT, 16, limit=100) == evaluate(model, TEXT[:100], 16)
    assert model.training
    assert not evaluate(model.eval(), TEXT, 16).bytes == 0 and not model.training


def test_one_byte_is_too_short() -> None:
    with pytest.raises(ValueError, match="1 bytes are there, and 2 are needed"):
        evaluate(tiny.bigram(), TEXT[:1], 16)
