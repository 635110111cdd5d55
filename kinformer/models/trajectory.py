"""Trajectory: a model of episodes that predicts the actions that reach a requested return."""

from typing import ClassVar, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.batch import EpisodeSteps
from kinformer.core.checks import (
    check_at_least,
    check_flag,
    check_in_range,
    check_part,
    check_probability,
    check_whole_between,
)
from kinformer.core.example import Example
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.loss import Loss, masked_mean, penalties_of, token_nll
from kinformer.core.mechanism import NoState
from kinformer.core.model import ACCURACY, EvaluationSums, Metric, sum_and_count
from kinformer.core.token_positions import context_of_tokens
from kinformer.core.warn import warn
from kinformer.models.support.exit_losses import refuse_rules
from kinformer.models.support.scale_buffers import ScaleBuffers
from kinformer.models.support.window_actor import TrajectoryModel, TrajectoryPrediction, WindowActor
from kinformer.nn.norms.layer import LayerNorm

ERROR = Metric("mean squared error of actions", "")


class Trajectory(TrajectoryModel):
    """Decision transformer: a model of returns, states and actions that predicts each action.

    Choose it to learn from recorded episodes of mixed quality; choose `Agent` to learn by acting. The loss is behaviour
    cloning conditioned on the return: asked for a high return, the model repeats the actions that led to one.

    Step t is three tokens: W_R R_t + E_t, W_s s_t + E_t and W_a a_t + E_t. R_t is the return to go: the sum of the
    rewards from step t on. s_t is the observation and a_t the action. E_t embeds the number of the step, for all three
    tokens. The tokens are normalised. The body reads them in this order, without other positions. The token of s_t
    predicts a_t, as a softmax over kinds of actions or as real numbers through tanh. The loss is the cross-entropy or
    the mean squared error of actions, over all steps of a row.

    states: number of values of an observation.
    actions: number of kinds of actions, or number of components of an action.
    body: causal layers without auxiliary losses.
    discrete: True for kinds of actions, False for vectors of real numbers.
    context: number of steps in a row in training; when acting, the last steps that the model reads for each action.
    steps: number of embeddings E_t, one for each step of an episode; actors use the last one for all later steps.
    conditioned: False leaves out the tokens of the returns, which gives plain behaviour cloning.
    bounded: False leaves out the tanh of real-valued actions.
    beside: weight of the mean squared errors of the next state and return, predicted at the token of the action. The
        default 0 creates no heads for them.
    best: percentage of all steps to learn from, taken from the episodes with the highest returns.
    dropout: dropout probability of the embedded tokens.

    States are normalised by their mean and deviation, returns and numeric actions by their largest values in the
    training data (`Data.store_scales`). These scales are saved with the weights. Each action needs a pass over the
    whole window. Keys are not cached: when the oldest step leaves the window, cached keys of the other steps would
    still depend on it, unlike in training.

    Errors: NoState from `start`; ValueError for invalid numbers, for a body with auxiliary losses, for episodes of more
    than `steps` steps, and for padding between steps.
    Source: Chen et al., 2021, arXiv:2106.01345, section 3.

    Differences: The authors' code always has heads for the next state and return, and weights them by 0.
    """

    reads: ClassVar[str] = "trajectories"

    def __init__(
        self,
        states: int,
        actions: int,
        body: Layer,
        *,
        discrete: bool = True,
        context: int = 20,
        steps: int = 1000,
        conditioned: bool = True,
        bounded: bool = True,
        beside: float = 0.0,
        best: int = 100,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.states, self.actions = check_at_least("states", states, 1), check_at_least("actions", actions, 1)
        self.discrete, self.bounded = check_flag("discrete", discrete), check_flag("bounded", bounded)
        self.conditioned, self.context = check_flag("conditioned", conditioned), check_at_least("context", context, 1)
        self.steps, self.best = check_at_least("steps", steps, 1), check_whole_between("best", best, 1, 100)
        self.beside, self.dropout = (
            check_in_range("beside", beside, 0, float("inf")),
            check_probability("dropout", dropout),
        )
        self.body = check_part("body", body, Layer, "a layer, such as Stack([PreNorm(Attention(...), MLP(d))])")
        self.refuse_unmet(body)
        refuse_rules(self, body)
        if untrained := ", ".join(sorted(penalties_of(body))):
            raise ValueError(
                f"a trajectory model uses no auxiliary losses, but its body reports {untrained}; give another body"
            )
        self.metric = ACCURACY if discrete else ERROR
        self.measured = ScaleBuffers(states, 0 if discrete else actions)
        d = body.d
        self.of_returns = nn.Linear(1, d) if conditioned else None
        self.of_states = nn.Linear(states, d)
        self.of_actions: nn.Module = nn.Embedding(actions, d) if discrete else nn.Linear(actions, d)
        self.of_times = nn.Embedding(steps, d)
        self.norm = LayerNorm(d)
        self.action = nn.Linear(d, actions)
        self.state = nn.Linear(d, states) if beside else None
        self.left = nn.Linear(d, 1) if beside and conditioned else None
        for table in (self.of_times, self.of_actions):
            if isinstance(table, nn.Embedding):
                nn.init.normal_(table.weight, std=0.02)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NoReturn:
        raise NoState(
            f"this model has no state; the last {self.context} steps are read again for each action. Use actor() to act"
        )

    def actor(self, target_return: Float[Tensor, " B"] | None = None, *, seed: int = 0) -> WindowActor:
        """Return an actor (plays an environment) that asks the model for actions that reach these returns.

        Each reward reduces the return that is still to be reached.

        target_return: return to reach, one for each row; by default the highest return of the training data.
        seed: ignored, because the actor makes no random choices.

        Errors: ValueError if returns are passed to a model that is not `conditioned`.
        """
        if target_return is not None and not self.conditioned:
            raise ValueError("target_return has no effect: this model was trained without returns; leave it out")
        low, high = self.measured.span.tolist()
        if (
            target_return is not None
            and self.measured.known
            and bool(((target_return < low) | (target_return > high)).any())
        ):
            warn(f"target_return is outside the returns of the training, {low:g} to {high:g}; the actions are guesses")
        return WindowActor(self, target_return, float(self.measured.span[1]))

    def predict(self, batch: EpisodeSteps) -> TrajectoryPrediction:
        """Return the predictions at each step; a prediction depends only on this step and earlier ones."""
        return self._read(batch)[0]

    def forward(self, batch: EpisodeSteps, state: State | None = None, progress: float = 0.0) -> Loss:
        predicted, out = self._read(batch)
        real = batch.times >= 0
        nll = masked_mean(self._action_errors(predicted, batch), real)
        parts = {"nll": nll, **self._next_step_errors(predicted, batch, real)}
        whole = nll + self.beside * sum(value for name, value in parts.items() if name != "nll")
        return Loss(whole, parts, None, out.stats, real.sum())

    def judge(self, batch: EpisodeSteps, state: State | None = None) -> EvaluationSums:
        """Return the accuracy and nats per action, or the squared error of numeric actions.

        Numeric actions are first divided by their largest value in the training data.
        """
        predicted, real = self.predict(batch), batch.times >= 0
        apart = self._action_errors(predicted, batch)
        if not self.discrete:
            return EvaluationSums({self.metric.name: sum_and_count(apart, real)})
        right = (predicted.actions.argmax(-1) == batch.actions).to(apart.dtype)
        return EvaluationSums(
            {self.metric.name: sum_and_count(right, real), "nats per action": sum_and_count(apart, real)}
        )

    def sample(self, rows: int, length: int, seed: int) -> EpisodeSteps:
        """Return rows of random steps, to test the model with."""
        generator, size = torch.Generator().manual_seed(seed), min(length, self.steps)
        states = torch.randn(size, rows, self.states, generator=generator).transpose(0, 1).contiguous()
        actions = states.sum(-1).long() % self.actions
        numbers = states[..., :1].expand(-1, -1, self.actions).tanh()
        times = torch.arange(size).expand(rows, -1).contiguous()
        return EpisodeSteps(states[..., 0], states, actions if self.discrete else numbers, times)

    def _read(self, batch: EpisodeSteps) -> tuple[TrajectoryPrediction, Out]:
        x, ctx = self._embed(batch)
        out = self.body(F.dropout(x, self.dropout, self.training), None, ctx)
        ctx.memo.settle()
        y = out.y.unflatten(1, (batch.times.shape[1], -1))
        at_state, at_action = y[:, :, -2], y[:, :, -1]
        actions = self.action(at_state)
        actions = actions if self.discrete or not self.bounded else actions.tanh()
        states = None if self.state is None else self.state(at_action)
        return TrajectoryPrediction(
            actions, states, None if self.left is None else self.left(at_action).squeeze(-1)
        ), out

    def _embed(self, batch: EpisodeSteps) -> tuple[Float[Tensor, "B N D"], Context]:
        """Return the tokens of all steps in order, and their context."""
        real, scales = batch.times >= 0, self.measured
        like, acted = self.of_states.weight, self._actions(batch)
        states = scales.normalise(batch.states).where(real[..., None], 0.0).to(like)
        parts = [self.of_states(states), self.of_actions(acted if self.discrete else acted.to(like))]
        if self.of_returns is not None:
            left = (batch.returns / scales.returns).where(real, 0.0)[..., None]
            parts = [self.of_returns(left.to(like)), *parts]
        ctx = context_of_tokens(batch.times.repeat_interleave(len(parts), 1))
        if not torch.compiler.is_compiling():
            ctx.memo.expect(
                batch.times < self.steps,
                f"an episode is longer than the {self.steps} steps of this model; train it with a larger steps=",
            )
        when = self.of_times(batch.times.clamp(0, self.steps - 1))
        return self.norm(torch.stack([vectors + when for vectors in parts], 2).flatten(1, 2)), ctx

    def _actions(self, batch: EpisodeSteps) -> Tensor:
        """Return actions as they are embedded: kinds, or numbers over their largest; padding is cleared."""
        real = batch.times >= 0
        if self.discrete:
            return batch.actions.where(real, 0)
        return (batch.actions / self.measured.actions).where(real[..., None], 0.0)

    def _action_errors(self, predicted: TrajectoryPrediction, batch: EpisodeSteps) -> Float[Tensor, "B T"]:
        """Return the error of each predicted action: nats for kinds, squares for numbers."""
        if self.discrete:
            return token_nll(predicted.actions, batch.actions.where(batch.times >= 0, -1))
        return (predicted.actions - self._actions(batch)).square().mean(-1)

    def _next_step_errors(
        self, predicted: TrajectoryPrediction, batch: EpisodeSteps, real: Tensor
    ) -> dict[str, Tensor]:
        """Return the mean squared errors of the next step's state and return, over steps that have a next one."""
        has_next = real[:, :-1] & real[:, 1:]
        errors = {}
        if predicted.states is not None:
            targets = self.measured.normalise(batch.states)[:, 1:].where(has_next[..., None], 0.0)
            errors["states"] = masked_mean((predicted.states[:, :-1] - targets).square().mean(-1), has_next)
        if predicted.returns is not None:
            left = (batch.returns / self.measured.returns)[:, 1:].where(has_next, 0.0)
            errors["returns"] = masked_mean((predicted.returns[:, :-1] - left).square(), has_next)
        return errors


def _example(**keywords: object) -> Trajectory:
    body = kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())))
    return Trajectory(3, 2, body, context=4, steps=32, **keywords)  # type: ignore[arg-type]


# for a model that also predicts the next state and return
SHARES = {
    "shard": "the loss of next steps is a mean over steps with a next one, but processes are weighted by all steps"
}
EXAMPLES = (_example, Example(lambda: _example(discrete=False, beside=0.5), breaks=SHARES))
