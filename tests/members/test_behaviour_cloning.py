"""Behaviour cloning: what an action is said from, returns that change nothing, and the share of episodes it learns."""

import pytest
import torch

import kinformer as kf
from kinformer.core.batch import EpisodeSteps
from tests.members.probes import count
from tests.members.test_decision_transformer import LENGTH, TINY, fields

pytestmark = pytest.mark.usefixtures("float64")


def check(model: kf.Trajectory) -> None:
    """Two tokens a step: a_t depends on states up to t and on actions before t, and on no return."""
    upto = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    by_kind = fields(model)
    assert by_kind.keys() == {"of_states", "of_actions"}
    torch.testing.assert_close(by_kind["of_states"], upto)
    torch.testing.assert_close(by_kind["of_actions"], upto.tril(-1))


def test_an_action_is_said_from_states_and_earlier_actions() -> None:
    check(kf.behaviour_cloning(**TINY))


def test_a_decision_transformer_and_a_shorter_pattern_are_noticed() -> None:
    for fault in (kf.decision_transformer(**TINY), kf.behaviour_cloning(**TINY, pattern="Causal() & Band(3)")):
        with pytest.raises(AssertionError):
            check(fault)


def test_returns_change_no_loss() -> None:
    model = kf.behaviour_cloning(**TINY).eval()
    batch = EpisodeSteps(*(x.double() if x.is_floating_point() else x for x in model.sample(2, LENGTH, 0)))
    assert torch.equal(model(batch).total, model(batch._replace(returns=batch.returns + 5)).total)


def test_it_is_a_decision_transformer_without_the_embedding_of_returns() -> None:
    assert count(kf.decision_transformer(**TINY)) - count(kf.behaviour_cloning(**TINY)) == 16 + 16


def test_it_learns_from_the_best_tenth_unless_told() -> None:
    assert kf.behaviour_cloning(**TINY).best == 10 and kf.behaviour_cloning(**TINY, best=30).best == 30
    assert kf.decision_transformer(**TINY).best == 100
