"""Agent: layers with a memory, a policy head and a value head, trained with PPO."""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.autocast import linear_float32
from kinformer.core.checks import (
    check_at_least,
    check_flag,
    check_in_range,
    check_optional_part,
    check_part,
    check_probability,
    check_whole_numbers,
)
from kinformer.core.dropout import largest_dropout
from kinformer.core.layer import Device, Dtype, Layer, State, make_state_spec
from kinformer.core.loss import Loss, Weight, check_known_penalties, masked_mean, sum_over_layers, weighted_loss
from kinformer.core.model import EvaluationSums, Metric, sum_and_count
from kinformer.core.position import Position
from kinformer.core.rollout import Observations, RolloutBatch
from kinformer.core.state import fork, share_positions
from kinformer.core.token_positions import NumberedState, context_of_tokens, next_positions
from kinformer.core.unrepeatable import unrepeatable_parts
from kinformer.models.support.exit_losses import refuse_rules
from kinformer.models.support.policies import CategoricalPolicy, GaussianPolicy
from kinformer.models.support.recurrent_actor import PolicyModel, PolicyOutput, RecurrentActor
from kinformer.nn.losses.ppo import clipped_policy
from kinformer.nn.mechanisms.repeatable_chance import Chance

__all__ = ["Agent"]

CHANNELS, FEATURES = 4, 32  # largest number of channels of a picture; channels of its convolutions


class Agent(PolicyModel):
    """Actor-critic agent that reads the steps of episodes and returns an action distribution and a value.

    Choose it to learn from an environment by acting in it. The body reads the steps as a language model reads tokens.
    The input of a step is the sum of the embedded observation, the action before, the reward before, and the position
    of the step if `position` is given. PPO (proximal policy optimisation) defines the loss of a step, with A its
    advantage, V its predicted value, R the return and H the entropy of the policy:

    loss = clip(A) + value * (V - R)^2 / 2 - entropy * H

    observations: shape of an observation: a vector or a small picture (see `ObservationEmbedding`).
    actions: number of kinds of actions, or number of components of an action if `discrete` is False.
    body: causal layers that have a state, to read step by step, and give repeatable results. PPO compares the policy
        that learns with the policy that acted. So dropout and `unrepeatable` parts, such as `SAC`, are refused. All
        rows share the noise of `Sinkhorn`, which stays the same while the agent learns from a rollout.
    discrete: True for a choice among kinds of actions, False for actions that are vectors of real numbers.
    position: position that is added to embedded steps; None if the body encodes positions itself or needs none.
    discount, trace: gamma and lambda of the advantages (`nn/losses/ppo.py`).
    ratio: clipping range; the loss rewards probability ratios only up to this distance from 1.
    entropy, value: weights of the entropy and of the value's loss, relative to the policy's loss.
    epochs, pieces: number of passes over each rollout, and number of batches in each pass.
    burn_in: number of steps before the steps of a batch that are read again without gradients, unless an episode begins
        there. The stored state was computed with older weights, and these steps bring it up to date. 0 uses the stored
        state.
    penalties: weights of the body's auxiliary losses, keyed by the last part of their names.

    Errors: ValueError for invalid numbers, for a body without a state or with unrepeatable results, and for an exit
    rule that no loss trains.
    Source: Schulman et al., 2017, arXiv:1707.06347; stored states and burn-in: Kapturowski et al., 2019,
    https://openreview.net/forum?id=r1lyTjAqYX, "Recurrent experience replay in distributed reinforcement learning".
    """

    reads: ClassVar[str] = "environments"
    metric = Metric("return", "", better="more", per="row")

    def __init__(
        self,
        observations: tuple[int, ...],
        actions: int,
        body: Layer,
        *,
        discrete: bool = True,
        position: Position | None = None,
        discount: float = 0.99,
        trace: float = 0.95,
        ratio: float = 0.2,
        entropy: float = 0.01,
        value: float = 0.5,
        epochs: int = 4,
        pieces: int = 2,
        burn_in: int = 0,
        penalties: Mapping[str, Weight] | None = None,
    ):
        super().__init__()
        self.body = check_part("body", body, Layer, "a layer, such as Stack([PreNorm(Attention(...), MLP(d))])")
        self.position = check_optional_part("position", position, Position, "a position, such as Learned(d)")
        self.discrete, self.actions = check_flag("discrete", discrete), check_at_least("actions", actions, 1)
        self.observations, self.states, d = observations, math.prod(observations), body.d
        self.discount, self.trace = check_probability("discount", discount), check_probability("trace", trace)
        self.ratio = check_in_range("ratio", ratio, 0, math.inf)
        self.entropy, self.worth = (
            check_in_range("entropy", entropy, 0, math.inf),
            check_in_range("value", value, 0, math.inf),
        )
        self.epochs, self.pieces = check_at_least("epochs", epochs, 1), check_at_least("pieces", pieces, 1)
        self.burn_in = check_at_least("burn_in", burn_in, 0)
        self.observed = ObservationEmbedding(d, observations)
        self.acted = nn.Embedding(actions + 1, d) if discrete else nn.Linear(actions, d, bias=False)
        self.earned = nn.Linear(1, d, bias=False)
        self.policy = CategoricalPolicy(d, actions) if discrete else GaussianPolicy(d, actions)
        self.value = nn.Linear(d, 1)
        self.refuse_unmet(body)
        refuse_rules(self, body)
        _refuse_unrepeatable(body)
        _draw_by_position(body)
        body.start(1, 1)  # NoState names an alternative
        self.penalties = check_known_penalties(penalties or {}, (body, position))

    def actor(self, target_return: Float[Tensor, " B"] | None = None, *, seed: int = 0) -> RecurrentActor:
        """Return an actor (plays an environment) that samples actions from the policy, as during training.

        Errors: ValueError if `target_return` is given, because an agent always seeks the largest return.
        """
        if target_return is not None:
            raise ValueError("target_return has no effect: an agent always seeks the largest return; leave it out")
        return RecurrentActor(self, check_at_least("seed", seed, 0))

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NumberedState:
        """Return the state of the body before the first step.

        length: expected number of steps of an episode; longer episodes make the state grow.
        """
        new = make_state_spec(self, batch, length, dtype, device)
        now = torch.zeros(batch, dtype=torch.long, device=new.device)
        return share_positions(NumberedState(now, self.body.start(batch, length, dtype=new.dtype, device=new.device)))

    def predict(self, steps: Observations, state: State | None = None) -> PolicyOutput:
        """Return the policy and the value at each step. The call consumes `state`; do not use it again."""
        ctx = context_of_tokens(steps.marks, state)
        observed, acted, earned = (_zero_padding(x, steps.marks, ctx.full) for x in steps[1:])
        acted = acted + 1 if self.discrete else acted.to(self.value.weight.dtype)
        x = self.observed(observed) + self.acted(acted) + self.earned(earned.to(self.value.weight)[..., None])
        if self.position is not None:
            x = x + self.position(ctx.position_ids)
        out = self.body(x, None if state is None else state.body, ctx)
        ctx.memo.settle()
        later = None if state is None else NumberedState(next_positions(state.now, ctx.pos), out.state)
        return PolicyOutput(
            self.policy(out.y), linear_float32(self.value, out.y).squeeze(-1), later, out.aux, out.stats
        )

    def replay(self, batch: RolloutBatch, state: State | None = None) -> PolicyOutput:
        """Return the policy and the value at recorded steps, computed from their stored state and burn-in."""
        state = batch.state if state is None else state
        state = None if state is None else fork(state)  # the batch is read again in later epochs
        if batch.burn_in.marks.shape[1]:
            with torch.no_grad():
                rows, columns = batch.burn_in.marks.shape
                state = self.predict(batch.burn_in, self.start(rows, columns) if state is None else state).state
        return self.predict(batch.observations, state)

    def forward(self, batch: RolloutBatch, state: State | None = None, progress: float = 0.0) -> Loss:
        """Return PPO's loss. Its part `kl` estimates the KL divergence from the policy that acted."""
        output, real = self.replay(batch, state), batch.observations.marks >= 0
        distribution = self.policy.distribution(output.policy)
        mark = real if self.discrete else real[..., None]
        log_p = distribution.log_prob(batch.actions.where(mark, 0))  # padding may hold an invalid action
        before = batch.log_p.where(real, log_p.detach())  # an infinite ratio at padding would spoil the gradient
        advantages, returns = batch.advantages.where(real, 0.0), batch.returns.where(real, 0.0)
        acting = masked_mean(clipped_policy(log_p, before, advantages, self.ratio), real)
        apart = masked_mean((output.value - returns).square() / 2, real)
        entropy = masked_mean(distribution.entropy(), real)
        sums = sum_over_layers(output.aux, real)
        parts = {
            "policy": acting,
            "value": apart,
            "entropy": entropy,
            "kl": masked_mean((batch.log_p - log_p).detach(), real),
            **sums,
        }
        whole = acting + self.worth * apart - self.entropy * entropy
        return Loss(weighted_loss(whole, sums, self.penalties, progress), parts, None, output.stats, real.sum())

    def judge(self, batch: RolloutBatch, state: State | None = None) -> EvaluationSums:
        """Return the sum of the rewards, and the number of episodes that ended, for the mean return.

        The fraction of episodes with success is added if the environment reports success.
        """
        real = batch.observations.marks >= 0
        earned, _ = sum_and_count(batch.rewards, real)
        sums = {self.metric.name: (earned, (batch.ended & real).sum())}
        if bool((batch.success >= 0).any()):
            sums["success"] = sum_and_count(batch.success, batch.success >= 0)
        return EvaluationSums(sums)

    def sample(self, rows: int, length: int, seed: int) -> RolloutBatch:
        """Return a rollout of random steps, to test the model with."""
        generator = torch.Generator().manual_seed(seed)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(length, rows, *shape, generator=generator).transpose(0, 1).contiguous()

        def actions() -> Tensor:
            return numbers().abs().mul(100).long() % self.actions if self.discrete else numbers(self.actions)

        marks, ended = torch.zeros(rows, length, dtype=torch.long), torch.zeros(rows, length, dtype=torch.bool)
        ended[:, -1:] = True
        steps = Observations(marks, numbers(*self.observations), actions(), numbers())
        no_steps = Observations(*(part[:, :0] for part in steps))
        return RolloutBatch(
            steps, no_steps, None, actions(), -numbers().abs(), numbers(), numbers(), numbers(), ended, ended.float()
        )


class ObservationEmbedding(nn.Module):
    """Embedding of observations: two linear layers for a vector, three convolutions for a picture.

    The convolutions have stride 2.

    d: width of the embedding.
    shape: shape of an observation. Three sizes are a picture if the first or last is at most 4, its number of channels;
        the picture has values from 0 to 255. Any other shape is flattened to a vector.

    Errors: ValueError for a shape without numbers.
    """

    def __init__(self, d: int, shape: tuple[int, ...]):
        super().__init__()
        self.shape = check_whole_numbers("observations", shape, 1)
        if not shape:
            raise ValueError("observations=() is empty; give the shape of an observation, such as (4,)")
        self.last = len(shape) == 3 and shape[2] <= CHANNELS
        self.picture = self.last or (len(shape) == 3 and shape[0] <= CHANNELS)
        self.layers = nn.Sequential(*(self._convolutions(d) if self.picture else self._flat(d)))

    def forward(self, observations: Float[Tensor, "B T *n"]) -> Float[Tensor, "B T D"]:
        like = next(self.parameters())
        rows, columns = observations.shape[:2]
        x = observations.to(like.dtype)
        if not self.picture:
            return self.layers(x.flatten(2))
        x = x.reshape(rows * columns, *self.shape) / 255
        return self.layers(x.permute(0, 3, 1, 2) if self.last else x).unflatten(0, (rows, columns))

    def _flat(self, d: int) -> list[nn.Module]:
        return [nn.Linear(math.prod(self.shape), d), nn.ReLU(), nn.Linear(d, d)]

    def _convolutions(self, d: int) -> list[nn.Module]:
        channels, *sizes = (self.shape[2], *self.shape[:2]) if self.last else self.shape
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Conv2d(channels, FEATURES, 3, stride=2, padding=1), nn.ReLU()]
            channels, sizes = FEATURES, [-(-size // 2) for size in sizes]
        return [*layers, nn.Flatten(), nn.Linear(FEATURES * math.prod(sizes), d)]


def _zero_padding(x: Tensor, marks: Int[Tensor, "B T"], full: bool) -> Tensor:
    """Replace the numbers of padding steps by zeros, because padding may hold NaN."""
    if full or not x.is_floating_point():
        return x
    return x.where((marks >= 0).view(*marks.shape, *[1] * (x.dim() - 2)), 0.0)


def _draw_by_position(body: Layer) -> None:
    """Make all random draws depend only on positions and steps, in place, because content changes with the weights."""
    for part in body.modules():
        if isinstance(part, Chance):
            part.by_content = False


def _refuse_unrepeatable(body: Layer) -> None:
    """Refuse a body whose policy changes between two calls on the same steps."""
    same = "an agent must act and learn with the same policy"
    if share := largest_dropout(body):
        raise ValueError(f"{same}: got dropout={share:g}, expected 0. Pass dropout=0 to its stack")
    for reason, remedy in unrepeatable_parts(body):
        raise ValueError(f"{same}, but {reason}; {remedy}")


def _example(discrete: bool = True) -> Agent:
    body = kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())))
    return Agent((3,), 2, body, discrete=discrete)


EXAMPLES = (_example, lambda: _example(False))
