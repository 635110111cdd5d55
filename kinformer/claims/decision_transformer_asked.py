"""Decision Transformer: where episodes cover a return, the one that is asked for is the one that comes."""

from collections.abc import Sequence
from functools import partial
from statistics import correlation, mean
from typing import Any

from kinformer.claims.support.episodes import CART, leaning, offline, returned, taught
from kinformer.claims.support.verdict import Claim, Measure
from kinformer.members.decision_transformer import decision_transformer

EPISODES, STEPS, RATE, PLAYED, ASKED = 400, 500, 3e-3, 12, 8
SMALL: dict[str, Any] = {"d": 48, "depth": 2, "heads": 2, "context": 10, "dropout": 0.0}
SAYS = "what a Decision Transformer is asked for and what it returns correlate by more than 0.9 where episodes cover it"
SOURCE = "Chen et al., 2021, arXiv:2106.01345, section 5.2"


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """CartPole, episodes of controllers that lean by more or less; quantiles of their returns are asked for."""
    found, covered = [], []
    for seed in seeds:
        data = offline(leaning(EPISODES, seed))
        model = taught(decision_transformer, data, seed, steps, RATE, **SMALL)
        whole = data.train.whole.sort().values
        asked = [float(whole[round((n + 0.5) / ASKED * (len(whole) - 1))]) for n in range(ASKED)]
        found.append([(one, returned(model, CART, PLAYED, one, 10_000 + seed)) for one in asked])
        covered.append(whole.tolist())
    by = [correlation(*map(list, zip(*one, strict=True))) for one in found]
    off = [mean(abs(asked - came) for asked, came in one) for one in found]
    measures = (Measure("correlation of the return asked for and the mean that came", by, "least", 0.9, nothing=0.0),)
    told = {
        "asked and returned, of the first seed": ", ".join(f"{asked:.0f}: {came:.0f}" for asked, came in found[0]),
        "how far off, on average": f"{mean(off):.1f} steps of 200",
    }
    return Claim(SAYS, SOURCE, measures, told, {"return asked for and return that came": partial(_draw, found)})


def _draw(found: list[list[tuple[float, float]]], axes: Any) -> None:
    for n, one in enumerate(found):
        axes.plot(*zip(*one, strict=True), "o-", color="tab:blue", alpha=0.7, label=None if n else "a seed")
    axes.plot([0, 200], [0, 200], "--", color="tab:gray", label="as asked")
    axes.set(xlabel="return asked for", ylabel="mean return that came")
    axes.legend()
