"""The keywords of agent: each reaches its model, and what is wrong is said in one line."""

import math
from typing import Any

import pytest
import torch

from kinformer.core.actor import TimeStep
from kinformer.core.layer import State
from kinformer.members.agent import agent
from kinformer.models.support.recurrent_actor import single_step

TINY = "gpt(d=8, depth=1, heads=2, length=64)"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no member": ({"stack": "gtp"}, "names no member of the library; the nearest is 'gpt'"),
    "no text": ({"stack": "gpt(d=8"}, "is no member; write gpt"),
    "a keyword": ({"stack": "gpt(dd=8)"}, "no keyword 'dd'; the nearest is 'd'"),
    "an encoder": ({"stack": "bert(d=8)"}, "makes the model MLM; give a plain language model"),
    "dropout": ({"stack": "gpt(d=8, dropout=0.3)"}, "same policy: got dropout=0.3, expected 0. Pass dropout=0"),
    "a file": ({"stack": "mine.py:gpt"}, "names no member"),
    "no observation": ({"observations": ()}, r"observations=\(\)"),
    "no action": ({"actions": 0}, "actions=0"),
    "a discount": ({"discount": 1.5}, "discount=1.5"),
    "burn-in": ({"burn_in": -1}, "burn_in=-1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_agent_is_said_in_one_line(name: str) -> None:
    keywords, why = WRONG[name]
    with pytest.raises(ValueError, match=why) as raised:
        agent(**{"stack": TINY, **keywords})
    assert "\n" not in str(raised.value)


def test_keywords_reach_the_model() -> None:
    keywords = {"discount": 0.9, "trace": 0.8, "ratio": 0.3, "entropy": 0.1, "epochs": 2, "pieces": 3, "burn_in": 4}
    model = agent(stack=TINY, value=0.7, **keywords)
    assert {name: getattr(model, name) for name in keywords} == keywords and model.worth == 0.7


@pytest.mark.parametrize("shape", [(3,), (2, 3), (12, 10, 3), (1, 9, 9)])
def test_observations_of_any_shape_are_read(shape: tuple[int, ...]) -> None:
    model = agent(stack=TINY, observations=shape)
    batch = model.sample(2, 3, 0)
    steps = batch.observations
    changed = batch._replace(observations=steps._replace(observed=steps.observed + 50))
    loss, other = model(batch), model(changed)
    assert loss.total.isfinite() and loss.total != other.total


def test_at_the_start_all_actions_are_about_as_likely() -> None:
    torch.manual_seed(0)
    model = agent(stack=TINY, actions=5)
    likely = model.policy.distribution(model.predict(model.sample(3, 6, 0).observations).policy).probs
    torch.testing.assert_close(likely, torch.full_like(likely, 0.2), atol=0.03, rtol=0)


@pytest.mark.parametrize("discrete", [True, False])
def test_an_actor_forgets_where_an_episode_begins(discrete: bool) -> None:
    model = agent(stack=TINY, observations=(3,), discrete=discrete).double()
    observations = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def remembered(first: int) -> State:
        actor, reward = model.actor(seed=1), torch.full((2,), 0.5, dtype=torch.float64)
        state = actor.start(2)
        for n in range(first, 4):
            begins = torch.full((2,), n in (first, 2))
            action, state = actor.act(TimeStep(observations[n], reward * ~begins, begins), state)
            state = state._replace(acted=torch.ones_like(state.acted))
        return model.predict(single_step(observations[0], state.acted, reward), state.state).policy

    torch.testing.assert_close(remembered(0), remembered(2), atol=1e-12, rtol=0)
    assert (remembered(2) - remembered(3)).abs().max() > 1e-9


@pytest.mark.parametrize("observations", [(3,), (12, 10, 3)])
@pytest.mark.parametrize("discrete", [True, False])
def test_an_actor_of_no_rows_does_nothing(observations: tuple[int, ...], discrete: bool) -> None:
    actor = agent(stack=TINY, observations=observations, discrete=discrete, actions=2).actor()
    observation = TimeStep(torch.zeros(0, math.prod(observations)), torch.zeros(0), torch.zeros(0, dtype=torch.bool))
    state = actor.start(0)
    for _ in range(2):
        done, state = actor.act(observation, state)
        assert done.shape == ((0,) if discrete else (0, 2))


def test_what_stands_at_padding_has_no_gradient() -> None:
    model = agent(stack=TINY)
    batch = model.sample(2, 4, 0)
    batch.observations.marks[1, 2:] = -1
    log_p, gradients = batch.log_p, []
    for filler in (0.0, -1e3):
        log_p[1, 2:] = filler
        model.zero_grad()
        model(batch._replace(log_p=log_p.clone())).total.backward()
        gradients.append(
            torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
        )
    assert gradients[0].isfinite().all() and gradients[0].any()
    torch.testing.assert_close(gradients[0], gradients[1], atol=0, rtol=0)


@pytest.mark.parametrize("discrete", [True, False])
def test_a_policy_says_as_much_under_autocast(discrete: bool) -> None:
    policy, y = agent(stack=TINY, discrete=discrete).policy, torch.randn(4, 8)
    with torch.no_grad():
        torch.nn.init.normal_(policy.head.weight)
        want = policy(y)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(policy(y), want, atol=0, rtol=0)
        half = policy.bfloat16()(y.bfloat16())
    assert half.dtype is torch.float32 and not torch.equal(half, half.bfloat16().float())


def test_an_actor_is_told_what_was_done_in_place_of_its_own_action() -> None:
    model = agent(stack=TINY, observations=(3,))
    actor, reward, begins = model.actor(seed=1), torch.zeros(2), torch.ones(2, dtype=torch.bool)
    own, begun = actor.act(TimeStep(torch.ones(2, 3), reward, begins), actor.start(2))

    def read(acted: torch.Tensor | None) -> torch.Tensor:
        _, state = actor.act(TimeStep(torch.ones(2, 3), reward, ~begins, acted), begun)
        return model.predict(single_step(torch.ones(2, 3), own, reward), state.state).value

    with torch.no_grad():
        assert torch.equal(read(None), read(own)) and (read(own) != read(1 - own)).all()


def test_an_agent_is_asked_for_no_return() -> None:
    with pytest.raises(ValueError, match="leave out the return"):
        agent(stack=TINY).actor(torch.ones(1))
