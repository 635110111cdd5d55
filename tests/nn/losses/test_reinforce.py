"""Reinforce: its gradient by hand, its baseline, and an arm that is found by its reward."""

import pytest
import torch

from kinformer.core.after_step import after_step
from kinformer.members.sac import sac
from kinformer.models.reinforced_lm import ReinforcedLM
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.losses.reinforce import Reinforce
from kinformer.nn.mechanisms.repeatable_chance import Chance

pytestmark = pytest.mark.usefixtures("float64")

REAL = torch.tensor([[True, True, False], [True, False, False]])
NLL = torch.tensor([[1.0, 3.0, 9.0], [4.0, 9.0, 9.0]], dtype=torch.float64)
REWARDS = {"token": [[-1.0, -3.0, 0.0], [-4.0, 0.0, 0.0]], "row": [[-2.0] * 3, [-4.0] * 3]}


@pytest.mark.parametrize(
    ("per", "reward"), [("token", [[-1.0, -3, 0], [-4, 0, 0]]), ("row", [[-2.0, -2, 0], [-4, 0, 0]])]
)
def test_the_gradient_is_the_reward_above_the_baseline(per, reward) -> None:
    loss = Reinforce(per)
    loss.after_step(0.0, {"reward": torch.tensor([-10.0, 4.0])})  # a mean of -2.5
    log_p = torch.randn(2, 3, requires_grad=True)
    value, stats = loss(log_p, NLL, REAL)
    value.backward()
    counts = REAL | (per == "row")  # a row's reward is that of all its choices
    want = torch.where(counts, -(torch.tensor(REWARDS[per]) + 2.5) / 3, 0.0)
    torch.testing.assert_close(log_p.grad, want)
    torch.testing.assert_close(stats["reward"], torch.tensor([-8.0, 3.0]))
    assert not loss.eval()(log_p, NLL, REAL)[1]


def test_the_baseline_is_a_running_mean_and_before_it_nothing_is_learned() -> None:
    loss = Reinforce(decay=0.9)
    log_p = torch.randn(2, 3, requires_grad=True)
    assert float(loss(log_p, NLL, REAL)[0].detach()) == 0
    for total, want in ((-6.0, -2.0), (-12.0, 0.9 * -2.0 + 0.1 * -4.0)):
        loss.after_step(0.0, {"reward": torch.tensor([total, 3.0])})
        torch.testing.assert_close(float(loss.baseline), want)


def test_an_arm_with_a_reward_is_found() -> None:
    loss, sampler, logits = Reinforce("token"), Chance(), torch.zeros(3, requires_grad=True)
    tokens, real = torch.arange(16)[:, None], torch.ones(1, 16, dtype=torch.bool)
    for _ in range(60):
        at = (logits.detach() + sampler.gumbel(tokens, torch.arange(3))).argmax(-1)
        value, stats = loss(logits.log_softmax(0)[at][None], 1.0 - (at == 1)[None].double(), real)
        (gradient,) = torch.autograd.grad(value, logits)
        with torch.no_grad():
            logits -= gradient
        loss.after_step(0.0, stats)
        sampler.after_step(0.0, {})
    assert float(logits.detach().softmax(0)[1]) > 0.9


def test_a_model_moves_its_baseline_and_its_network() -> None:
    model = sac(d=8, depth=2, heads=2, edges=1, width=3, length=8, vocab=11)
    loss = model(model.sample(2, 8, 0))
    after_step(model, 0.0, loss.stats)
    torch.testing.assert_close(float(model.reinforce.baseline), -float(loss.parts["nll"].detach()), rtol=1e-6, atol=0)
    loss = model(model.sample(2, 8, 1))
    loss.total.backward()
    network = [p for name, p in model.named_parameters() if "predictor" in name]
    assert network and all(p.grad is not None and bool(p.grad.any()) for p in network)
    torch.testing.assert_close(loss.total, loss.parts["nll"] + loss.parts["choices"])


def test_a_body_that_chooses_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="use LM"):
        ReinforcedLM(11, 8, PreNorm(MLP(8)))
