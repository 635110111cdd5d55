import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Out
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.train.evaluate import evaluate, evaluate_batches
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from tests.lab.train import tiny

TEXT = torch.randint(256, (501,), dtype=torch.uint8)


class Scribe(tiny.Bigram):
    """Notes how much it has read in each row, and is the surer of the next byte the more that is."""

    def __init__(self) -> None:
        super().__init__(1)
        self.read: list[int] = []

    def start(self, batch: int, length: int, **where: Any) -> Tensor:
        return torch.zeros(batch)

    def logits(self, tokens: Tensor, state: Tensor | None = None, ctx: None = None, *, last: bool = False) -> Out:
        before = torch.zeros(len(tokens)) if state is None else state
        steps = before[:, None] + torch.arange(1.0, tokens.shape[1] + 1)
        self.read += steps[:, -1].int().tolist()
        return Out(torch.nn.functional.one_hot((tokens + 1) % 256, 256) * steps[..., None].double(), steps[:, -1])


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
            context = place - (end - width) + 1
            bits += -math.log2(math.exp(context) / (math.exp(context) + 255))
        before = end
    assert score.count == count - 1
    assert score.value == pytest.approx(bits / (count - 1), rel=1e-5)
    assert max(model.read) == width  # no window is longer than it


@pytest.mark.parametrize(("length", "stride"), [(16, 1), (16, 5), (16, 16), (1, 1), (600, 7)])
def test_with_a_stride_every_byte_is_scored_once_with_so_many_before_it(length: int, stride: int) -> None:
    """The surer a Scribe is, the more it has read: what it may have read of each byte's past says what it must cost."""
    model, text = Scribe(), torch.arange(501).to(torch.uint8)
    score = evaluate(model, text, length, stride=stride)
    width = min(length, 500)
    step = min(stride, width)
    bits = 0.0
    for place in range(500):
        into = (place - width) % step if place >= width else 0
        end = 500 if place >= 500 - (500 - width) % step else place - into + step
        context = place + 1 if place < width else place + 1 - (end - width)
        assert place < width or context > width - step
        bits += -math.log2(math.exp(context) / (math.exp(context) + 255))
    assert score.count == 500 and score.value == pytest.approx(bits / 500, rel=1e-5)
    assert max(model.read) == width


def test_half_a_window_is_the_stride_unless_given_and_lanes_read_windows_where_one_is() -> None:
    model = tiny.bigram()
    assert evaluate(model, TEXT, 16, stride=8) == evaluate(model, TEXT, 16)
    lane = tiny.lane()
    bits = 0.0
    for end in range(25, 501, 25):  # what a lane's windows read before the first of them is nothing
        judged = lane.judge(TEXT[None, end - 25 : end + 1].long(), lane.start(1, 25))
        bits += float(judged.totals["bits per byte"][0].detach())
    assert evaluate(lane, TEXT, 25, stride=25).value == pytest.approx(bits / 500, rel=1e-4)


def test_it_says_how_far_it_is() -> None:
    progress: list[int] = []
    assert evaluate(tiny.bigram(), TEXT, 16, on_progress=progress.append).count == progress[-1] == 500
    assert progress == sorted(set(progress)) and len(progress) > 2


def test_windows_and_lanes_that_cannot_be_are_refused() -> None:
    model = tiny.bigram()
    wrong: list[tuple[Any, dict[str, int], str]] = [
        (model, {"stride": 17}, "wrong stride for windows of 16: got 17, expected 1 to 16"),
        (model, {"stride": 0}, "wrong stride for windows of 16: got 0"),
        (model, {"stride": 4, "lanes": 2}, "give one of stride and lanes"),
        (model, {"lanes": 501}, "wrong number of lanes: got 501, expected 1 to 500"),
        (
            gpt(d=8, depth=1, heads=2, length=32),
            {"lanes": 10},
            "a parallel piece of the text\\) has 50 tokens, but this model has only 32",
        ),
        (bert(d=8, depth=1, heads=2), {"stride": 4}, "predicts the next token; leave out stride and lanes"),
    ]
    for candidate, options, message in wrong:
        with pytest.raises(ValueError, match=message):
            evaluate(candidate, TEXT, 16, **options)


def test_a_uniform_model_needs_eight_bits() -> None:
    model = tiny.bigram()
    torch.nn.init.zeros_(model.embedding.weight)
    assert evaluate(model, TEXT, 16).value == pytest.approx(8.0)


def test_a_carried_state_makes_the_chunks_one_lane() -> None:
    model = tiny.lane()
    whole = evaluate(model, TEXT, 500)
    assert evaluate(model, TEXT, 7).value == pytest.approx(whole.value, rel=1e-4)
    assert evaluate(model, TEXT, 1).value == pytest.approx(whole.value, rel=1e-4)
    assert whole.count == 500


def test_a_long_text_is_read_in_several_lanes_and_no_byte_is_scored_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lane begins with a fresh state; the last may be shorter than the others."""
    monkeypatch.setattr("kinformer.lab.train.evaluate.LANE", 30)
    model, rows = tiny.lane(), []
    judge = model.judge
    model.judge = lambda batch, state: rows.append(batch) or judge(batch, state)  # type: ignore[method-assign]
    text = torch.randint(256, (101,), dtype=torch.uint8)
    score = evaluate(model, text, 7)
    assert score.count == 100 and {len(batch) for batch in rows} == {4}
    bits = 0.0
    for first in range(0, 100, 25):
        bits += float(judge(text[None, first : first + 26].long(), model.start(1, 25)).totals["bits per byte"][0])
    assert score.value == pytest.approx(bits / 100, rel=1e-4)
    assert evaluate(model, text, 7, lanes=4) == score
    whole = evaluate(model, text[:100], 7)  # 99 predictions: the last lane is one shorter
    assert whole.count == 99


def test_a_limit_takes_the_first_bytes_and_the_mode_comes_back() -> None:
    model = tiny.bigram()
    assert evaluate(model, TEXT, 16, limit=100) == evaluate(model, TEXT[:100], 16)
    assert model.training
    assert not evaluate(model.eval(), TEXT, 16).count == 0 and not model.training


def test_less_than_the_first_token_of_documents_is_too_short() -> None:
    part = SplitTokens(torch.arange(6), torch.tensor([0, 3]), torch.tensor([4, 1, 1, 1, 1, 1]))
    with pytest.raises(ValueError, match="the text to evaluate on is too short: got 0 tokens, expected at least 2"):
        evaluate(tiny.bigram(), part, 4, 2)


def test_one_byte_is_too_short() -> None:
    with pytest.raises(ValueError, match="got 1 bytes, expected at least 2"):
        evaluate(tiny.bigram(), TEXT[:1], 16)


@pytest.mark.parametrize("count", [40, 100, 501])
def test_a_model_that_fills_in_is_scored_on_what_it_hides(count: int) -> None:
    """Windows side by side, 16 at a time; each chosen byte once, given what the model reads of its window."""
    model, length = bert(d=8, depth=1, heads=2, length=16).eval(), 16
    nats, chosen = 0.0, 0
    for first in range(0, count, 16 * length):
        rows = TEXT[first : min(count, first + 16 * length)].long()
        whole = len(rows) // length * length
        for batch in (rows[:whole].view(-1, length), rows[whole:][None]):
            if batch.numel():
                read, targets = model.hide(batch, fixed=True)
                chances = model.logits(read).y.log_softmax(-1).double()
                nats -= sum(float(chances[b, t, targets[b, t]].detach()) for b, t in (targets >= 0).nonzero().tolist())
                chosen += int((targets >= 0).sum())
    score = evaluate(model.train(), TEXT[:count], length)
    assert (score.count, score.metric.name, model.training) == (chosen, "bits per masked byte", True)
    assert score.value == pytest.approx(nats / chosen / math.log(2), rel=1e-5)
    assert evaluate(model, TEXT[:count], length) == score


def test_a_text_of_which_nothing_is_hidden_has_no_score() -> None:
    model = bert(d=8, depth=1, heads=2)
    pairs = torch.arange(20).view(10, 2)
    text = next(pair for pair in pairs if bool((model.hide(pair[None], fixed=True)[1] < 0).all())).to(torch.uint8)
    with pytest.raises(ValueError, match="none of its 2 bytes was masked; give more text"):
        evaluate(model, text, 16)


def test_batches_are_measured_by_what_the_model_judges() -> None:
    model = tiny.classifier()
    batches = [model.sample(rows, 7, rows) for rows in (5, 2)]
    right = sum(int((model.answers(rows).argmax(-1) == labels).sum()) for rows, labels in batches)
    score = evaluate_batches(model, batches)
    assert (score.value, score.count, score.metric.name) == (pytest.approx(right / 7), 7, "accuracy")
    assert model.training
    with pytest.raises(ValueError, match="every target in the batches is padding"):
        evaluate_batches(model, [])
