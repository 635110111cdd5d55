"""What the claim on depth-adaptive exits stands on: its questions, and what answers are said to take."""

import pytest
import torch

from kinformer.lab.claims import depth_adaptive_exits as claim
from kinformer.lab.claims.depth_adaptive_exits import (
    DEPTH,
    KINDS,
    QUESTIONS,
    ExitResult,
    accuracy_by_exit,
    build_model,
    copy_with_classifier,
    measure_exits,
    rows,
)


def test_easy_answers_are_what_is_asked_with_and_hard_ones_what_was_asked_with_before() -> None:
    batch = rows(600, torch.Generator().manual_seed(0))
    for source, tokens, hard in zip(batch.source, batch.target.tokens.tolist(), batch.hard.tolist(), strict=True):
        question, answers = tokens[::2], tokens[1::2]
        assert not hard[0] and (int(source) == 1 or not any(hard))
        for n in range(QUESTIONS):
            assert question[n] // KINDS == 1 + hard[n]
            assert answers[n] == question[n - hard[n]] % KINDS
    assert batch.target.scored is not None and batch.target.scored.tolist()[0] == [False, True] * QUESTIONS
    assert float(batch.hard.float().mean()) == pytest.approx(0.5, abs=0.03)
    assert float(batch.source.float().mean()) == pytest.approx(2 / 3, abs=0.06)


def test_what_answers_take_is_counted_at_answers_alone() -> None:
    torch.manual_seed(0)
    plain = build_model(classifier="probability").eval()
    model = copy_with_classifier(plain, 1, classifier="geometric")
    for name, weight in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
    model.exits.rule.stop[0].weight.data.mul_(20)
    model.eval().exits.rule.leave_at(0.6)
    batch = rows(6, torch.Generator().manual_seed(1))
    read = torch.cat([torch.full((6, 1), model.begin), batch.target.tokens], 1)
    out, full = (model.logits(read, source=batch.source) for _ in range(2))
    model.exits.rule.leave_at(1.0)
    full = model.logits(read, source=batch.source)
    layers, right, every = {False: [], True: []}, [], []
    for b in range(6):
        for n in range(QUESTIONS):
            at = 1 + 2 * n  # what is read there is the question, behind the begin
            layers[bool(batch.hard[b, n])].append(int(out.aux["exit"][b, at]))
            expected = int(batch.target.tokens[b, at])
            right.append(int(out.y[b, at].argmax()) == expected)
            every.append(int(full.y[b, at].argmax()) == expected)
    pair = layers[False] + layers[True]
    assert 1 < sum(pair) / len(pair) < DEPTH, "some leave early"
    mean = [sum(x) / len(x) for x in (layers[False], layers[True], pair, right, every)]
    model.exits.rule.leave_at(0.6)
    assert measure_exits(model, batch) == pytest.approx(ExitResult(*mean))
    assert (
        accuracy_by_exit(model, batch)[-1] == pytest.approx(mean[-1]) and len(accuracy_by_exit(model, batch)) == DEPTH
    )


@pytest.mark.prove
def test_the_claim_holds() -> None:
    assert claim.claim((0, 1)).verdict == "holds"
