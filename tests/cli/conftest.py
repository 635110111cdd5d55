"""Commands in tests ask `cost` in this process, where a user's `compare` starts one for each member: seconds each."""

from dataclasses import asdict
from typing import Any

import pytest

from kinformer.lab.cost.cost import cost
from kinformer.lab.errors import from_user
from kinformer.lab.member_choice import MemberChoice
from kinformer.lab.train.settings import Precision


@pytest.fixture(autouse=True)
def costs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def costs(member: MemberChoice, batch: int, length: int, device: str, precision: Precision) -> dict[str, Any]:
        with from_user(ValueError, LookupError):
            measured = cost(member.build(0).to(device), batch, length, precision=precision)
        return asdict(measured) | {"step_flops": measured.step_flops}

    monkeypatch.setattr("kinformer.cli.support.member_cost.measure_in_new_process", costs)
