"""Claims: verdicts by their rule, what is measured by loops, and the command."""

from collections import deque
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kinformer.claims import bigbird_paths, blockbert_memory, sparse_transformer_reach
from kinformer.claims.support.verdict import Claim, Measure, slope
from kinformer.cli import __main__ as command
from kinformer.discover import modules
from kinformer.patterns.band import Band

SPREAD = (0.9, 1.0, 1.1)  # a mean of 1, twice its standard error is 0.115


@pytest.mark.parametrize(
    ("measure", "verdict"),
    [
        (Measure("", SPREAD, "least", 0.5), "holds"),
        (Measure("", SPREAD, "most", 0.5), "does not hold"),
        (Measure("", SPREAD, "least", 1.05), "not resolved"),
        (Measure("", SPREAD, "least", 0.95), "not resolved"),  # met, but by less than two standard errors
        (Measure("", SPREAD, "least", 0.95, nothing=0.0), "holds"),
        (Measure("", SPREAD, "most", 1.2, nothing=2.0), "holds"),
        (Measure("", SPREAD, "most", 1.2, nothing=1.1), "not resolved"),
        (Measure("", (1.0,), "least", 1.0), "holds"),
        (Measure("", (0.99,), "least", 1.0), "does not hold"),
        (Measure("", SPREAD, "near", 1.0, within=0.2), "holds"),
        (Measure("", SPREAD, "near", 1.0, within=0.1), "not resolved"),
        (Measure("", SPREAD, "near", 2.0, within=0.2), "does not hold"),
    ],
)
def test_the_verdict_follows_the_threshold_and_two_standard_errors(measure: Measure, verdict: str) -> None:
    assert measure.verdict == verdict


def test_a_claim_holds_where_all_its_measures_do() -> None:
    good, bad, open_ = (Measure("", SPREAD, "least", at) for at in (0.5, 1.5, 1.05))

    def verdict(*measures: Measure) -> str:
        return Claim("", "", measures, {}, {}).verdict

    assert [verdict(good, good), verdict(good, open_), verdict(good, open_, bad)] == [
        "holds", "not resolved", "does not hold"
    ]  # fmt: skip


def test_a_power_is_found() -> None:
    assert slope((10, 100, 1000), (20, 20 * 10**1.5, 20 * 10**3)) == pytest.approx(1.5)


def searched(near: torch.Tensor) -> list[list[int]]:
    """The lengths of all shortest paths, breadth first from each node."""
    found = []
    for start in range(len(near)):
        far, queue = {start: 0}, deque([start])
        while queue:
            node = queue.popleft()
            for other in near[node].nonzero()[:, 0].tolist():
                if other not in far:
                    far[other] = far[node] + 1
                    queue.append(other)
        found.append([far[n] for n in range(len(near))])
    return found


def test_paths_are_those_of_a_search() -> None:
    pattern = bigbird_paths.graphs(1)["window and random blocks"]
    matrix = pattern.matrix(40)
    lengths = torch.tensor(searched(matrix | matrix.T)).double()
    found = bigbird_paths.paths(pattern, 40)
    assert found.mean == pytest.approx(float(lengths.sum()) / (40 * 39)) and found.diameter == lengths.max()
    assert bigbird_paths.paths(Band(1), 10) == (pytest.approx(11 / 3), 9)
    assert bigbird_paths.paths(Band(0), 4).diameter == float("inf")


def test_reach_is_what_is_known_after_so_many_layers() -> None:
    for form in sparse_transformer_reach.FORMS:
        both = sparse_transformer_reach.factors(form, 16, 2)
        known = [{i} for i in range(16)]
        for pattern in both:
            matrix = pattern.matrix(16)
            known = [set.union(known[i], *(known[j] for j in range(16) if matrix[i, j])) for i in range(16)]
        found = sparse_transformer_reach.reached(both, 16)
        assert [set(row.nonzero()[:, 0].tolist()) for row in found] == known
        assert sparse_transformer_reach.share(both, 16) == 1
        assert sparse_transformer_reach.share(both[:1], 16) < 1  # one set alone does not
    with pytest.raises(ValueError, match="read ahead"):
        sparse_transformer_reach.share([Band(1)], 4)


def test_blocks_keep_their_share() -> None:
    qkv = blockbert_memory.inputs(0, 24)
    torch.testing.assert_close(blockbert_memory.by_blocks(qkv, 3), blockbert_memory.masked(qkv, 3))
    dense = blockbert_memory.kept(qkv, 1)
    assert dense >= 24 * 24 * 8 * blockbert_memory.HEADS and blockbert_memory.kept(qkv, 3) * 3 == dense


def test_every_claim_that_lies_in_the_folder_can_be_measured_and_drawn(monkeypatch: Any) -> None:
    from matplotlib.figure import Figure

    monkeypatch.setattr(blockbert_memory, "cost", lambda *_: SimpleNamespace(activations=1))  # takes seconds
    found = {
        "bigbird_paths": bigbird_paths.claim((0, 1), sizes=(16, 32)),
        "blockbert_memory": blockbert_memory.claim((0, 1), blocks=(2,), length=48),
        "sparse_transformer_reach": sparse_transformer_reach.claim((0, 1), lengths=(64, 256), steps=0),
    }
    assert set(found) == set(modules("claims"))
    for one in found.values():
        assert one.verdict == "holds" and one.says and one.source and one.drawn
        for draw in one.drawn.values():
            draw(Figure().subplots())


def toy(seeds: Any) -> Claim:
    return Claim(
        "one is one", "arithmetic", (Measure("one", (1.0,) * len(seeds), "least", 1),), {"two": "2"}, {"": toy_drawn}
    )


def toy_drawn(axes: Any) -> None:
    axes.plot([1])


def test_the_command(tmp_path: Any, capsys: Any, monkeypatch: Any) -> None:
    module = ModuleType("toy", "A toy.")
    module.claim = toy  # type: ignore[attr-defined]
    monkeypatch.setattr("kinformer.discover.modules", lambda kind: {"toy": module})
    assert command.run(["claim"]) == 0 and "toy" in capsys.readouterr().out
    assert command.run(["claim", "toy", "--out", str(tmp_path / "here")]) == 0
    said = capsys.readouterr().out
    assert "one is one" in said and "holds" in said and "wanted at least 1" in said and "two: 2" in said
    assert (tmp_path / "here" / "toy.png").stat().st_size and "holds" in (tmp_path / "here" / "toy.txt").read_text()
    assert command.run(["claim", "toi"]) == 2 and "toy" in capsys.readouterr().err
