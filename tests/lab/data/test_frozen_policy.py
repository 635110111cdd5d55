"""A policy stays the same while an agent learns from one rollout: only its weights may change what it says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.core.after_step import has_after_step
from kinformer.core.discover import examples
from kinformer.lab.data.env import read
from kinformer.lab.data.support.frozen_buffers import FrozenBuffers
from kinformer.lab.data.support.rollout_stream import RolloutStream
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.distributed import SINGLE_PROCESS
from kinformer.lab.train.optimiser_step import Learner
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
from kinformer.members.agent import agent
from kinformer.members.support.member_stack import parse_stack
from kinformer.models.agent import Agent
from kinformer.models.lm import LM

MAZE, ROWS, LENGTH, EPOCHS = "t_maze,corridor=12", 2, 20, 2
ROUTING = "routing_transformer(d=8, depth=2, heads=2, local=2, clusters=4, decay=0.1, position=relative)"
MOVED = (
    ROUTING,
    "rfa(d=8, depth=1, heads=2, features=16, redraw=3, length=64)",
    "performer(d=8, depth=1, heads=2, features=12, redraw=1, length=64)",
    "sinkhorn_transformer(d=8, depth=1, heads=2, block=4, length=64)",
    "reformer(d=8, depth=2, heads=2, buckets=4, local=4, length=64, redraw=1)",
)


def stacks() -> Iterator[tuple[str, LM]]:
    """Every example of every member that is a plain language model, which an agent takes as its stack.

    Those that declare to say something else of a row in pieces are left out: an agent acts step by step.
    """
    count: dict[str, int] = {}
    for file, example in examples("members"):
        count[file] = count.get(file, -1) + 1
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = example.make()
        if type(model) is LM and "chunk" not in example.breaks:
            yield f"{file}.{count[file]}", model


class Learning:
    """An agent in float64 over a stack, its rollouts, and a learner of them."""

    def __init__(self, stack: LM | str, burn_in: int, maze: str = MAZE) -> None:
        data = read(maze)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = parse_stack(stack) if isinstance(stack, str) else stack
            self.agent = Agent(
                data.observations,
                data.actions,
                model.body,
                position=model.position,
                penalties=model.penalties,
                epochs=EPOCHS,
                pieces=1,
                burn_in=burn_in,
            )
            torch.nn.init.normal_(self.agent.policy.head.weight)
        self.agent.double().train()
        self.rollouts: RolloutStream = data.stream(self.agent, ROWS, LENGTH, 0, 0)
        self.learner = Learner(self.agent, self.rollouts, Settings(batch=ROWS, length=LENGTH, lr=0.05), SINGLE_PROCESS)

    @torch.no_grad()
    def apart(self, step: int) -> float:
        """The largest difference between the log-probability of an action now and when it was done."""
        batch = self.rollouts.at(step)
        now = self.agent.policy.distribution(self.agent.replay(batch).policy).log_prob(batch.actions)
        return float((now - batch.log_p)[batch.observations.marks >= 0].abs().max())

    def without_learning(self, steps: int) -> list[float]:
        """How far the policy moves while no weight changes, before each of some steps."""
        for group in self.learner.optimiser.param_groups:
            group["params"] = []
        return self.learning(steps)

    def learning(self, steps: int) -> list[float]:
        found = []
        for step in range(steps):
            found.append(self.apart(step))
            self.learner.step(step, 0.5)
        return found


@pytest.mark.parametrize("burn_in", [4, pytest.param(0, marks=pytest.mark.prove)])
@pytest.mark.parametrize("stack", MOVED, ids=lambda stack: stack.partition("(")[0])
def test_what_after_step_moves_changes_no_policy_within_an_update(stack: str, burn_in: int) -> None:
    learning = Learning(stack, burn_in)
    buffers = {name: x.clone() for name, x in learning.agent.named_buffers()}
    assert max(learning.without_learning(2 * EPOCHS + 1)) < 1e-12
    moved = [name for name, x in learning.agent.named_buffers() if not torch.equal(x, buffers[name])]
    assert moved, "nothing moved between the updates, so nothing was held still"


@pytest.mark.parametrize(
    "stack", ["lstm(d=8, depth=2)", pytest.param("transformer_xl(d=8, depth=1, heads=2)", marks=pytest.mark.prove)]
)
@pytest.mark.parametrize("corridor", [2, 12])
def test_each_update_begins_with_the_policy_that_acted_where_weights_have_moved(stack: str, corridor: int) -> None:
    """Burn-in reads the steps before a rollout by the weights of now, and the rollout has acted from the same memory.

    In a short corridor episodes end within the steps that are read again.
    """
    learning = Learning(stack, 9, f"t_maze,corridor={corridor}")
    apart = learning.learning(3 * EPOCHS + 1)
    assert max(apart[::EPOCHS]) < 1e-12 and min(apart[1::EPOCHS]) > 1e-6
    held = learning.rollouts.held
    assert held is not None and (corridor > 2 or bool(held.ended[:, :9].any()))


def test_the_moved_buffers_are_those_of_a_training_that_holds_nothing_still() -> None:
    """Redraws come after as many steps as they would without rollouts, one update later at most."""
    learning = Learning(MOVED[1], 0)
    learning.without_learning(5)
    there = {name: x.clone() for name, x in learning.rollouts.frozen.changed.items() if "steps" in name}
    assert [int(x) for x in there.values()] == [5] and int(learning.agent.get_buffer(*there)) == 4
    learning.rollouts.at(6)
    assert int(learning.agent.get_buffer(*there)) == 5


def test_a_training_goes_on_within_an_update_with_what_was_held_still(tmp_path: Path) -> None:
    def trained(folder: Path, *stops: float) -> dict[str, torch.Tensor]:
        for place, stop in enumerate(stops):
            data = read("t_maze,corridor=2")
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model = agent(stack=ROUTING, epochs=EPOCHS, pieces=1, burn_in=3, **data.keywords)
            settings = Settings(batch=2, length=8, measures=1)
            train(model, data, StepBudget(6), settings, folder=folder, resume=place > 0, until=stop)
        return model.state_dict()

    whole, stopped = trained(tmp_path / "whole", 1.0), trained(tmp_path / "stopped", 0.5, 1.0)
    assert [name for name in whole if not torch.equal(whole[name], stopped[name])] == []


def test_a_run_that_was_saved_without_held_buffers_goes_on() -> None:
    """Runs of before have none: their model's buffers are then those that move."""
    learning = Learning(MOVED[1], 0)
    learning.without_learning(3)
    old = {name: x for name, x in learning.rollouts.saved_tensors().items() if "/moved/" not in name}
    assert len(old) < len(learning.rollouts.saved_tensors())
    learning.rollouts.restore(old)
    assert learning.apart(3) < 1e-12


@pytest.mark.prove
@pytest.mark.parametrize("burn_in", [0, 4])
def test_no_member_s_policy_changes_within_an_update(burn_in: int) -> None:
    found: dict[str, float] = {}
    held: list[str] = []
    for name, stack in stacks():
        held += [name] * any(has_after_step(part) and any(True for _ in part.buffers()) for part in stack.modules())
        found[name] = max(Learning(stack, burn_in).without_learning(3 * EPOCHS))
    assert {name: apart for name, apart in found.items() if apart > 1e-12} == {}
    assert len(found) > 50 and len(held) >= 7


def chosen(part: str) -> Any:
    from kinformer.core.patterns.causal import Causal
    from kinformer.nn.attention import Attention
    from kinformer.nn.blocks.pre_norm import PreNorm
    from kinformer.nn.depth.early_exit import EarlyExit
    from kinformer.nn.exits.never_exit import NeverExit
    from kinformer.nn.exits.uniform_exit import UniformExit
    from kinformer.nn.mechanisms.sac import SAC
    from kinformer.nn.mechanisms.softmax import Softmax
    from kinformer.nn.projections.qkv import QKV

    if part == "SAC":
        return PreNorm(Attention(QKV(16, 2), SAC(1, 4)))
    layer = PreNorm(Attention(QKV(16, 2), Softmax(Causal())))
    return EarlyExit([layer], torch.nn.Identity(), NeverExit(), chance=UniformExit(1))


@pytest.mark.parametrize(("part", "why"), [("SAC", "draws the keys that it reads"), ("exits", "leave out chance")])
def test_a_body_that_draws_is_refused(part: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"with the same policy.*{why}") as said:
        Agent((3,), 2, chosen(part))
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    "stack",
    [
        "routing_transformer(d=8, depth=2, heads=2, local=2, clusters=4, position=relative, window=3)",
        "reformer(d=8, depth=2, heads=2, local=4, chunk=4)",
    ],
)
def test_a_body_that_reads_a_row_otherwise_than_its_steps_is_refused(stack: str) -> None:
    """Its policy differed between acting and learning by up to 3.0 in log p."""
    with pytest.raises(ValueError, match="with the same policy.*; leave out chunk=") as said:
        Learning(stack, 0)
    assert "\n" not in str(said.value)


PENALTY = ("compressive_transformer",)  # their pieces change a penalty alone, and an agent reads a row in pieces


def test_a_member_that_says_something_else_of_a_row_in_pieces_is_refused() -> None:
    pieces = [(file, one.make()) for file, one in examples("members") if "chunk" in one.breaks]
    stacks = [(file, model) for file, model in pieces if type(model) is LM and file not in PENALTY]
    for _, model in stacks:
        with pytest.raises(ValueError, match="with the same policy.*; (leave out|pass stabiliser=token|use a stack)"):
            Agent((3,), 2, model.body)
    assert {file for file, _ in stacks} >= {"performer", "reformer", "routing_transformer"}


def test_weights_of_a_sort_that_says_nothing_change_no_policy_by_its_noise() -> None:
    """The network of the sort gives 0, so noise alone sorts. The negated weights make the vectors that it pools."""
    learning = Learning("sinkhorn_transformer(d=8, depth=1, heads=2, block=4, length=64)", 0)
    weights = dict(learning.agent.named_parameters())
    sides = [x for name, x in weights.items() if "key_side" in name]
    for name, x in weights.items():
        if ".net." in name:
            x.data.zero_()
    assert learning.apart(0) < 1e-12
    for x in sides:
        x.data.neg_()
    assert sides and learning.apart(0) < 1e-12


def test_buffers_that_are_held_still_are_back_after_a_failure() -> None:
    class Counted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def after_step(self, stats: Any) -> None:
            self.count.add_(1)

    model = Counted()
    held = FrozenBuffers(model)
    with pytest.raises(RuntimeError, match="stopped"), held.moving():
        model.after_step({})
        raise RuntimeError("stopped")
    assert model.count.item() == 0
    held.release()
    assert model.count.item() == 1
