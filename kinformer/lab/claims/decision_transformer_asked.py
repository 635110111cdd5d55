"""Decision Transformer: where episodes cover a return, the one that is asked for is the one that comes."""

from collections.abc import Sequence
from functools import partial
from statistics import StatisticsError, correlation, mean
from typing import Any

from kinformer.lab.claims.support.episodes import CART, leaning, offline, returned, taught
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.offline import EpisodeData
from kinformer.members.decision_transformer import decision_transformer

EPISODES, STEPS, RATE, PLAYED, ASKED = 400, 500, 3e-3, 12, 8
SMALL: dict[str, Any] = {"d": 48, "depth": 2, "heads": 2, "context": 10, "dropout": 0.0}
Asked = list[tuple[float, float]]  # a return that was asked for, and the mean of those that came
SAYS = "what a Decision Transformer is asked for and what it returns correlate by more than 0.9 where episodes cover it"
SOURCE = "Chen et al., 2021, arXiv:2106.01345, section 5.2"


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """CartPole, episodes of controllers that lean by more or less; quantiles of their returns are asked for.

    Told beside it is the paper's ablation: models that are taught to predict the next state and return as well.
    """
    lots = [(seed, offline(leaning(EPISODES, seed))) for seed in seeds]
    found, more = ([_came(data, seed, steps, beside) for seed, data in lots] for beside in (0.0, 1.0))
    off, apart = ([mean(abs(asked - came) for asked, came in one) for one in of] for of in (found, more))
    by = [_together(one) for one in found]
    measures = (Measure("correlation of the return asked for and the mean that came", by, "least", 0.9, nothing=0.0),)
    less = [one - other for one, other in zip(off, apart, strict=True)]
    told = {
        "asked and returned, of the first seed": ", ".join(f"{asked:.0f}: {came:.0f}" for asked, came in found[0]),
        "how far off, on average": f"{mean(off):.1f} steps of 200",
        "predicting states and returns too": f"{mean(apart):.1f} off, correlation {mean(map(_together, more)):.3f}",
        "steps that this brings it nearer, by seed": ", ".join(f"{one:.1f}" for one in less),
    }
    return Claim(SAYS, SOURCE, measures, told, {"return asked for and return that came": partial(_draw, found)})


def _came(data: EpisodeData, seed: int, steps: int, beside: float) -> Asked:
    """Quantiles of the returns of episodes, and what came where they were asked for."""
    model, whole = taught(decision_transformer, data, seed, steps, RATE, beside=beside, **SMALL), data.train.whole
    asked = [float(whole.sort().values[round((n + 0.5) / ASKED * (len(whole) - 1))]) for n in range(ASKED)]
    return [(one, returned(model, CART, PLAYED, one, 10_000 + seed)) for one in asked]


def _together(found: Asked) -> float:
    """The correlation of asked and reached returns; 0 if the reached return never changes."""
    try:
        return correlation(*map(list, zip(*found, strict=True)))
    except StatisticsError:
        return 0.0


def _draw(found: list[Asked], axes: Any) -> None:
    for n, one in enumerate(found):
        axes.plot(*zip(*one, strict=True), "o-", color="tab:blue", alpha=0.7, label=None if n else "a seed")
    axes.plot([0, 200], [0, 200], "--", color="tab:gray", label="as asked")
    axes.set(xlabel="return asked for", ylabel="mean return that came")
    axes.legend()
