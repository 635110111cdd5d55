"""Numbers that make no sense are one line of ours, whatever takes them: none of them reaches PyTorch."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.cli.__main__ import run
from kinformer.decoding.generate import generate
from kinformer.lab.data.lanes import DocumentLanes, Lanes
from kinformer.lab.data.random_windows import RandomWindows
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.train.budget import MinuteBudget, StepBudget
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.settings import Settings
from tests.cli.folders import folder
from tests.lab.train import tiny
from tests.unhooked import refusals, unhooked

MODEL, TEXT, PROMPT = tiny.bigram(), torch.arange(60, dtype=torch.uint8), torch.tensor([[1, 2]])
NONE = [2.5, True, "3", math.nan, math.inf, -math.inf, torch.tensor(3), [3]]  # of which none is a whole number
ODD = [True, "3", math.nan, math.inf, -math.inf, torch.tensor(3), [3]]  # and none of these a number
FEW, SOME = [-1, 0], [-1]  # too small, where 1 or 0 is the least


def taking(call: Callable[..., Any], **usual: Any) -> Callable[[str, Any], Any]:
    """A call with its usual keywords and one changed."""
    return lambda name, value: call(**{**usual, name: value})


def writing(name: str, value: Any) -> Any:
    """Generation with one argument changed; some count only beside another."""
    beside: dict[str, dict[str, Any]] = {name: {"beam": 2} for name in ("length_penalty", "best")}
    beside["prompt_lookup"] = {"temperature": 0}
    return generate(MODEL, PROMPT, **{"steps": 2, **beside.get(name, {}), name: value})


measuring = taking(partial(evaluate, MODEL, TEXT), length=8)
windows, lanes = (taking(partial(kind, TEXT), batch=2, length=8) for kind in (RandomWindows, Lanes))
documents = taking(partial(DocumentLanes, SplitTokens(TEXT, torch.tensor([0, 20]))), batch=2, length=8)
settings = taking(Settings)
TAKES: dict[str, tuple[Callable[[str, Any], Any], dict[str, tuple[list[Any], list[Any]]]]] = {
    "generate": (
        writing,
        {
            "steps": ([*NONE, *SOME], [0, 3]),
            "temperature": ([*ODD, *SOME], [0, 1.5, 10**30]),
            "top_k": ([*NONE, *FEW], [1, 3, 10**30]),
            "top_p": ([*ODD, *FEW, 2], [0.5, 1]),
            "min_p": ([*ODD, *SOME, 2], [0, 0.5, 1]),
            "repetition_penalty": ([*ODD, *FEW, 1e-9, 1001], [0.5, 1, 1000]),
            "beam": ([*NONE, *FEW], [1, 2]),
            "best": ([*NONE, *FEW, 3], [1, 2]),
            "prompt_lookup": ([*NONE, *FEW], [1, 10**30]),
            "length_penalty": ([*ODD, *SOME, 41, 10**30], [0, 0.6]),
            "seed": ([*NONE[:-1], 2**64, -(2**63) - 1, [2.5], [2**64]], [0, 2**64 - 1, [3]]),
            "stop": ([*NONE[:-1], 2**63, [2.5], [3, 2**63], []], [0, 3, [3], [3, -1]]),
        },
    ),
    "Settings": (
        settings,
        {
            **{name: ([*NONE, *FEW], [1, 3]) for name in ("batch", "length", "measures")},
            "accumulate": ([*NONE, *FEW, 17], [1, 16]),
            "seed": ([*NONE, -1, 2**63], [0, 2**63 - 1]),
            "valid_bytes": ([*NONE, *FEW, 1], [2, None]),
            "lr": ([*ODD, *FEW], [1e-3, 1, None]),
            "clip": ([*ODD, *FEW, None], [0.5, 1]),
            "decay": ([*ODD, *SOME, None], [0, 0.1]),
        },
    ),
    "StepBudget": (lambda name, value: StepBudget(value), {"steps": ([*NONE, *FEW], [1])}),
    "MinuteBudget": (lambda name, value: MinuteBudget(value), {"minutes": ([*ODD, *FEW], [1, 0.5])}),
    "evaluate": (
        measuring,
        {
            "length": ([*NONE, *FEW], [1, 100]),
            "limit": ([*NONE, *FEW], [30, 10**30]),
            "stride": ([*NONE, *FEW, 9], [1, 8]),
            "lanes": ([*NONE, *FEW, 60], [1, 3]),
        },
    ),
    "RandomWindows": (
        windows,
        {
            **{name: ([*NONE, *FEW], [1, 3]) for name in ("batch", "length")},
            "seed": ([*NONE, *SOME], [0, 2**64]),
            "after": ([*NONE, *SOME], [0, 1]),
        },
    ),
    "Lanes": (lanes, {name: ([*NONE, *FEW], [1, 3]) for name in ("batch", "length")}),
    "DocumentLanes": (documents, {name: ([*NONE, *FEW], [1, 3]) for name in ("batch", "length")}),
}


def refusal_messages() -> dict[str, list[list[str]]]:
    """By who takes a number and its name: what is said of each wrong one, and of each right one."""
    return {
        f"{taker} {name}": [refusals([partial(call, name, value) for value in values]) for values in lists]
        for taker, (call, names) in TAKES.items()
        for name, lists in names.items()
    }


@pytest.mark.parametrize(("taker", "name"), [(taker, name) for taker, (_, names) in TAKES.items() for name in names])
def test_a_number_makes_sense_or_is_refused_in_one_line(taker: str, name: str) -> None:
    wrong, right = unhooked(f"{__name__}:{refusal_messages.__name__}")[f"{taker} {name}"]
    assert len(wrong) == len(TAKES[taker][1][name][0]) and not any(right), right
    for line in wrong:
        assert line.startswith("ValueError: ") and name.rstrip("s") in line and "\n" not in line and len(line) < 200, (
            line
        )


def test_numbers_of_the_command_line_have_an_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_bytes(b"the cat sat. " * 40)
    words = ["compare", "gpt", "--data", f"text={tmp_path}/a", "--out", f"{tmp_path}/o", "--steps", "1"]
    assert run([*words, "--seeds", "99999999999999"]) == 2
    assert "Input should be less than or equal to 1000" in capsys.readouterr().err
    words = ["generate", folder(tmp_path / "gpt", "gpt"), "--prompt", "a", "--beam", "2", "--length-penalty", "1e30"]
    assert run(words) == 2
    assert "length_penalty=1e+30 is not a number from 0 to 40" in capsys.readouterr().err
