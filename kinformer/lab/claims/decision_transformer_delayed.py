"""A Decision Transformer loses little return if all reward arrives at the end of an episode."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from kinformer.lab.claims.support.episodes import (
    CART,
    Policy,
    build_episode_data,
    leaning_episodes,
    mean_return,
    run_policy,
    train_member,
)
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.support.offline_episodes import Episode
from kinformer.lab.environments.support.make_environment import make
from kinformer.lab.plot import Plot
from kinformer.members.behaviour_cloning import behaviour_cloning
from kinformer.members.decision_transformer import decision_transformer

EPISODES, STEPS, RATE, PLAYED, DROP = 300, 400, 3e-3, 12, 0.15
MINUTES = 3.8  # of a default run with three seeds
Q_BATCH, DISCOUNT, FOLLOW, Q_RATE = 256, 0.99, 1 - 0.99, 1e-3  # for conservative Q-learning
# half of the longest episode; an untrained model falls within 10 to 20 steps, so it has no return to lose
LEVEL = 100.0
SMALL: dict[str, Any] = {"d": 48, "depth": 2, "heads": 2, "context": 10, "dropout": 0.0}
SAYS = "a Decision Transformer loses under 15% of its return (at the ceiling) if all reward comes at the end"
SOURCE = "Chen et al., 2021, arXiv:2106.01345, section 5.6"
NAMES = ("Decision Transformer", "cloning of the best tenth", "conservative Q-learning")


def train_conservative_policy(episodes: Sequence[Episode], seed: int, steps: int, weight: float = 1.0) -> Policy:
    """Train a network by conservative Q-learning, and return the policy that takes its best-valued action.

    The method lowers the values Q of actions that the data does not contain. Q' is a copy of Q that follows it slowly.

    loss = smooth_l1(Q(s, a), r + 0.99 max_a' Q'(s', a')) + weight (log sum_a exp Q(s, a) - Q(s, a of the data))

    episodes: episodes to learn from.
    seed: seed of the weights and of the batches.
    steps: number of training steps.
    weight: weight of the conservative term.

    Source: Kumar et al., 2020, arXiv:2006.04779.
    """
    torch.manual_seed(seed)
    states, actions, rewards = (torch.from_numpy(numpy.concatenate(part)) for part in zip(*episodes, strict=True))
    ends = torch.from_numpy(numpy.cumsum([len(episode.rewards) for episode in episodes]) - 1)
    is_last = torch.zeros(len(rewards)).index_fill(0, ends, 1.0)
    scale, centre = states.std(0).clamp_min(1e-6), states.mean(0)
    states = (states - centre) / scale
    q, slow = (
        nn.Sequential(
            nn.Linear(states.shape[1], 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, int(actions.max()) + 1),
        )
        for _ in range(2)
    )
    slow.load_state_dict(q.state_dict())
    optimiser, generator = torch.optim.Adam(q.parameters(), Q_RATE), numpy.random.default_rng(seed)
    for _ in range(steps):
        at = torch.from_numpy(generator.integers(len(rewards), size=Q_BATCH))
        after = (at + 1).clamp_max(len(rewards) - 1)
        with torch.no_grad():
            target = rewards[at] + DISCOUNT * (1 - is_last[at]) * slow(states[after]).amax(1)
        values = q(states[at])
        value = values.gather(1, actions[at, None]).squeeze(1)
        loss = F.smooth_l1_loss(value, target) + weight * (values.logsumexp(1) - value).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            for slow_weight, q_weight in zip(slow.parameters(), q.parameters(), strict=True):
                slow_weight.lerp_(q_weight, FOLLOW)

    @torch.no_grad()
    def policy(state: numpy.ndarray) -> int:
        return int(q((torch.from_numpy(state) - centre) / scale).argmax())

    return policy


def measure_returns(seed: int, steps: int) -> dict[str, tuple[float, float]]:
    """Train each learner with immediate and with delayed rewards, and return its two mean returns by name.

    The first return is with a reward at each step, the second with all reward at the end of the episode. The learners
    are a Decision Transformer, behaviour cloning of the best tenth of the episodes, and conservative Q-learning.

    seed: seed of the episodes and of the trainings.
    steps: number of training steps; Q-learning takes 5 times as many.
    """
    episodes, played = leaning_episodes(EPISODES, seed), 10_000 + seed
    returns: dict[str, list[float]] = {name: [] for name in NAMES}
    for reward in ("step", "end"):
        data = build_episode_data(episodes, reward=reward)
        model = train_member(decision_transformer, data, seed, steps, RATE, **SMALL)
        returns[NAMES[0]].append(mean_return(model, CART, PLAYED, None, played))
        cloner = train_member(behaviour_cloning, data, seed, steps, RATE, best=10, **SMALL)
        returns[NAMES[1]].append(mean_return(cloner, CART, PLAYED, None, played))
        rewarded = [_delay_rewards(episode) for episode in episodes] if reward == "end" else episodes
        policy, env = train_conservative_policy(rewarded, seed, 5 * steps), make(CART)
        returns[NAMES[2]].append(mean(run_policy(policy, env, played + n).total_return for n in range(PLAYED)))
    return {name: (dense, late) for name, (dense, late) in returns.items()}


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Compare returns in CartPole after learning with a reward at each step and all reward at the end.

    The learners see episodes of good and bad controllers. The requested return of the Decision Transformer is the
    highest return of its training data. The claim holds if it loses at most 0.15 of its return by the delay, and
    reaches at least 100 of 200 with a reward at each step. The other learners do not affect the verdict. In the
    committed report the Decision Transformer reaches 200 of 200 in both cases. At this ceiling a small loss cannot
    show.

    seeds: seeds of the episodes and of the trainings.
    steps: number of training steps.
    """
    runs = [measure_returns(seed, steps) for seed in seeds]
    losses = [1 - run[NAMES[0]][1] / run[NAMES[0]][0] for run in runs]
    dense = [run[NAMES[0]][0] for run in runs]
    measures = (
        Measure("share of the return that the Decision Transformer loses", losses, "most", DROP),
        Measure(
            "return of the Decision Transformer with a reward at each step, of 200",
            dense,
            "least",
            LEVEL,
            no_effect=0.0,
        ),
    )
    facts = {
        f"mean return of 200 with a reward at each step, and at the end, {name}": ", ".join(
            f"{mean(run[name][n] for run in runs):.0f}" for n in range(2)
        )
        for name in NAMES
    }
    plot = Plot(
        "return with a reward at each step, and at the end",
        "",
        "mean return, of 200",
        samples={
            label: [[run[name][n] for run in runs] for name in NAMES]
            for n, label in enumerate(("at each step", "at the end"))
        },
        categories=NAMES,
        bars=True,
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))


def _delay_rewards(episode: Episode) -> Episode:
    rewards = numpy.zeros_like(episode.rewards)
    rewards[-1] = episode.total_return
    return episode._replace(rewards=rewards)
