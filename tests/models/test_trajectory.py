"""Trajectory: its loss by loops, what it reads, padding, what it keeps of the data, and how it acts."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.actor import TimeStep
from kinformer.core.batch import EpisodeSteps
from kinformer.core.mechanism import NoState
from kinformer.members.behaviour_cloning import behaviour_cloning
from kinformer.members.decision_transformer import TINY, decision_transformer
from kinformer.models.support.scale_buffers import EpisodeScales, ScaleBuffers
from kinformer.models.trajectory import Trajectory
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.act import ACT, Halting
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.depth.universal import Universal
from kinformer.nn.exits.geometric import Geometric
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.norms.layer import LayerNorm

KINDS = ({}, {"discrete": False, "beside": 0.5})


def built(**keywords: Any) -> Trajectory:
    torch.manual_seed(0)
    model: Any = decision_transformer(**{**TINY, "dropout": 0.0, **keywords})
    model.measured.set_scales(scales(model))
    return model.double().eval()


def scales(model: Trajectory, delayed: bool = False) -> EpisodeScales:
    numbers = torch.full((0 if model.discrete else model.actions,), 3.0)
    mean, deviation, span = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([2.0, 1.0, 0.5]), torch.tensor([-1.0, 9.0])
    return EpisodeScales(mean, deviation, torch.tensor(9.0), numbers, span, torch.tensor(delayed))


def batch(model: Trajectory, length: int = 4) -> EpisodeSteps:
    return EpisodeSteps(*(part.double() if part.is_floating_point() else part for part in model.sample(3, length, 0)))


def padded(steps: EpisodeSteps, left: int, right: int) -> EpisodeSteps:
    """The same with garbage around, where times say that nothing is."""
    wide = []
    for part in steps:
        sizes = [len(part), left + part.shape[1] + right, *part.shape[2:]]
        whole = torch.full(sizes, 7, dtype=part.dtype) if part is not steps.times else torch.full(sizes, -1)
        whole[:, left : left + part.shape[1]] = part
        wide.append(whole)
    return EpisodeSteps(*wide)


@torch.no_grad()
@pytest.mark.parametrize("keywords", KINDS)
def test_the_loss_is_what_loops_over_the_equations_give(keywords: dict[str, Any]) -> None:
    """One block, by hand: tokens, causal softmax over them, a feed-forward; actions at states, the rest at actions."""
    model, keep = built(**keywords), scales(built(**keywords))
    steps, nll, state_loss = batch(model), 0.0, 0.0
    steps = steps._replace(times=steps.times + torch.tensor([[0], [5], [11]]))  # rows begin anywhere in an episode
    for r in range(3):
        looped = read_by_loops(model, EpisodeSteps(*(part[r : r + 1] for part in steps)))
        for t in range(4):
            at_state, at_action = looped[3 * t + 1], looped[3 * t + 2]
            predicted = model.action(at_state)
            if model.discrete:
                nll -= float(predicted.log_softmax(0)[steps.actions[r, t]]) / 12
            else:
                nll += float((predicted.tanh() - steps.actions[r, t] / 3).square().mean()) / 12
            if t < 3 and model.state is not None and model.left is not None:
                expected = (steps.states[r, t + 1] - keep.mean) / keep.deviation
                state_loss += float((model.state(at_action) - expected).square().mean()) / 9
                state_loss += float((model.left(at_action) - steps.returns[r, t + 1] / 9).square().mean()) / 9
    loss = model(steps)
    assert math.isclose(float(loss.parts["nll"]), nll, rel_tol=1e-9)
    assert math.isclose(float(loss.total), nll + model.beside * state_loss, rel_tol=1e-9) and int(loss.count) == 12


def read_by_loops(model: Any, steps: EpisodeSteps) -> Tensor:
    """What the body makes of the tokens of one row [3T D]."""
    keep = scales(model)
    tokens = []
    for t in range(4):
        when = model.of_times.weight[steps.times[0, t]]
        state = (steps.states[0, t] - keep.mean) / keep.deviation
        tokens.append(model.of_returns(steps.returns[0, t, None] / 9) + when)
        tokens.append(model.of_states(state) + when)
        action = steps.actions[0, t]
        tokens.append(model.of_actions(action if model.discrete else action / 3) + when)
    x = torch.stack([model.norm(token) for token in tokens])
    (block,) = model.body.layers
    attention, mlp = block.layers
    heads, rows = attention.projection.heads, block.norms[0](x)
    q, k, v = ((rows @ w.T + b).unflatten(-1, (heads, -1)) for w, b in (attention.projection.matrix(n) for n in "qkv"))
    mixed = torch.zeros_like(v)
    for i in range(len(x)):
        for h in range(heads):
            scores = torch.stack([q[i, h] @ k[j, h] for j in range(i + 1)]) / math.sqrt(q.shape[-1])
            mixed[i, h] = sum(w * v[j, h] for j, w in enumerate(scores.softmax(0)))
    x = x + attention.aggregation.linear(mixed.flatten(1))
    return model.body.norm(x + mlp(block.norms[1](x)[None]).y[0])


@pytest.mark.parametrize("keywords", KINDS)
def test_padding_on_either_side_changes_nothing(keywords: dict[str, Any]) -> None:
    model = built(**keywords)
    steps = batch(model)
    want, judged = model(steps), model.judge(steps).totals
    for left, right in ((3, 0), (0, 2), (1, 2)):
        wide = padded(steps, left, right)
        output, also = model(wide), model.judge(wide).totals
        torch.testing.assert_close(output.total, want.total)
        assert int(output.count) == int(want.count) and all(
            torch.allclose(a, b) for name in judged for a, b in zip(judged[name], also[name], strict=True)
        )
    gap = steps._replace(times=torch.tensor([[0, -1, 2, 3]] * 3))
    with pytest.raises(ValueError, match="padding"):
        model(gap)
    with pytest.raises(ValueError, match="an episode is longer than the 32 steps of this model"):
        model(steps._replace(times=steps.times + 30))


def test_an_action_is_said_by_what_came_before_it_alone() -> None:
    model = built()
    steps = batch(model)
    want = model.predict(steps).actions
    for part in (0, 1, 2):  # returns, states, actions of step 2
        other = steps[part].clone()
        other[:, 2] = 1 - other[:, 2]
        actions = model.predict(
            EpisodeSteps(*(other if n == part else step_part for n, step_part in enumerate(steps)))
        ).actions
        same = 3 if part == 2 else 2  # an action is read by the steps after it
        assert torch.equal(actions[:, :same], want[:, :same]) and not torch.allclose(actions[:, same:], want[:, same:])
    cloner: Any = behaviour_cloning(**TINY, dropout=0.0).double().eval()
    assert torch.equal(cloner.predict(steps).actions, cloner.predict(steps._replace(returns=-steps.returns)).actions)


@pytest.mark.parametrize("delayed", [False, True])
def test_it_acts_by_the_last_steps_and_what_is_left_of_the_return(delayed: bool) -> None:
    """Each action is the one that is said of the last four steps as they were, rewards taken off what was asked."""
    model = built(discrete=False)  # an action that is a kind is often the same whatever is asked
    model.measured.delayed.fill_(delayed)
    returns, g = torch.tensor([5.0, 2.0]), torch.Generator().manual_seed(0)
    observed = torch.randn(9, 2, 3, generator=g)
    rewards = torch.randn(9, 2, generator=g)
    rewards[0], begins = 0.0, torch.zeros(9, 2, dtype=torch.bool)
    begins[0], begins[5, 1], rewards[5, 1] = True, True, 0.0
    actor, done = model.actor(returns), []
    state = actor.start(2)
    for t in range(9):
        action, state = actor.act(TimeStep(observed[t], rewards[t], begins[t]), state)
        done.append(action)
    for row, first, last in ((0, 0, 8), (1, 0, 4), (1, 5, 8)):
        for t in range(first, last + 1):
            lo = max(first, t - 3)
            earned = [0.0 if delayed else float(rewards[first + 1 : n + 1, row].sum()) for n in range(lo, t + 1)]
            left = torch.tensor([[float(returns[row]) - reward_sum for reward_sum in earned]]).double()
            acted = torch.stack([*(done[n][row] for n in range(lo, t)), torch.zeros(model.actions)])[None]
            times = torch.arange(lo - first, t - first + 1)[None]
            predicted = model.predict(
                EpisodeSteps(left, observed[lo : t + 1, row][None].double(), acted, times)
            ).actions[0, -1]
            torch.testing.assert_close(
                done[t][row].double(), 3 * predicted, atol=1e-6, rtol=0
            )  # what is kept is in float32


def test_numbers_of_actions_are_in_the_environment_s_units_and_the_highest_return_is_asked_for() -> None:
    model = built(discrete=False, actions=1)
    actor = model.actor()
    observation = TimeStep(torch.randn(2, 3), torch.zeros(2), torch.ones(2, dtype=torch.bool))
    action, state = actor.act(observation, actor.start(2))
    assert action.shape == (2, 1) and float(action.abs().max()) <= 3
    assert torch.equal(state.steps.returns[:, -1], torch.full((2,), 9.0).double())
    steps = EpisodeSteps(*(part[:, -1:] for part in state.steps))
    torch.testing.assert_close(action, 3 * model.predict(steps).actions[:, 0])


def test_what_cannot_be_is_one_line() -> None:
    with pytest.raises(NoState, match=r"the last 4 steps are read again for each action\. Use actor\(\) to act"):
        built().start(1, 4)
    with pytest.raises(ValueError, match="this model was trained without returns"):
        behaviour_cloning(**TINY).actor(torch.ones(1))
    for keywords, message in (
        (("best", 0), "best=0"),
        (("context", 0), "context=0"),
        (("beside", -1.0), "beside=-1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            decision_transformer(**{**TINY, keywords[0]: keywords[1]})


def test_a_body_whose_own_losses_would_be_dropped_is_refused() -> None:
    block = PostNorm(MLP(8))
    leaving = EarlyExit([block, PostNorm(MLP(8))], LayerNorm(8), Geometric(8, 2))
    with pytest.raises(ValueError, match="Trajectory does not train Geometric"):
        Trajectory(3, 2, leaving)
    leaving.rule.requires_grad_(False)
    Trajectory(3, 2, leaving)
    with pytest.raises(ValueError, match="a trajectory model uses no auxiliary losses, but its body reports ponder"):
        Trajectory(3, 2, ACT(Universal(block, 3), Halting(8)))


@pytest.mark.parametrize("discrete", [True, False])
def test_what_is_left_of_a_return_falls_by_little_in_a_bfloat16_model(discrete: bool) -> None:
    model = built(discrete=discrete).bfloat16()
    model.measured.span.copy_(torch.tensor([0.0, 300.0]))
    actor, begins = model.actor(torch.tensor([300.0])), torch.ones(1, dtype=torch.bool)
    state = actor.start(1)
    for _ in range(5):
        action, state = actor.act(TimeStep(torch.randn(1, 3), torch.full((1,), 0.5) * ~begins, begins), state)
        begins = torch.zeros_like(begins)
    assert action.isfinite().all() and state.steps.returns[0].tolist() == [299.5, 299.0, 298.5, 298.0]


def test_what_is_kept_of_the_data_is_not_rounded_with_the_weights() -> None:
    measured = ScaleBuffers(2, 0)
    scales = {"mean": torch.tensor([1002.5, 0.0]), "deviation": torch.ones(2), "returns": torch.tensor(1e5)}
    scales |= {"actions": torch.ones(0), "span": torch.tensor([0.0, 1e5]), "delayed": torch.tensor(False)}
    measured.set_scales(EpisodeScales(**scales))  # type: ignore[arg-type]
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        measured.to(dtype)
        torch.testing.assert_close(measured.mean.double(), scales["mean"].double())
        assert float(measured.returns) == 1e5
