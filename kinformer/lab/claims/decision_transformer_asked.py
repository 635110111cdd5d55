"""A Decision Transformer reaches the requested return if the data covers it."""

from collections.abc import Sequence
from statistics import StatisticsError, correlation, mean
from typing import Any

from kinformer.lab.claims.support.episodes import CART, build_episode_data, leaning_episodes, mean_return, train_member
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.offline import EpisodeData
from kinformer.lab.plot import Plot, PlotLine
from kinformer.members.decision_transformer import decision_transformer

EPISODES, STEPS, RATE, PLAYED, TARGETS = 400, 500, 3e-3, 12, 8
MINUTES = 2  # of a default run with three seeds
SMALL: dict[str, Any] = {"d": 48, "depth": 2, "heads": 2, "context": 10, "dropout": 0.0}
ReturnPairs = list[tuple[float, float]]  # a requested return, and the mean return that was reached
SAYS = (
    "the requested and the reached returns of a Decision Transformer correlate by more than 0.9 "
    "if the episodes cover them"
)
SOURCE = "Chen et al., 2021, arXiv:2106.01345, section 5.2"


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Measure the correlation of requested and reached returns of a Decision Transformer in CartPole.

    It learns from episodes of good and bad controllers, whose steering has errors of different sizes. The requested
    returns are quantiles of the returns in these episodes. The claim holds if the correlation is at least 0.9. CartPole
    is the choice of this library.

    Models that are also trained to predict the next state and return are measured for comparison, as in the paper.

    seeds: seeds of the episodes and of the trainings.
    steps: number of training steps.
    """
    lots = [(seed, build_episode_data(leaning_episodes(EPISODES, seed))) for seed in seeds]
    pairs, all_pairs = ([_return_pairs(data, seed, steps, weight) for seed, data in lots] for weight in (0.0, 1.0))
    off, apart = ([mean(abs(target - reached) for target, reached in run) for run in of] for of in (pairs, all_pairs))
    by, correlation = [_correlation(run) for run in pairs], mean(map(_correlation, all_pairs))
    measures = (
        Measure("correlation of the requested return and the mean return reached", by, "least", 0.9, no_effect=0.0),
    )
    less = [run - other for run, other in zip(off, apart, strict=True)]
    facts = {
        "requested return: mean return reached, first seed": ", ".join(
            f"{target:.0f}: {reached:.0f}" for target, reached in pairs[0]
        ),
        "mean distance from the requested return": f"{mean(off):.1f} steps of 200",
        "if states and returns are predicted too": f"distance {mean(apart):.1f}, correlation {correlation:.3f}",
        "steps by which this reduces the distance, by seed": ", ".join(f"{run:.1f}" for run in less),
    }
    seeds_lines = [
        PlotLine([target for target, _ in run], [reached for _, reached in run], "one seed", "o-", alpha=0.7)
        for run in pairs
    ]
    lines = [*seeds_lines, PlotLine((0, 200), (0, 200), "reached = requested", "--", "tab:gray")]
    plot = Plot("requested and reached return", "requested return", "mean return reached", lines)
    return Claim(SAYS, SOURCE, measures, facts, (plot,))


def _return_pairs(data: EpisodeData, seed: int, steps: int, weight: float) -> ReturnPairs:
    """Request quantiles of the data's returns, and return each with the mean return reached."""
    model, whole = (
        train_member(decision_transformer, data, seed, steps, RATE, beside=weight, **SMALL),
        data.train.episode_returns,
    )
    targets = [float(whole.sort().values[round((n + 0.5) / TARGETS * (len(whole) - 1))]) for n in range(TARGETS)]
    return [(target, mean_return(model, CART, PLAYED, target, 10_000 + seed)) for target in targets]


def _correlation(pairs: ReturnPairs) -> float:
    """Return the correlation of requested and reached returns; 0 if the reached return never changes."""
    try:
        return correlation(*map(list, zip(*pairs, strict=True)))
    except StatisticsError:
        return 0.0
