"""Decision Transformer: what an action is said from, a shorter pattern, the order of tokens, and its size."""

from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.core.batch import EpisodeSteps
from kinformer.core.parameter_noise import add_parameter_noise
from tests.members.probes import count

pytestmark = pytest.mark.usefixtures("float64")

LENGTH = 5
TINY: dict[str, Any] = {"d": 16, "depth": 1, "heads": 2, "context": LENGTH, "states": 3, "steps": 32, "dropout": 0.0}


def fields(model: kf.Trajectory) -> dict[str, torch.Tensor]:
    """By kind of token the matrix that is True at [t, u] if action t depends on the embedded token of step u."""
    add_parameter_noise(model)
    embedded: dict[str, torch.Tensor] = {}
    for name in ("of_returns", "of_states", "of_actions"):
        if (layer := getattr(model, name)) is not None:
            layer.register_forward_hook(lambda _layer, _inputs, out, name=name: embedded.update({name: out}))
    batch = EpisodeSteps(*(x.double() if x.is_floating_point() else x for x in model.sample(1, LENGTH, 0)))
    actions = model.eval().predict(batch).actions[0]
    by_kind = {}
    for name, x in embedded.items():
        rows = [torch.autograd.grad(action.sum(), x, retain_graph=True)[0][0].abs().amax(-1) for action in actions]
        by_kind[name] = torch.stack(rows) > 1e-12
    return by_kind


def check(model: kf.Trajectory) -> None:
    """a_t is said at the token of s_t: it depends on returns and states up to t and on actions before t."""
    upto = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    expected = {"of_returns": upto, "of_states": upto, "of_actions": upto.tril(-1)}
    by_kind = fields(model)
    assert by_kind.keys() == expected.keys()
    for name, field in expected.items():
        torch.testing.assert_close(by_kind[name], field)


def test_an_action_is_said_from_returns_states_and_earlier_actions() -> None:
    check(kf.decision_transformer(**TINY))
    check(kf.decision_transformer(**TINY, actions=2, discrete=False))


def test_a_shorter_pattern_and_cloning_without_returns_are_noticed() -> None:
    """A band of 5 tokens holds two steps and no more."""
    for fault in (kf.decision_transformer(**TINY, pattern="Causal() & Band(5)"), kf.behaviour_cloning(**TINY)):
        with pytest.raises(AssertionError):
            check(fault)


def test_tokens_stand_as_return_state_action_with_one_vector_for_the_step() -> None:
    model, tokens = kf.decision_transformer(**TINY).eval(), []
    model.body.register_forward_pre_hook(lambda _body, arguments: tokens.append(arguments[0]))
    batch = EpisodeSteps(*(x.double() if x.is_floating_point() else x for x in model.sample(1, LENGTH, 0)))
    model.predict(batch)
    for t in range(LENGTH):
        when = model.of_times.weight[t]
        parts = model.of_returns(batch.returns[0, t, None]), model.of_states(batch.states[0, t])
        for n, part in enumerate((*parts, model.of_actions(batch.actions[0, t]))):
            torch.testing.assert_close(tokens[0][0, 3 * t + n], model.norm(part + when))


def test_its_size_is_that_of_three_embeddings_steps_blocks_and_a_head() -> None:
    d, states, actions, steps = 16, 3, 2, 32
    embeddings = (d + d) + (states * d + d) + actions * d + steps * d + 2 * d
    assert count(kf.decision_transformer(**TINY)) == embeddings + (12 * d * d + 13 * d) + 2 * d + (
        d * actions + actions
    )
