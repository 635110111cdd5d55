"""Recommended members are few, are not dominated, and have the best mean or the lowest costs of the right members."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinformer.lab.advise.arena_scores import BITS, ArenaScore, ArenaScores
from kinformer.lab.advise.caveats import caveats
from kinformer.lab.advise.estimates import TrainingEstimate
from kinformer.lab.advise.fit import Fit
from kinformer.lab.advise.ranking import _recommend_readable
from kinformer.lab.advise.recommendation import MOST, dominates, recommend
from kinformer.lab.data.resolve import resolve
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import parse_member
from kinformer.lab.train.settings import Settings

ESTIMATE = TrainingEstimate(parse_member("gpt", ()), 1, 1, 1.0, 1.0, 1.0, True)
Ends = dict[str, tuple[float, float]]


def fit(name: str, flops: float, state: float | None, memory: float) -> Fit:
    return Fit(name, replace(ESTIMATE, row_flops=flops, state_bytes=state), memory, 1, None, 256)


def task(name: str, intervals: Ends, metric: str = BITS, single: tuple[str, ...] = ()) -> ArenaScores:
    """A task with the intervals of members; those in `single` have one seed."""
    members = {
        member: ArenaScore(
            member, (low + high) / 2, *((None, None) if member in single else ((low, high), 1)), 3, 0, False
        )
        for member, (low, high) in intervals.items()
    }
    return ArenaScores(name, metric, 1 if metric == BITS else -1, "", {}, {}, True, members)


def names(recommendations: list[Any]) -> list[str]:
    return [recommendation.fit.name for recommendation in recommendations]


def check_drawn_members(seed: int) -> int:
    """Compare the recommended members with the rules, on drawn costs and scores, and return their number."""
    rng = random.Random(seed)
    members = ["gpt", *(f"m{n}" for n in range(9))]
    fits = [fit(name, *(rng.randrange(1, 6) for _ in range(3))) for name in members if rng.random() < 0.8]
    tasks = []
    for metric in (BITS, "accuracy", "accuracy")[: rng.randrange(1, 4)]:
        centre = {name: rng.uniform(2.0, 3.0) for name in members if name == "gpt" or rng.random() < 0.7}
        intervals = {name: (x - 0.1, x + rng.choice((0.1, 0.3))) for name, x in centre.items()}
        tasks.append(task(f"t{len(tasks)}", intervals, metric, ("m0",)))
    chosen = names(recommend(fits, "gpt", tasks))
    scores = [each.ranked for each in tasks]
    costs = {each.name: (each.estimate.row_flops, each.estimate.state_bytes or 0, each.process) for each in fits}

    def better(n: int, a: str, b: str) -> bool:
        (a_low, a_high), (b_low, b_high) = scores[n][a].interval, scores[n][b].interval  # type: ignore[misc]
        return a_high < b_low if n == 0 else a_low > b_high

    def dominated(a: str, b: str) -> bool:
        """Whether a is dominated by b."""
        common = [n for n, ranked in enumerate(scores) if a in ranked]
        if not common or any(b not in scores[n] for n in common):
            return False
        worse = any(x < y for x, y in zip(costs[a], costs[b], strict=True)) or any(better(n, a, b) for n in common)
        return not worse and (costs[a] != costs[b] or any(better(n, b, a) for n in common))

    front = [name for name in costs if not any(dominated(name, other) for other in costs)]
    assert len(chosen) == len(set(chosen)) <= MOST and {*chosen} <= {*front}
    means = {name: score.mean for name, score in scores[0].items()}
    if measured := [name for name in front if name in means]:
        near = [name for name in measured if means[name] <= 1.1 * means["gpt"]]
        assert means[chosen[0]] == min(means[name] for name in measured) and {*chosen[1:]} <= {*near}
        assert len(chosen) == min(MOST, len({*near, chosen[0]}))
        if near:
            assert min(costs[name][0] for name in chosen if name in near) == min(costs[name][0] for name in near)
    elif "gpt" in front:
        assert chosen[0] == "gpt"
    return len(chosen)


def test_drawn_members_are_chosen_by_the_rules() -> None:
    assert {check_drawn_members(seed) for seed in range(300)} >= {1, 2, 3}


def test_a_difference_within_the_seeds_is_no_difference() -> None:
    cheap, dear = fit("cheap", 1, 1, 1), fit("dear", 2, 1, 1)
    overlap = task("novel", {"cheap": (2.5, 2.7), "dear": (2.4, 2.6)})
    apart = task("novel", {"cheap": (2.5, 2.7), "dear": (2.3, 2.4)})
    assert dominates(cheap, dear, [overlap]) and not dominates(dear, cheap, [overlap])
    assert not dominates(cheap, dear, [apart])
    recall = task("recall", {"cheap": (0.1, 0.2), "dear": (0.8, 0.9)}, "accuracy")
    assert not dominates(cheap, dear, [overlap, recall])
    same = fit("same", 1, 1, 1)
    assert not dominates(cheap, same, [task("novel", {"cheap": (2.0, 2.2), "same": (2.1, 2.3)})])
    assert dominates(cheap, same, [task("novel", {"cheap": (2.0, 2.2), "same": (2.3, 2.4)})])


def test_the_best_mean_is_that_of_members_that_no_other_dominates() -> None:
    fits = [fit("gpt", 2, 2, 2), fit("dear", 2, 2, 2), fit("cheap", 1, 1, 1)]
    text = task("novel", {"gpt": (2.6, 2.8), "dear": (2.4, 2.6), "cheap": (2.45, 2.65)})
    chosen = recommend(fits, "gpt", [text])
    assert names(chosen) == ["cheap"] and dominates(fits[2], fits[1], [text])  # although dear has the best mean
    assert chosen[0].reason.startswith(
        "It has the best mean bits per byte among members that no other dominates (its 95% interval overlaps with that "
        "of dear, gpt)."
    )


def test_a_member_that_is_ranked_on_another_task_than_the_text_has_a_reason() -> None:
    fits = [fit("gpt", 2, 2, 2), fit("cheap", 1, 1, 1), fit("recalls", 1, 1, 1), fit("absent", 1, 1, 1)]
    text = task("novel", {"gpt": (2.6, 2.8), "cheap": (2.4, 2.6)}, single=("cheap",))
    recall = task("recall", {"gpt": (0.8, 0.9), "cheap": (0.8, 0.9), "recalls": (0.8, 0.9)}, "accuracy")
    chosen = recommend(fits, "gpt", [text, recall])
    notes = list(caveats("lm", chosen, fits, [text, recall], 64, "gpt"))
    assert names(chosen) == ["gpt"]
    assert "Quality: recommended only if no member with a rank fits: cheap (3 seeds only)." in notes
    assert "Quality: recommended only if no member with a rank fits: recalls, absent (not measured)." in notes


def test_data_that_no_member_reads_are_refused_with_a_reason_about_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_bytes(b"the cat sat on the mat. " * 40)
    data = resolve(f"text={tmp_path}/text.txt").read()
    monkeypatch.setattr(
        "kinformer.lab.advise.ranking._unreadable", lambda fits, *_: {each.name: "too long rows" for each in fits}
    )
    refused = {"lstm": "lstm was not measured"}
    with pytest.raises(UserError, match="too long rows"):
        _recommend_readable([fit("gpt", 1, 1, 1)], "gpt", [], data, Settings(), refused)


def test_a_member_without_a_ranked_score_dominates_none_and_is_not_dominated() -> None:
    cheap, dear = fit("cheap", 1, 1, 1), fit("dear", 2, 2, 2)
    assert not dominates(cheap, dear, [task("novel", {"dear": (2.4, 2.6)})])
    assert not dominates(cheap, dear, [task("novel", {"cheap": (2.4, 2.6)})])
    assert not dominates(cheap, dear, [task("novel", {"cheap": (2.0, 2.1), "dear": (2.4, 2.6)}, single=("cheap",))])
    assert not dominates(cheap, dear, [])


def test_without_scores_the_baseline_comes_first_and_members_without_a_state_are_compared_by_the_other_costs() -> None:
    fits = [fit("quick", 1, None, 9), fit("bert", 5, None, 5), fit("small", 9, None, 1)]
    chosen = recommend(fits, "bert", [])
    assert names(chosen) == ["bert", "quick", "small"]
    assert all("Its quality is not known." in each.reason and "state" not in each.reason for each in chosen)


@pytest.mark.parametrize(("mean", "is_recommended"), [(2.74, True), (2.76, False)])
def test_a_cheap_member_may_have_ten_percent_more_bits_than_the_baseline(mean: float, is_recommended: bool) -> None:
    scores = task("novel", {"gpt": (2.4, 2.6), "cheap": (mean - 0.05, mean + 0.05)})
    chosen = recommend([fit("gpt", 2, 2, 2), fit("cheap", 1, 1, 1)], "gpt", [scores])
    assert names(chosen) == (["gpt", "cheap"] if is_recommended else ["gpt"])
