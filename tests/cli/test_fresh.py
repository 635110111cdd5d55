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
    one = parse_member_text(SMALL)
    found, here = measure_in_new_process(one, 3, 24), cost(one.build(0), 3, 24)
    counted = {name: found[name] for name in ("batch", "length", "parameters", "flops", "step_flops", "state", "peak")}
    assert counted == {name: getattr(here, name) for name in counted}
    assert found["process"] is None or found["process"] > found["peak"]


def test_a_refusal_is_told_in_one_line() -> None:
    with pytest.raises(UserError, match="cannot be measured: .*learned positions") as told:
        measure_in_new_process(parse_member_text("gpt(d=16, depth=1, heads=2, length=8)"), 1, 24)
    assert "\n" not in str(told.value)


@pytest.mark.prove
def test_layers_that_are_lent_are_named_by_what_takes_them() -> None:
    one = lend_layers("gpt", ["d=16", "depth=1", "heads=2", "length=64"], resolve("env=t_maze,corridor=3"))
    assert measure_in_new_process(one, 2, 8)["parameters"] == sum(x.numel() for x in one.build(0).parameters())
