"""Episodes for claims, and the training of models on them."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy
import torch
from jaxtyping import Float

from kinformer.lab.data.offline import EpisodeData, read
from kinformer.lab.data.support.offline_episodes import Episode, write_episodes
from kinformer.lab.data.support.play_episodes import PlaySettings, roll_out
from kinformer.lab.environments.support.make_environment import make
from kinformer.models.trajectory import Trajectory

BATCH = 64
CART = "CartPole-v1,max_episode_steps=200"
LEANS = 0.02, 0.6  # range of a controller's lean: the smallest balances for 200 steps, the largest falls within ten
Policy = Callable[[Float[numpy.ndarray, " S"]], int]  # maps an observation to an action


def run_policy(policy: Policy, env: Any, seed: int) -> Episode:
    """Run one episode with a policy that has no memory, and return its observations, actions and rewards.

    policy: function from an observation to an action.
    env: environment.
    seed: seed of the environment.
    """
    state, over = env.reset(seed=seed)[0], False
    states, actions, rewards = [], [], []
    while not over:
        states.append(state)
        actions.append(policy(state))
        state, reward, ended, cut, _ = env.step(actions[-1])
        rewards.append(reward)
        over = ended or cut
    return Episode(numpy.array(states, numpy.float32), numpy.array(actions), numpy.array(rewards, numpy.float32))


def leaning_episodes(count: int, seed: int) -> list[Episode]:
    """Return CartPole episodes with widely different returns.

    Each episode has another controller. It balances the pole with a constant error of the angle, its lean. Leans are
    random on a logarithmic scale and are not part of the observations.

    count: number of episodes.
    seed: seed of the leans and of the environments.
    """
    env, rng = make(CART), numpy.random.default_rng(seed)
    episodes = []
    for n in range(count):
        lean = numpy.exp(rng.uniform(*numpy.log(LEANS)))

        def policy(state: Float[numpy.ndarray, " S"], lean: float = lean) -> int:
            place, speed, angle, turning = state
            return int(angle + 0.5 * turning + 0.05 * speed + 0.02 * place + lean > 0)

        episodes.append(run_policy(policy, env, seed * count + n))
    return episodes


def build_episode_data(episodes: Sequence[Episode], **options: str) -> EpisodeData:
    """Return episodes as training data, as the command-line option `--data offline=FILE.npz` reads them.

    The episodes are stored in a temporary file and read again.

    episodes: episodes to store.
    options: options of `--data offline=`, such as `reward="end"` (all reward at the end of the episode).
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "episodes.npz"
        write_episodes(file, list(episodes))
        return read(str(file), **options)


def train_member(
    member: Callable[..., Trajectory], data: EpisodeData, seed: int, steps: int, rate: float, **keywords: Any
) -> Trajectory:
    """Build a model, train it on episodes and return it in eval mode.

    The learning rate rises for 30 steps and falls to 0 at the end.

    member: member (named model): a function that builds the model. The data gives the sizes of states and actions.
    data: episodes to learn from.
    seed: seed of the weights and of the batches.
    steps: number of training steps.
    rate: peak learning rate.
    keywords: further arguments of the member.
    """
    torch.manual_seed(seed)
    model = member(**data.keywords, **keywords)
    data.store_scales(model)
    batches, optimiser = data.stream(model, BATCH, 1, seed, 1 << 16), torch.optim.AdamW(model.parameters(), rate)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 30) * (1 - step / steps)
        optimiser.zero_grad()
        model(batches.at(step)).total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


def mean_return(model: Trajectory, spec: str, episodes: int, target: float | None, seed: int) -> float:
    """Let a model act in an environment, and return its mean return over several episodes.

    model: model that acts.
    spec: the environment, as in the command-line option `--env`.
    episodes: number of episodes.
    target: return that is requested from the model; None for the highest return of its training data.
    seed: seed of the first episode.
    """
    return mean(
        result.episode.total_return for result in roll_out(model, PlaySettings(spec, episodes, target, seed=seed))
    )
