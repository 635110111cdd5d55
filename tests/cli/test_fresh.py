"""Fresh: a member's costs by a process of its own are those of this one, and its refusal is told in one line."""

from pathlib import Path

import pytest

from kinformer.cli.support.lent_layers import lend_layers
from kinformer.cli.support.member_cost import measure_in_new_process
from kinformer.lab.cost.cost import cost
from kinformer.lab.data.resolve import resolve
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import parse_member_text

SMALL = "gpt(d=16, depth=2, heads=2, pattern=(Causal() & Band(4), Causal() & Strided(3)))"


def test_a_process_of_its_own_counts_what_this_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder too whose files have names of modules."""
    (tmp_path / "random.py").write_text("raise ImportError('of the working folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    member = parse_member_text(SMALL)
    measured, expected = measure_in_new_process(member, 3, 24), cost(member.build(0), 3, 24)
    counted = {
        name: measured[name] for name in ("batch", "length", "parameters", "flops", "step_flops", "state", "peak")
    }
    assert counted == {name: getattr(expected, name) for name in counted}
    assert measured["process"] is None or measured["process"] > measured["peak"]


def test_a_refusal_is_told_in_one_line() -> None:
    with pytest.raises(UserError, match=r"cannot measure the cost of gpt\([^:]*\): .*learned positions") as caught:
        measure_in_new_process(parse_member_text("gpt(d=16, depth=1, heads=2, length=8)"), 1, 24)
    assert "\n" not in str(caught.value)


@pytest.mark.prove
def test_layers_that_are_lent_are_named_by_what_takes_them() -> None:
    member = lend_layers("gpt", ["d=16", "depth=1", "heads=2", "length=64"], resolve("env=t_maze,corridor=3"))
    assert measure_in_new_process(member, 2, 8)["parameters"] == sum(x.numel() for x in member.build(0).parameters())
