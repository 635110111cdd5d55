import math

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.layer import Out
from kinformer.members.bert import bert
from kinformer.train.evaluate import evaluate, unit
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


@pytest.mark.parametrize("count", [40, 100, 501])
def test_a_model_that_fills_in_is_scored_on_what_it_hides(count: int) -> None:
    """Windows side by side, 16 at a time; each chosen byte once, given what the model reads of its window."""
    model, length = bert(d=8, depth=1, heads=2, length=16).eval(), 16
    nats, chosen = 0.0, 0
    generator = torch.Generator().manual_seed(0)
    for first in range(0, count, 16 * length):
        rows = TEXT[first : min(count, first + 16 * length)].long()
        whole = len(rows) // length * length
        for some in (rows[:whole].view(-1, length), rows[whole:][None]):
            if some.numel():
                read, wanted = model.hide(some, generator)
                chances = model.logits(read).y.log_softmax(-1).double()
                nats -= sum(float(chances[b, t, wanted[b, t]].detach()) for b, t in (wanted >= 0).nonzero().tolist())
                chosen += int((wanted >= 0).sum())
    score = evaluate(model.train(), TEXT[:count], length)
    assert (score.bytes, unit(model), model.training) == (chosen, "bits per masked byte", True)
    assert score.bits == pytest.approx(nats / chosen / math.log(2), rel=1e-5)
    assert evaluate(model, TEXT[:count], length) == score


def test_a_text_of_which_nothing_is_hidden_has_no_score() -> None:
    with pytest.raises(ValueError, match="of the 2 bytes to evaluate on none was chosen to be hidden; give more text"):
        evaluate(bert(d=8, depth=1, heads=2), TEXT[:2], 16)
