"""CALM: of the three confidences, calibrated to the same risk, the softmax response writes fastest."""

from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

from kinformer.lab.claims.support.half_easy import DEPTH, WIDE, Lost, Size, full, lost, prompts, rules, seconds, trained
from kinformer.lab.claims.support.verdict import Claim, Draw, Measure
from kinformer.nn.exits.learn_then_test import learn_then_test
from kinformer.nn.exits.never_exit import NeverExit
from kinformer.nn.exits.rules import Rule

DELTA, EPSILON, TEXTS, GRID = 0.1, 0.05, 200, 11
BEST = "softmax response"
SAYS = "calibrated to the same risk, the softmax response saves the most time of CALM's three confidences"
SOURCE = "Schuster et al., 2022, arXiv:2207.07061, section 5; as the posts on the family tell it"


class Speed(NamedTuple):
    """Of one confidence: speed over the full model in time, mean layers, and the mean loss at its threshold."""

    speed: float
    layers: float
    loss: float


def speeds(seed: int, size: Size = WIDE, texts: int = TEXTS) -> dict[str, Speed]:
    """Each confidence on one trained model, at the threshold that is proven for it."""
    model = trained(seed, size)
    given = prompts(model, "valid", texts)
    whole, leaving = full(model, given), dict[str, Rule]({"full": NeverExit()})
    found: dict[str, tuple[float, float]] = {}
    for name, rule in rules(model).items():
        tested = dict[Any, Lost]()

        def losses(one: Any, rule: Any = rule, tested: Any = tested) -> list[float]:
            tested[one] = lost(model, rule, one, given, whole)
            return tested[one].textual

        chosen = learn_then_test(rule.grid(GRID), losses, DELTA, EPSILON).threshold
        found[name] = (float(DEPTH), 0.0) if chosen is None else (tested[chosen].layers, mean(tested[chosen].textual))
        if chosen is not None:
            rule.leave_at(chosen)
        leaving[name] = NeverExit() if chosen is None else rule
    took = seconds(model, leaving, given)
    return {name: Speed(took["full"] / took[name], *of) for name, of in found.items()}


def claim(seeds: Sequence[int], size: Size = WIDE, texts: int = TEXTS) -> Claim:
    """How much faster the softmax response is than each of the others, by seeds."""
    found = [speeds(seed, size, texts) for seed in seeds]
    names = list(found[0])
    measures = tuple(
        Measure(
            f"speed of the softmax response over that of {name}",
            [one[BEST].speed / one[name].speed for one in found],
            "least",
            1.0,
        )
        for name in names
        if name != BEST
    )
    means = {name: Speed(*(mean(of) for of in zip(*(one[name] for one in found), strict=True))) for name in names}
    told = {
        name: f"{of.speed:.2f} times as fast as the full model, {of.layers:.2f} of {DEPTH} layers, loss {of.loss:.3f}"
        for name, of in means.items()
    }
    drawn: dict[str, Draw] = {f"at a risk of {DELTA:g}, proven": partial(_draw, found)}
    return Claim(SAYS, SOURCE, measures, told, drawn)


def _draw(found: Sequence[dict[str, Speed]], axes: Any) -> None:
    for n, name in enumerate(found[0]):
        axes.plot(
            [one[name].layers for one in found], [one[name].speed for one in found], "o", color=f"C{n}", label=name
        )
    axes.axhline(1, color="tab:gray", lw=0.7, ls="--")
    axes.set(xlabel=f"layers of {DEPTH} that a token takes", ylabel="speed over the full model")
    axes.legend()
