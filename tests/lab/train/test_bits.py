"""Bits per byte: the bits of the tokens that are scored, over the bytes of exactly these, however a text is read."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy
import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Out
from kinformer.core.model import EvaluationSums, Metric, Model, sum_and_count
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.train.evaluate import evaluate
from kinformer.members.bert import bert
from kinformer.models.support.text_model import TextModel

VOCAB = 40
CHANCE = numpy.random.default_rng(0)
TOKENS = torch.from_numpy(CHANCE.integers(VOCAB, size=400))
WIDTHS = torch.from_numpy(numpy.where(CHANCE.random(400) < 0.1, 30, CHANCE.integers(0, 6, size=400))).int()
WIDTHS[::50] = 90  # documents begin with the widest tokens
BEGINS = torch.tensor([0, 50, 53, 54, 150, 200, 260, 385])
SCORES = torch.from_numpy(CHANCE.normal(size=VOCAB) * 3).float()
BITS = -SCORES.double().log_softmax(0)[TOKENS] / math.log(2)


class Unigram(TextModel):
    """Says the same of every token, so what is scored decides what it is worth, and nothing else does."""

    vocab = VOCAB

    def __init__(self, lanes: bool = False) -> None:
        super().__init__()
        self.lanes, self.scores = lanes, torch.nn.Parameter(SCORES.clone())

    def start(self, batch: int, length: int, **where: Any) -> Tensor:
        return torch.zeros(batch)

    def logits(self, tokens: Tensor, state: Any = None, ctx: Any = None, *, last: bool = False) -> Out:
        return Out(self.scores.expand(*tokens.shape, -1), torch.zeros(len(tokens)))

    def forward(self, batch: Any, state: Any = None, progress: float = 1.0) -> Any:
        raise NotImplementedError


def scored(sizes: list[int], length: int, stride: int | None, full: bool) -> Iterator[int]:
    """Which tokens are scored, by the definition: each once, those with less than length - stride before left out."""
    begin = 0
    for size in sizes:
        for place in range(1, size):
            if not full or (size > length and place > length - (stride or max(length // 2, 1))):
                yield begin + place
        begin += size


def bits(places: list[int]) -> float:
    return float(BITS[places].sum()) / int(WIDTHS[places].sum())


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("length", [1, 7, 16, 60, 500])
@pytest.mark.parametrize("stride", [None, 1, 5, "length"])
@pytest.mark.parametrize("full", [False, True])
def test_windows(documents: bool, length: int, stride: int | str | None, full: bool) -> None:
    step = length if stride == "length" else None if stride is None else min(int(stride), length)
    part = SplitTokens(TOKENS, BEGINS if documents else None, WIDTHS)
    places = list(scored(part.sizes.tolist(), length, step, full))
    if not places:
        with pytest.raises(ValueError, match="has a token after a whole window"):
            evaluate(Unigram(), part, length, stride=step, full=full)
        return
    score = evaluate(Unigram(), part, length, stride=step, full=full)
    assert score.count == len(places) and score.value == pytest.approx(bits(places), rel=1e-5)
    assert score.bytes_per_token * score.count == pytest.approx(int(WIDTHS[places].sum()))


@pytest.mark.parametrize(("documents", "lanes"), [(False, 1), (False, 3), (False, None), (True, None)])
@pytest.mark.parametrize("length", [1, 16, 500])
def test_lanes(documents: bool, lanes: int | None, length: int) -> None:
    part = SplitTokens(TOKENS, BEGINS if documents else None, WIDTHS)
    places = list(scored(part.sizes.tolist(), length, None, False))
    score = evaluate(Unigram(lanes=True), part, length, lanes=lanes)
    assert score.count == len(places) and score.value == pytest.approx(bits(places), rel=1e-5)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("limit", [100, 700, 1200])
def test_some_bytes(documents: bool, limit: int) -> None:
    part = SplitTokens(TOKENS, BEGINS if documents else None, WIDTHS)
    sample = part.spread(limit)
    at = {(int(token), int(width)): n for n, (token, width) in enumerate(zip(TOKENS, WIDTHS, strict=True))}
    firsts = set(sample.document_starts.tolist())
    assert sample.widths is not None
    places = [
        at[int(t), int(w)] for n, (t, w) in enumerate(zip(sample.tokens, sample.widths, strict=True)) if n not in firsts
    ]
    score = evaluate(Unigram(), part, 16, limit)
    assert score.count == len(places) and score.value == pytest.approx(bits(places), rel=1e-5)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("length", [8, 16, 60])
def test_what_is_filled_in(documents: bool, length: int) -> None:
    """Of a model that fills in the bytes are those of the tokens that it hid, window by window."""
    model = bert(d=8, depth=1, heads=2, vocab=VOCAB, length=64).eval()
    part = SplitTokens(TOKENS, BEGINS if documents else None, WIDTHS)
    cost, size, count = 0.0, 0, 0
    with torch.no_grad():
        for begin, end in zip(
            part.document_starts.tolist(), [*part.document_starts.tolist()[1:], len(TOKENS)], strict=True
        ):
            for first in range(begin, end, length):
                row = TOKENS[None, first : min(first + length, end)]
                read, targets = model.hide(row, fixed=True)
                chances = model.logits(read).y[0].double().log_softmax(-1)
                for place in (targets[0] >= 0).nonzero()[:, 0].tolist():
                    cost -= float(chances[place, row[0, place]]) / math.log(2)
                    size, count = size + int(WIDTHS[first + place]), count + 1
    score = evaluate(model, part, length)
    assert (score.count, score.metric.name) == (count, "bits per masked byte")
    assert score.value == pytest.approx(cost / size, rel=1e-5)


class Silent(Model):
    """Fills in, and does not say which tokens it scored."""

    reads: ClassVar[str] = "masked"
    metric = Metric("bits per masked byte", "bits")

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(torch.zeros(1))

    def judge(self, batch: Tensor, state: Any = None) -> EvaluationSums:
        return EvaluationSums({"bits per masked byte": sum_and_count(torch.ones(batch.shape), batch > 20)})

    def forward(self, batch: Any, state: Any = None, progress: float = 1.0) -> Any:
        raise NotImplementedError

    def sample(self, rows: int, length: int, seed: int) -> Any:
        raise NotImplementedError


def test_a_model_that_does_not_say_what_it_scored_is_refused_where_tokens_are_no_bytes() -> None:
    assert evaluate(Silent(), SplitTokens(TOKENS), 16).value == 1
    with pytest.raises(ValueError, match=r"Silent.judge scored .* tokens, but returned no mask\.") as caught:
        evaluate(Silent(), SplitTokens(TOKENS, None, WIDTHS), 16)
    assert "\n" not in str(caught.value)


def test_tokens_that_stand_for_no_byte_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot compute bits per byte: the 399 scored tokens have no bytes"):
        evaluate(Unigram(), SplitTokens(TOKENS, None, torch.zeros_like(WIDTHS)), 16)
