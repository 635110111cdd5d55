"""Batches of which some tokens alone are answers: learned, hidden and judged are these and no others."""

import math
import warnings

import pytest
import torch
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.core.model import ACCURACY
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.universal_transformer import universal_transformer
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.models.multi_exit import EXAMPLES as MULTI_EXIT
from kinformer.models.multi_exit_seq2seq import EXAMPLES as MULTI_EXIT_SEQ2SEQ
from kinformer.models.seq2seq import EXAMPLES as SEQ2SEQ

ROWS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, -1, -1], [-1, 8, 7, 9, 3, 2]])
SCORED = torch.tensor([[0, 0, 1, 0, 1, 1], [0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
SMALL = {"d": 16, "depth": 1, "heads": 2, "vocab": 11}


def built(make: object, **options: object) -> object:
    torch.manual_seed(0)
    return make(**options).double().eval()  # type: ignore[operator]


def by_hand(log_p: Tensor, targets: Tensor, scored: Tensor) -> tuple[float, float, float]:
    """The mean surprise in nats, the share right, and the share of rows all right, answer by answer."""
    log_p, nats, right, rows = log_p.detach(), [], [], []
    for b in range(len(targets)):
        mine = [t for t in range(targets.shape[1]) if scored[b, t]]
        nats += [-float(log_p[b, t, targets[b, t]]) for t in mine]
        hits = [int(log_p[b, t].argmax()) == int(targets[b, t]) for t in mine]
        right += hits
        rows += [all(hits)] if mine else []
    return sum(nats) / len(nats), sum(right) / len(right), sum(rows) / len(rows)


def agree(model: object, batch: object, expected: tuple[float, float, float]) -> None:
    """The loss and the measures of a batch are those."""
    loss = model(batch)  # type: ignore[operator]
    totals = model.judge(batch).totals  # type: ignore[attr-defined]
    assert next(iter(totals)) == ACCURACY.name
    accuracy, rows, bits = (float(total / count) for total, count in list(totals.values())[:3])
    assert (bits * math.log(2), accuracy, rows) == pytest.approx(expected)
    if "exits" not in loss.parts:  # of which the loss is read without anybody leaving
        assert float(loss.parts["nll"].detach()) == pytest.approx(expected[0])


@pytest.mark.parametrize("make", [lambda: gpt(**SMALL), MULTI_EXIT[0]], ids=["gpt", "multi_exit"])
def test_a_language_model_predicts_the_scored_tokens_alone(make: object) -> None:
    model = built(make)
    assert isinstance(model, LM)
    log_p = model.logits(ROWS[:, :-1]).y.log_softmax(-1)
    agree(model, TokenBatch(ROWS, SCORED), by_hand(log_p, ROWS[:, 1:], SCORED[:, 1:]))
    assert "accuracy" not in model.judge(TokenBatch(ROWS)).totals
    assert torch.equal(model(TokenBatch(ROWS)).total, model(ROWS).total)


def test_all_exits_learn_the_scored_tokens_alone() -> None:
    """The sums over two sets of answers are the sum over both."""
    model = built(MULTI_EXIT[0])
    unscored = ~SCORED & (ROWS >= 0)
    losses = [model(TokenBatch(ROWS, marks)) for marks in (SCORED, unscored, SCORED | unscored)]  # type: ignore[operator]
    assert [int(loss.count) for loss in losses] == [5, 7, 12] and int(model(ROWS).count) == 12  # type: ignore[operator]
    for part in ("nll", "exits", "leaving"):
        of_scored, other, of_both = (loss.parts[part] * loss.count for loss in losses)
        assert torch.allclose(of_scored + other, of_both)


def test_penalties_of_a_language_model_are_means_over_all_that_it_reads() -> None:
    model = built(universal_transformer, **SMALL)
    whole, marked = model(ROWS), model(TokenBatch(ROWS, SCORED))  # type: ignore[operator]
    names = set(whole.parts) - {"nll"}
    assert names and all(torch.equal(whole.parts[name], marked.parts[name]) for name in names)


def test_what_fills_in_hides_exactly_the_scored_tokens() -> None:
    model = built(bert, **SMALL)
    assert isinstance(model, MLM)
    log_p = model.logits(torch.where(SCORED, model.mask, ROWS)).y.log_softmax(-1)
    agree(model, TokenBatch(ROWS, SCORED), by_hand(log_p, ROWS, SCORED))
    assert torch.equal(model(TokenBatch(ROWS)).total, model(ROWS).total)


@pytest.mark.parametrize("make", [SEQ2SEQ[0], MULTI_EXIT_SEQ2SEQ[0]], ids=["seq2seq", "multi_exit"])
def test_a_target_s_end_is_learned_and_not_judged(make: object) -> None:
    model = built(make)
    source, target = ROWS[:2], torch.tensor([[7, 8, 9], [4, 5, -1]])
    read = torch.tensor([[model.begin, 7, 8, 9], [model.begin, 4, 5, -1]])  # type: ignore[attr-defined]
    log_p = model.logits(read, source=source).y.log_softmax(-1)  # type: ignore[attr-defined]
    targets = torch.tensor([[7, 8, 9, model.end], [4, 5, model.end, -1]])  # type: ignore[attr-defined]
    nats, _, _ = by_hand(log_p, targets, targets >= 0)
    _, right, rows = by_hand(log_p, targets, (targets >= 0) & (targets != model.end))  # type: ignore[attr-defined]
    agree(model, (source, TokenBatch(target, target >= 0)), (nats, right, rows))
    partly = torch.tensor([[True, False, False], [True, False, False]])
    nats, _, _ = by_hand(log_p, targets, torch.tensor([[1, 0, 0, 1], [1, 0, 1, 0]], dtype=torch.bool))
    _, right, rows = by_hand(log_p, targets, torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool))
    agree(model, (source, TokenBatch(target, partly)), (nats, right, rows))


def test_marks_move_with_their_tokens() -> None:
    batch = TokenBatch(torch.tensor([[-1, -1, 5, 6, 7], [1, 2, 3, -1, -1]]), None)
    scored = torch.tensor([[False, False, False, True, False], [True, False, True, False, False]])
    shifted = batch._replace(scored=scored).to_the_left()
    assert shifted.tokens.tolist() == [[5, 6, 7, -1, -1], [1, 2, 3, -1, -1]]
    assert shifted.scored is not None and shifted.scored.int().tolist() == [[0, 1, 0, 0, 0], [1, 0, 1, 0, 0]]
    assert batch.to_the_left().scored is None


def test_beyond_learned_positions_padding_in_front_changes_no_answer() -> None:
    model = built(gpt, **SMALL, length=4)
    rows, scored = ROWS[:1], SCORED[:1]
    ahead = torch.nn.functional.pad
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = model.judge(TokenBatch(rows, scored)).totals  # type: ignore[attr-defined]
        padded = TokenBatch(ahead(rows, (3, 0), value=-1), ahead(scored, (3, 0)))
        assert all(
            torch.allclose(torch.stack(plain[name]), torch.stack(actual))
            for name, actual in model.judge(padded).totals.items()  # type: ignore[attr-defined]
        )
