"""Decision Transformer: where all reward comes at the end it keeps its level."""

from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any

import numpy

from kinformer.lab.claims.support.episodes import CART, followed, leaning, offline, returned, taught
from kinformer.lab.claims.support.values import conservative
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.support.episodes import Episode
from kinformer.lab.environments.support.make_environment import make
from kinformer.members.behaviour_cloning import behaviour_cloning
from kinformer.members.decision_transformer import decision_transformer

EPISODES, STEPS, RATE, PLAYED, DROP = 300, 400, 3e-3, 12, 0.15
LEVEL = 100.0  # half of the longest episode: who learns nothing falls within ten or twenty steps, and loses none of it
SMALL: dict[str, Any] = {"d": 48, "depth": 2, "heads": 2, "context": 10, "dropout": 0.0}
SAYS = "a Decision Transformer loses less than 15 percent of its return where all reward comes at an episode's end"
SOURCE = "Chen et al., 2021, arXiv:2106.01345, section 5.6"
NAMES = ("Decision Transformer", "cloning of the best tenth", "conservative Q-learning")


def measured(seed: int, steps: int) -> dict[str, tuple[float, float]]:
    """What each returns, rewarded at each step and at the end."""
    episodes, played = leaning(EPISODES, seed), 10_000 + seed
    asked: dict[str, list[float]] = {name: [] for name in NAMES}
    for reward in ("step", "end"):
        data = offline(episodes, reward=reward)
        model = taught(decision_transformer, data, seed, steps, RATE, **SMALL)
        asked[NAMES[0]].append(returned(model, CART, PLAYED, None, played))
        cloner = taught(behaviour_cloning, data, seed, steps, RATE, best=10, **SMALL)
        asked[NAMES[1]].append(returned(cloner, CART, PLAYED, None, played))
        some = [_delayed(one) for one in episodes] if reward == "end" else episodes
        policy, env = conservative(some, seed, 5 * steps), make(CART)
        asked[NAMES[2]].append(mean(followed(policy, env, played + n).returned for n in range(PLAYED)))
    return {name: (dense, late) for name, (dense, late) in asked.items()}


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """CartPole, episodes of controllers that lean by more or less; each learner is asked for the best it knows."""
    found = [measured(seed, steps) for seed in seeds]
    lost = [1 - one[NAMES[0]][1] / one[NAMES[0]][0] for one in found]
    dense = [run[NAMES[0]][0] for run in found]
    measures = (
        Measure("share of its return that it loses", lost, "most", DROP),
        Measure("its return where it is rewarded at each step, of 200", dense, "least", LEVEL, nothing=0.0),
    )
    told = {
        f"returned of 200, rewarded at each step and at the end, {name}": ", ".join(
            f"{mean(one[name][n] for one in found):.0f}" for n in range(2)
        )
        for name in NAMES
    }
    return Claim(SAYS, SOURCE, measures, told, {"return, rewarded at each step and at the end": partial(_draw, found)})


def _delayed(one: Episode) -> Episode:
    rewards = numpy.zeros_like(one.rewards)
    rewards[-1] = one.returned
    return one._replace(rewards=rewards)


def _draw(found: list[dict[str, tuple[float, float]]], axes: Any) -> None:
    for n, name in enumerate(NAMES):
        for late in (False, True):
            came = [one[name][int(late)] for one in found]
            place, colour = n + (0.2 if late else -0.2), "tab:orange" if late else "tab:blue"
            label = None if n else ("at the end" if late else "at each step")
            axes.bar(place, mean(came), 0.4, color=colour, alpha=0.6, label=label)
            axes.plot([place] * len(came), came, "k.")
    axes.set_xticks(range(len(NAMES)), [name.replace(" ", "\n", 1) for name in NAMES])
    axes.set(ylabel="mean return, of 200")
    axes.legend()
