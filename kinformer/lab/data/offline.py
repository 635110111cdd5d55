"""Recorded episodes for offline reinforcement learning: observations, actions and rewards.

Choose `offline=PATH` for models that learn to act from recorded episodes. A batch is `EpisodeSteps`: each row has a
randomly drawn step and the steps before it, padded on the left. Each step has the sum of the rewards from it to the end
of its episode.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.checkpoint.atomic_files import digest, existing_path
from kinformer.core.batch import EpisodeSteps
from kinformer.core.checks import check_option
from kinformer.core.model import Model, display_name
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data
from kinformer.lab.data.support.offline_episodes import Episode, episodes
from kinformer.lab.data.support.safe_scales import scales
from kinformer.lab.data.support.train_valid_test import TEST, VALID
from kinformer.models.support.scale_buffers import EpisodeScales
from kinformer.models.trajectory import Trajectory

FORM, SERVES = "offline=PATH", ("trajectories",)
MEASURED, MOST = 64, 512  # rows of a validation batch; rows of a validation during training
SPLITS = ("train", "valid", "test")
CONTEXT = 20  # steps of a row if the model has no `context`
Reward = Literal["step", "end"]


class EpisodeTable(NamedTuple):
    """The concatenated steps of several episodes.

    returns: sum of the rewards from each step to the end of its episode.
    states: the observation of each step.
    actions: index of each action [N] if actions are discrete, else the values of each action [N A].
    times: number of each step within its episode, from 0.
    """

    returns: Float[Tensor, " N"]
    states: Float[Tensor, "N S"]
    actions: Tensor  # [N] kinds, or [N A] numbers
    times: Int[Tensor, " N"]

    @property
    def episode_starts(self) -> Int[Tensor, " E"]:
        """Index of the first step of each episode."""
        return (self.times == 0).nonzero().squeeze(1)

    @property
    def episode_returns(self) -> Float[Tensor, " E"]:
        """Sum of all rewards of each episode."""
        return self.returns[self.episode_starts]

    def rows(self, ends: Int[Tensor, " W"], before: Int[Tensor, " W"], length: int) -> EpisodeSteps:
        """Return rows of `length` steps, each with the steps of one episode and padded on the left.

        ends: index of the last step of each row.
        before: number of steps of the same episode that a row has before its last step.
        length: number of steps in a row, including the padding.
        """
        back = torch.arange(1 - length, 1)
        at = (ends[:, None] + back).clamp_min(0)
        real = -back <= before[:, None]
        steps = EpisodeSteps._make(part[at] for part in self)
        return steps._replace(times=steps.times.masked_fill(~real, -1))

    def best(self, percent: int) -> Int[Tensor, " M"]:
        """Return the indices of all steps of the episodes with the highest returns.

        Episodes are taken in the order of their returns until they have at least `percent` percent of all steps.
        """
        if percent == 100:
            return torch.arange(len(self.times))
        firsts = self.episode_starts
        sizes = torch.diff(firsts, append=torch.tensor([len(self.times)]))
        order = self.episode_returns.argsort(descending=True, stable=True)
        chosen = sizes[order].cumsum(0) - sizes[order] < percent / 100 * len(self.times)
        return torch.cat([torch.arange(int(firsts[n]), int(firsts[n] + sizes[n])) for n in order[chosen].sort().values])

    def tiles(self, length: int, limit: int) -> Int[Tensor, " W"]:
        """Return the last step of each row, for rows of up to `length` steps that hold each step once.

        The rows of an episode begin at its first step. If there are more than `limit` rows, only `limit` of them are
        returned, evenly spread.
        """
        last = torch.diff(self.times, append=torch.zeros(1, dtype=torch.long)) != 1
        ends = ((self.times % length == length - 1) | last).nonzero().squeeze(1)
        count = min(len(ends), limit)
        return ends[torch.arange(count) * (len(ends) - 1) // max(count - 1, 1)]


@dataclass(frozen=True, eq=False)
class EpisodeData(Data):
    """Episodes in three splits; each episode is only in one of them.

    name: the specification of the data, "offline=...".
    train, valid, test: the steps of the episodes.
    states: number of values in an observation.
    actions: number of possible actions if `discrete`, else the number of values in one action.
    discrete: True if an action is one of finitely many.
    steps: number of steps in the longest episode.
    delayed: True if all rewards of an episode are moved to its last step.
    split: one line about how the data is split in three.
    """

    noun: ClassVar[str] = "episodes"
    serves: ClassVar[tuple[str, ...]] = SERVES
    sized = False
    counted: ClassVar[str] = "steps"
    name: str
    train: EpisodeTable
    valid: EpisodeTable
    test: EpisodeTable
    states: int
    actions: int
    discrete: bool
    steps: int
    delayed: bool = False
    split: str = ""

    @property
    def keywords(self) -> dict[str, Any]:
        return {"states": self.states, "actions": self.actions, "discrete": self.discrete, "steps": self.steps}

    def longest_length(self, length: int) -> None:
        return None

    def store_scales(self, model: Model) -> None:
        """Store statistics of the training data in the model, which normalises its inputs by them.

        These are means, deviations and largest values.
        """
        if isinstance(model, Trajectory):
            model.measured.set_scales(self.scales)

    @property
    def scales(self) -> EpisodeScales:
        """Means and scales (divisors) of the training data; a scale is 1 if values differ only by rounding."""
        steps, largest = self.train, self.train.returns.abs().max()
        numbers = steps.actions.abs().amax(0) if not self.discrete else torch.zeros(0)
        mean, span = steps.states.double().mean(0).float(), torch.stack(steps.episode_returns.aminmax())
        deviation = scales(steps.states)[0].float()
        return EpisodeScales(
            mean, deviation, _replace_zeros(largest), _replace_zeros(numbers), span, torch.tensor(self.delayed)
        )

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Batches:
        """Return training rows that end at random steps, fixed by seed and step, and validation rows.

        The model sets the number of steps in a row (`context`). It also sets the percentage of steps to learn from,
        taken from the episodes with the highest returns (`best`). `length` has no effect. Each validation step is in
        one row, unless `limit` allows fewer rows.

        Errors: ValueError if the model was made for other observations or actions or for fewer steps, or if valid is
        empty.
        """
        if not len(self.valid.times):
            raise ValueError(f"{self.name} has no episodes in this split; choose another split, or give more episodes")
        for name, number in self.keywords.items():
            actual = getattr(model, name, number)
            # an environment may have kinds of actions that no episode shows
            may_exceed = name == "steps" or (name == "actions" and self.discrete)
            if actual != number and not (may_exceed and actual > number):
                raise ValueError(
                    f"{self.name} has {name}={number}, but this {display_name(model)} was made for {actual}; "
                    f"train a model with {name}={number}"
                )
        size, eligible = getattr(model, "context", CONTEXT), self.train.best(getattr(model, "best", 100))

        def draw_batch(step: int) -> EpisodeSteps:
            places = numpy.random.default_rng((seed, step)).integers(len(eligible), size=batch)
            ends = eligible[torch.from_numpy(places)]
            return self.train.rows(ends, self.train.times[ends].clamp_max(size - 1), size)

        ends = self.valid.tiles(size, self._sample_size(size, limit))
        before = self.valid.times[ends] % size
        lots = zip(ends.split(MEASURED), before.split(MEASURED), strict=True)
        return Batches(draw_batch, [self.valid.rows(*lot, size) for lot in lots])

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        return f"steps of {len(getattr(self, split).episode_starts):,} episodes of {split}"

    def levels(self, model: Model, split: str, length: int, limit: int) -> Mapping[str, float]:
        """Return the score of always the same action: the commonest one in train, or the mean if continuous.

        The score is the accuracy, or for the mean the squared error in the unit of the model's error.
        """
        if not isinstance(model, Trajectory):
            return {}
        actions, learned = getattr(self, split).actions, self.train.actions
        if self.discrete:
            return {"always the commonest": float((actions == learned.mode().values).float().mean())}
        apart = (actions - learned.mean(0)) / model.measured.actions.cpu()  # the unit of the model's error
        return {"always the mean": float(apart.square().mean())}

    def _sample_size(self, size: int, limit: int) -> int:
        """Return the number of measured rows that `limit` bytes allow, at most `MOST` during training."""
        return max(1, limit // size if limit > 1 << 20 else min(MOST, limit // size))


def read(where: str, *, reward: str = "step") -> EpisodeData:
    """Read episodes from a .npz, from a folder of .npz files, or from a data set of Minari.

    A .npz holds the steps of all episodes in sequence. Its arrays are `obs` [N S], `actions` [N] (integers) or [N A],
    `rewards` [N] and `episode_starts` [N]. The last array is True at the first step of each episode. The split is about
    90 : 5 : 5 by the SHA-256 of each episode. Equal episodes are read once.

    where: the file or folder.
    reward: "step" keeps the rewards. "end" moves all rewards of an episode to its last step, as if only the outcome
        counted.

    Errors: FileNotFoundError if a file is missing; ImportError if a Minari data set is read without the package h5py.
    ValueError, in one line, if arrays have another form, if a value is not finite, or if there are fewer than two
    episodes.
    """
    check_option("reward", reward, Reward)
    path = existing_path(where, f"write {FORM}; PATH is a .npz, a folder of .npz files, or a data set of Minari")
    # equal episodes must not be in two splits
    by_key = {_episode_key(episode): episode for episode in episodes(path)}
    if len(by_key) < 2:
        raise ValueError(
            f"{where} has too few episodes: got {len(by_key)} different ones, expected at least 2, for training and "
            "for validation. Give more episodes"
        )
    every = [by_key[key] for key in sorted(by_key, key=digest)]
    valid_count, last = max(1, round(VALID * len(every))), round(TEST * len(every))
    ends = [0, len(every) - valid_count - last, len(every) - last, len(every)]
    train, valid, test = (_episode_steps(every[first:end], every[0], reward) for first, end in pairwise(ends))
    discrete = every[0].actions.ndim == 1
    actions = 1 + max(int(episode.actions.max()) for episode in every) if discrete else every[0].actions.shape[1]
    name = f"offline={where}{'' if reward == 'step' else f',reward={reward}'}"
    sizes = ", ".join(f"{end - first:,} {split}" for (first, end), split in zip(pairwise(ends), SPLITS, strict=True))
    whole = [episode.total_return for episode in every]
    text = f"{name}: episodes with returns of {min(whole):.6g} to {max(whole):.6g}, {sizes}, by the SHA-256 of each"
    steps, flat = max(len(episode.rewards) for episode in every), int(scales(train.states)[1].sum())
    text += f"; {flat:,} of {train.states.shape[1]:,} numbers of an observation are constant in train" * bool(flat)
    return EpisodeData(
        name, train, valid, test, every[0].states.shape[1], actions, discrete, steps, reward == "end", text
    )


def to_go(rewards: numpy.ndarray) -> numpy.ndarray:
    """Return for each step the sum of the rewards [T] from it to the end of the episode."""
    return numpy.cumsum(rewards[::-1], dtype=numpy.float64)[::-1]


def _episode_steps(lot: list[Episode], like: Episode, reward: str) -> EpisodeTable:
    if not lot:
        empty = (torch.from_numpy(part[:0]) for part in (like.rewards, like.states, like.actions))
        return EpisodeTable._make((*empty, torch.zeros(0, dtype=torch.long)))
    left = [
        numpy.full(len(episode.rewards), episode.total_return) if reward == "end" else to_go(episode.rewards)
        for episode in lot
    ]
    times = [numpy.arange(len(episode.rewards)) for episode in lot]
    states, actions = ([getattr(episode, name) for episode in lot] for name in ("states", "actions"))
    parts = (numpy.concatenate(part) for part in (left, states, actions, times))
    returns, *rest = (torch.from_numpy(part) for part in parts)
    return EpisodeTable._make((returns.float(), *rest))


def _episode_key(episode: Episode) -> bytes:
    return b"".join(part.tobytes() for part in episode)


def _replace_zeros(scale: Tensor) -> Tensor:
    """Return the scale with each 0 replaced by 1."""
    return scale.where(scale > 0, 1.0)
