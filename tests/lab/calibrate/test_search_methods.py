"""Searches for thresholds by layer: by loops over vectors and tokens, and against what is judged."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kinformer.core.batch import TokenBatch
from kinformer.lab.calibrate.search_methods import (
    ExitScores,
    MeasuredThresholds,
    coordinate_search,
    grid_search,
    random_search,
    score_exits,
)
from kinformer.members.depth_adaptive import depth_adaptive
from kinformer.models.support.exit_losses import ManyExits

TINY = {"d": 16, "depth": 4, "heads": 2, "length": 32, "vocab": 7}
ROWS = torch.tensor([[3, 1, 4, 1, 5], [-1, 2, 6, 5, 3]])
SOURCE = torch.tensor([[3, 1, 4], [2, 6, -1]])


def unmeasured(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    raise AssertionError("wrong arguments are refused before anything is measured")


def by_hand(score_exits: ExitScores, threshold: list[float]) -> tuple[float, float]:
    """Each token goes up until it is sure; the last exit asks nobody."""
    worth, layers, count = 0.0, 0, score_exits.worth.shape[1]
    for token in range(count):
        n = 0
        while n < len(threshold):
            sure = float(score_exits.sure[n, token])
            if sure > threshold[n] or (sure == threshold[n] and not score_exits.strict):
                break
            n += 1
        worth, layers = worth + float(score_exits.worth[n, token]), layers + n + 1
    return worth / count, layers / count


@pytest.mark.parametrize("strict", [False, True])
def test_each_vector_is_measured_as_tokens_go_up(strict: bool, float64: None) -> None:
    table = ExitScores(torch.rand(3, 29).mul(4).round().div(4), torch.rand(4, 29), strict)
    thresholds = torch.cat(
        [torch.rand(40, 3), torch.rand(40, 3).mul(4).round().div(4)]
    )  # of these many are met exactly
    quality, layers = table.measure(thresholds)
    for n, vector in enumerate(thresholds.tolist()):
        assert (float(quality[n]), float(layers[n])) == pytest.approx(by_hand(table, vector), rel=1e-12)


def test_vectors_are_measured_where_the_table_lies() -> None:
    """Vectors are drawn on the CPU, and a model may be elsewhere."""
    table = ExitScores(torch.rand(2, 5, device="meta"), torch.rand(3, 5, device="meta"), False)
    assert all(measured.device.type == "meta" for measured in table.measure(torch.rand(4, 2)))


def test_of_each_segment_of_cost_the_best_is_kept(float64: None) -> None:
    table, tried = ExitScores(torch.rand(3, 17), torch.rand(4, 17), False), []

    def watched(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tried.append(vectors)
        return table.measure(vectors)

    best_found, (vectors,) = random_search(watched, 4, draws=500, segments=5, seed=3), tried
    assert vectors.shape == (500, 3) and 0 <= vectors.min() and vectors.max() < 1 and abs(vectors.mean() - 0.5) < 0.05
    best: dict[int, MeasuredThresholds] = {}
    for vector in vectors.tolist():
        quality, layers = by_hand(table, vector)
        place = min(int((layers - 1) / 3 * 5), 4)
        if place not in best or quality > best[place].quality + 1e-12:
            best[place] = MeasuredThresholds(tuple(vector), quality, layers)
    assert len(best_found) == len(best) > 3
    for ours, (_, theirs) in zip(best_found, sorted(best.items()), strict=True):
        assert ours.quality == pytest.approx(theirs.quality) and by_hand(table, list(ours.threshold)) == pytest.approx(
            ours[1:]
        )
    assert (
        random_search(table.measure, 4, draws=500, segments=5, seed=3)
        == best_found
        != random_search(table.measure, 4, draws=500, seed=4)
    )


def best_by_cost(table: ExitScores, vectors: list[tuple[float, ...]], segments: int) -> list[tuple[float, float]]:
    """Quality and layers of the best vector in each segment of cost, of equal ones the cheapest."""
    best: dict[int, tuple[float, float]] = {}
    for vector in vectors:
        quality, layers = by_hand(table, list(vector))
        place = min(int((layers - 1) / len(vector) * segments), segments - 1)
        if place not in best or (quality, -layers) > (best[place][0] + 1e-12, -best[place][1]):
            best[place] = quality, layers
    return [best[place] for place in sorted(best)]


def test_a_grid_tries_every_combination(float64: None) -> None:
    values, tried = (1.0, 0.7, 0.4, 0.0), []
    table = ExitScores(torch.rand(3, 17), torch.rand(4, 17), False)

    def watched(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tried.extend(map(tuple, vectors.tolist()))
        return table.measure(vectors)

    best_found = grid_search(watched, values, 4, segments=5)
    assert sorted(tried) == sorted(itertools.product(values, repeat=3))
    assert [choice[1:] for choice in best_found] == [pytest.approx(best) for best in best_by_cost(table, tried, 5)]
    assert all(by_hand(table, list(choice.threshold)) == pytest.approx(choice[1:]) for choice in best_found)
    with pytest.raises(ValueError, match="21 thresholds for each of 4 layers is too large: got 194,481 vectors"):
        grid_search(watched, [n / 20 for n in range(21)], 5)


def test_coordinates_end_where_no_change_of_one_layer_is_cheaper(float64: None) -> None:
    """Every vector that differs in one layer takes more layers, or is worse than what is allowed."""
    values = [1 - n / 10 for n in range(11)]
    for seed in range(5):
        torch.manual_seed(seed)
        table, tried = ExitScores(torch.rand(5, 23), torch.rand(6, 23), True), []

        def watched(vectors: torch.Tensor, table: ExitScores = table, tried: list = tried) -> tuple:
            tried.extend(map(tuple, vectors.tolist()))
            return table.measure(vectors)

        least = float(table.worth[-1].mean()) - 0.05
        best_found = coordinate_search(watched, values, 6, least=least, segments=4)
        good = [(by_hand(table, list(vector))[1], vector) for vector in set(tried)]
        good = [pair for pair in good if by_hand(table, list(pair[1]))[0] >= least]
        layers, thresholds = min(good)
        for n, value in itertools.product(range(5), values):
            quality, cost = by_hand(table, [*thresholds[:n], value, *thresholds[n + 1 :]])
            assert cost >= layers - 1e-9 or quality < least + 1e-9
        assert layers < 6 and len(set(tried)) < 11**5 / 100
        assert [choice[1:] for choice in best_found] == [pytest.approx(best) for best in best_by_cost(table, tried, 4)]


def test_of_equal_quality_the_cheapest_is_kept() -> None:
    (best_found,) = random_search(
        lambda vectors: (torch.ones(len(vectors)), 1 + vectors.sum(1)), 4, draws=50, segments=1
    )
    assert best_found.layers == pytest.approx(1 + sum(best_found.threshold)) and best_found.layers < 2


def texts(model: Any) -> Any:
    return ROWS if model.reads == "text" else (SOURCE, ROWS)


@pytest.mark.parametrize(
    ("classifier", "form", "right"), [("probability", "decoder", True), ("geometric", "encoder_decoder", False)]
)
@torch.no_grad()
def test_what_was_said_is_of_each_exit_alone(classifier: str, form: str, right: bool, float64: None) -> None:
    """A stack that ends at an exit says what that exit's row of the table holds, and how sure its tokens are."""
    model = depth_adaptive(**TINY, classifier=classifier, form=form, outputs="each").eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.7)
    table, batch = score_exits(model, [texts(model), texts(model)], right=right), texts(model)
    assert not model.training and table.strict is (classifier == "geometric")
    rows, count = model.every_exit(batch), table.worth.shape[1] // 2
    assert count == int((rows.targets >= 0).sum()) == (7 if form == "decoder" else 11)
    at = (rows.targets >= 0).nonzero().tolist()
    for n in range(4):
        forced(model, n)
        y = readings(model, batch)
        for place, (b, t) in enumerate(at):
            p, target = y[b, t].softmax(-1), int(rows.targets[b, t])
            worth = float(int(p.argmax()) == target) if right else math.log2(float(p[target]))
            assert (
                float(table.worth[n, place]) == float(table.worth[n, count + place]) == pytest.approx(worth, rel=1e-6)
            )
            if n < 3:
                unit = model.exits.rule.stop[0] if classifier == "geometric" else None
                sure = p.max() if unit is None else torch.sigmoid(unit(rows.states[n][b, t]))
                assert float(table.sure[n, place]) == pytest.approx(float(sure), rel=1e-9)


def forced(model: ManyExits, n: int) -> None:
    """All leave at exit n, from 0: copied states are then those of all layers."""
    model.exits.rule.threshold = (*(1.0 for _ in range(n)), *(0.0 for _ in range(3 - n)))


@torch.no_grad()
def readings(model: ManyExits, batch: Any) -> torch.Tensor:
    tokens, inputs = model.inputs(batch)
    return model.logits(tokens[:, :-1] if model.reads == "text" else tokens, **inputs).y


@torch.no_grad()
def test_where_all_leave_alike_the_table_is_what_is_judged(float64: None) -> None:
    model = depth_adaptive(**TINY, classifier="geometric").eval()
    batch = TokenBatch(ROWS, ROWS > 2)
    table = score_exits(model, [batch])
    for n in range(4):
        forced(model, n)
        quality, layers = table.measure(torch.tensor([model.exits.rule.threshold]))
        total, count = model.judge(batch).totals["bits per byte"]
        assert float(quality) == pytest.approx(-float(total / count)) and float(layers) == n + 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: random_search(lambda vectors: (vectors, vectors), 1), "depth=1"),
        (lambda: random_search(lambda vectors: (vectors, vectors), 3, draws=0), "draws=0"),
        (lambda: random_search(lambda vectors: (vectors, vectors), 3, segments=0), "segments=0"),
        (lambda: grid_search(lambda vectors: (vectors, vectors), [1.0, 0.0], 1), "depth=1"),
        (lambda: grid_search(unmeasured, [], 3), "no thresholds to try: got 0 values"),
        (lambda: grid_search(unmeasured, [1.0, 0.0], 3, segments=0), "segments=0"),
        (lambda: coordinate_search(unmeasured, [], 3, least=0.0), "no thresholds to try: got 0 values"),
        (lambda: coordinate_search(unmeasured, [1.0, 0.0], 3, least=0.0, segments=0), "segments=0"),
        (lambda: coordinate_search(lambda vectors: (vectors, vectors), [1.0, 0.0], 1, least=0.0), "depth=1"),
        (lambda: score_exits(depth_adaptive(**TINY), [ROWS]), "Multinomial has no exit threshold"),
        (lambda: score_exits(depth_adaptive(**TINY, classifier="geometric"), [ROWS[:, :1]]), "no token to predict"),
        (lambda: score_exits(depth_adaptive(**TINY, classifier="geometric"), []), "no token to predict"),
    ],
)
def test_what_cannot_be_searched_is_refused(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        wrong()
