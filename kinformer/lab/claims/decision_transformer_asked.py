"""Decision Transformer: where episodes cover a return, the one that is asked for is the one that comes."""

from collections.abc import Sequence
from statistics import StatisticsError, correlation, mean
from typing import Any

from kinformer.lab.claims.support.episodes import CART, build_episode_data, leaning_episodes, mean_return, train_member
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.offline import EpisodeData
from kinformer.lab.plot import Plot, PlotLine
from kinformer.members.decision_transformer import decision_transformer

EPISODES, STEPS, RATE, PLAYED, TARGETS = 400, 500, 3e-3, 12, 8
SMALL: dict[str, Any] = {"d": 48, "depth": 2, "heads": 2, "context": 10, "dropout": 0.0}
ReturnPairs = list[tuple[float, float]]  # a return that was asked for, and the mean of those that came
SAYS = "what a Decision Transformer is asked for and what it returns correlate by more than 0.9 where episodes cover it"
SOURCE = "Chen et al., 2021, arXiv:2106.01345, section 5.2"


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """CartPole, episodes of controllers that lean by more or less; quantiles of their returns are asked for.

    Told beside it is the paper's ablation: models that are taught to predict the next state and return as well.
    """
    lots = [(seed, build_episode_data(leaning_episodes(EPISODES, seed))) for seed in seeds]
    pairs, all_pairs = ([_return_pairs(data, seed, steps, weight) for seed, data in lots] for weight in (0.0, 1.0))
    off, apart = ([mean(abs(target - reached) for target, reached in run) for run in of] for of in (pairs, all_pairs))
    by, correlation = [_correlation(run) for run in pairs], mean(map(_correlation, all_pairs))
    measures = (Measure("correlation of the return asked for and the mean that came", by, "least", 0.9, no_effect=0.0),)
    less = [run - other for run, other in zip(off, apart, strict=True)]
    facts = {
        "asked and returned, of the first seed": ", ".join(
            f"{target:.0f}: {reached:.0f}" for target, reached in pairs[0]
        ),
        "how far off, on average": f"{mean(off):.1f} steps of 200",
        "predicting states and returns too": f"{mean(apart):.1f} off, correlation {correlation:.3f}",
        "steps that this brings it nearer, by seed": ", ".join(f"{run:.1f}" for run in less),
    }
    seeds_lines = [
        PlotLine([target for target, _ in run], [reached for _, reached in run], "a seed", "o-", alpha=0.7)
        for run in pairs
    ]
    lines = [*seeds_lines, PlotLine((0, 200), (0, 200), "as asked", "--", "tab:gray")]
    plot = Plot("return asked for and return that came", "return asked for", "mean return that came", lines)
    return Claim(SAYS, SOURCE, measures, facts, (plot,))


def _return_pairs(data: EpisodeData, seed: int, steps: int, weight: float) -> ReturnPairs:
    """Quantiles of the returns of episodes, and what came where they were asked for."""
    model, whole = (
        train_member(decision_transformer, data, seed, steps, RATE, beside=weight, **SMALL),
        data.train.episode_returns,
    )
    targets = [float(whole.sort().values[round((n + 0.5) / TARGETS * (len(whole) - 1))]) for n in range(TARGETS)]
    return [(target, mean_return(model, CART, PLAYED, target, 10_000 + seed)) for target in targets]


def _correlation(pairs: ReturnPairs) -> float:
    """The correlation of asked and reached returns; 0 if the reached return never changes."""
    try:
        return correlation(*map(list, zip(*pairs, strict=True)))
    except StatisticsError:
        return 0.0
