"""A Decision Transformer learns from random episodes that a key matters two rooms later."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from kinformer.lab.claims.support.episodes import build_episode_data, mean_return, train_member
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.support.play_episodes import PlaySettings, roll_out
from kinformer.lab.plot import by_category
from kinformer.members.behaviour_cloning import behaviour_cloning
from kinformer.members.decision_transformer import decision_transformer
from kinformer.models.trajectory import Trajectory

SPEC, EPISODES, STEPS, RATE, PLAYED = "key_to_door,size=3,steps=5", 2000, 1500, 3e-3, 64
MINUTES = 2.6  # of a default run with three seeds
SMALL: dict[str, Any] = {"d": 32, "depth": 2, "heads": 2, "dropout": 0.0}
LONG, SHORT = 15, 2  # steps in the context: a whole episode, or too few to include the first room
LEARNERS: dict[str, tuple[Any, dict[str, Any], float | None]] = {
    "asked for 1, context of the whole episode": (decision_transformer, {"context": LONG}, 1.0),
    "asked for 1, context of two steps": (decision_transformer, {"context": SHORT}, 1.0),
    "asked for 0, context of the whole episode": (decision_transformer, {"context": LONG}, 0.0),
    "cloning of all": (behaviour_cloning, {"context": LONG, "best": 100}, None),
    "cloning of the best tenth": (behaviour_cloning, {"context": LONG, "best": 10}, None),
}
SAYS = (
    "conditioned on a return of 1, a Decision Transformer reaches the door of Key-to-Door twice as often as the "
    "episodes that it learned from"
)
SOURCE = "Chen et al., 2021, arXiv:2106.01345, section 5.4"


def measure_success(seed: int, steps: int) -> dict[str, float]:
    """Train each learner on random episodes, and return its success.

    Success is the share of episodes in which the learner takes the key and reaches the door.

    seed: seed of the episodes and of the trainings.
    steps: number of training steps.
    """
    episodes = [episode.episode for episode in roll_out(None, PlaySettings(SPEC, EPISODES, seed=seed * EPISODES))]
    success, data = {"chance": mean(episode.total_return for episode in episodes)}, build_episode_data(episodes)
    models: dict[Any, Trajectory] = {}  # the same model is asked for both returns
    for name, (member, keywords, target) in LEARNERS.items():
        key = (member, *keywords.items())
        if key not in models:
            models[key] = train_member(member, data, seed, steps, RATE, **SMALL, **keywords)
        success[name] = mean_return(models[key], SPEC, PLAYED, target, 10**6 + seed * PLAYED)
    return success


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Train on 2,000 random episodes per seed, and compare how often each learner earns the reward.

    An episode has three rooms of 3 x 3 cells, with 5 steps in each. The only reward is 1 at the door in the last room,
    if the agent took the key in the first. A seed takes minutes. The claim holds if two conditions are met. The
    success of the Decision Transformer, with a requested return of 1, is at least twice the success of random episodes
    and of behaviour cloning (imitation of these episodes). A context of the whole episode gives more success than a
    context of two steps. Two seeds are too few to resolve the second condition.

    After 500 steps the model does worse than chance. Few training episodes end with success, and rare events are
    learned late. Cloning of the tenth of the episodes with the highest return is reported for comparison. The paper
    finds it about equal to the Decision Transformer.

    seeds: seeds of the episodes and of the trainings.
    steps: number of training steps.
    """
    runs = [measure_success(seed, steps) for seed in seeds]
    first, short = list(LEARNERS)[:2]
    over = [run[first] / max(run["chance"], run["cloning of all"], 1 / PLAYED) for run in runs]
    longer = [run[first] - run[short] for run in runs]
    measures = (
        Measure("success divided by the larger success of chance and of cloning all", over, "least", 2.0),
        Measure("success with a context of the whole episode minus success with two steps", longer, "least", 0.0),
    )
    facts = {f"success, {name}": f"{mean(run[name] for run in runs):.3f}" for name in runs[0]}
    success, title = {name: [run[name] for run in runs] for name in runs[0]}, "share of episodes that succeed"
    plot = by_category(title, title, success, bars=True, horizontal=True)
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
