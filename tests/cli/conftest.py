"""Commands in tests ask `cost` in this process, where a user's `compare` starts one for each member: seconds each."""

from dataclasses import asdict
from typing import Any

import pytest

from kinformer.cli.errors import from_user
from kinformer.cli.support.wanted import Wanted
from kinformer.lab.cost.cost import cost


@pytest.fixture(autouse=True)
def costs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def costs(member: Wanted, batch: int, length: int) -> dict[str, Any]:
        with from_user(ValueError, LookupError):
            measured = cost(member.build(0), batch, length)
        return asdict(measured) | {"step_flops": measured.step_flops}

    monkeypatch.setattr("kinformer.cli.support.trials.costs", costs)
