"""--device and --precision: every command that computes takes them, and autocast reaches the model and nothing else."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import COMMANDS as COMMAND_LINE
from kinformer.cli.__main__ import run
from kinformer.cli.support.load_model import DTYPES, load_model, with_autocast
from kinformer.core.discover import examples, members
from kinformer.lab.errors import UserError
from tests.cli.folders import folder
from tests.cli.test_commands import fails

BUILDING = ("train", "cost", "check", "export")  # they build a member, test it in float64, or write its weights
COMMANDS = {
    "generate": "{run} --prompt a",
    "evaluate": "{run} --data text=stdlib",
    "look": "{run} --text abc --out {text}.html",
    "read": "{run} {text} --save {text}.state",
    "score": "{run} --texts {text}",
    "fill": "{run} --text a_b",
    "classify": "{run} --text a",
    "forecast": "{run} --data series={text} --out {text}.csv",
    "calibrate": "{run} --data text=stdlib",
    "play": "{run} --env t_maze",
    "knn-lm": "{run} --datastore {text} --data text=stdlib",
    "datastore build": "{run} --data text=stdlib --out {text}.store",
    "datastore search": "{text} --prompt a --model {run}",
}


def test_every_command_that_loads_a_model_takes_both() -> None:
    inside = COMMAND_LINE.commands["datastore"].commands  # type: ignore[attr-defined]
    every = {**COMMAND_LINE.commands, **{f"datastore {name}": command for name, command in inside.items()}}  # type: ignore[attr-defined]
    names = {name: {parameter.name for parameter in command.params} for name, command in every.items()}
    loading = {name for name, parameters in names.items() if "member" in parameters and name not in BUILDING}
    assert loading == {*COMMANDS}
    assert all({"device", "precision"} <= names[name] for name in {*loading, *BUILDING} - {"check", "export"})


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(b"the cat sat on the mat. " * 20)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_loads_its_model_for_a_device_and_a_precision(
    command: str, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def note(where: Path, member: str | None, on: str | None, *rest: Any, precision: str = "?", **_: Any) -> None:
        raise UserError(f"loaded {where.name} on {on} in {rest[2] if len(rest) > 2 else precision}")

    for module in ("datastore_tables", "load_model"):  # in this order: the first imports the second
        monkeypatch.setattr(f"kinformer.cli.support.{module}.load_model", note)
    monkeypatch.setattr("kinformer.cli.support.datastore_tables.open_datastore", lambda *_: None)
    where = folder(tmp_path / "run", "bert" if command == "fill" else "gpt")
    words = [*command.split(), *COMMANDS[command].format(run=where, text=text).split()]
    fails(capsys, [*words, "--device", "cuda:7", "--precision", "bf16"], "loaded run on cuda:7 in bf16")
    fails(capsys, [*words, "--precision", "fp32"], "loaded run on None in float32")  # another spelling
    fails(capsys, [*words, "--precision", "bf17"], "wrong --precision: got 'bf17', expected float32, bf16 or fp16")


@pytest.mark.parametrize("command", ["generate", "evaluate", "read", "show"])
def test_a_missing_device_is_said_before_any_work(
    command: str, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "gpt --cost" if command == "show" else COMMANDS[command].format(run=tmp_path / "run", text=text)
    folder(tmp_path / "run", "gpt", length=8)
    (tmp_path / "run" / "model.safetensors").write_bytes(b"")  # a model that is read before would fail otherwise
    fails(capsys, [command, *words.split(), "--device", "cuda:99"], "there is no device 'cuda:99' on this machine")


@torch.no_grad()
@pytest.mark.parametrize("precision", DTYPES)
def test_autocast_reaches_the_model_and_nothing_else(precision: str, tmp_path: Path) -> None:
    run = Path(folder(tmp_path / "run", "gpt", length=16))
    model, exact = load_model(run, None, "cpu", precision=precision), load(run)
    seen: set[torch.dtype] = set()

    def note(_: nn.Module, __: Any, y: Tensor) -> None:
        seen.add(y.dtype)

    handles = [part.register_forward_hook(note) for part in model.modules() if isinstance(part, nn.Linear)]
    torch.manual_seed(0)
    tokens = torch.randint(256, (2, 8))
    low, full = model.logits(tokens).y, exact.logits(tokens).y
    assert seen == {DTYPES[precision]} and 0 < float((low.float() - full).abs().max()) < 0.1 * float(full.abs().max())
    assert model.judge(tokens).totals.keys() == exact.judge(tokens).totals.keys()
    assert (torch.randn(2, 2) @ torch.randn(2, 2)).dtype == torch.float32
    for handle in handles:
        handle.remove()
    twin = copy.deepcopy(model).double()  # float64 stays exact, as the probes of a training need it
    assert torch.equal(twin.logits(tokens).y, copy.deepcopy(exact).double().logits(tokens).y)
    assert type(model).__name__ == type(exact).__name__ and isinstance(model, type(exact))
    kind = type(exact)
    lower = with_autocast(exact, DTYPES[precision])
    assert type(exact) is kind and all(a is b for a, b in zip(lower.parameters(), exact.parameters(), strict=True))
    assert torch.equal(lower.logits(tokens).y, low) and torch.equal(exact.logits(tokens).y, full)  # type: ignore[operator]


@pytest.mark.parametrize("precision", DTYPES)
def test_a_text_is_generated_and_measured_in_low_precision(
    precision: str, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kinformer.lab.cost.growth.LENGTHS", (16, 32))
    where = folder(tmp_path / "run", "gpt", position="rotary")
    low = ["--precision", precision]
    for words in (
        ["evaluate", where, "--data", f"text={text}", "--bytes", "40"],
        ["read", where, str(text), "--save", f"{text}.state", "--overwrite"],
        ["generate", where, "--state", f"{text}.state", "--prompt", "a", "--tokens", "3", "--temperature", "0"],
        ["generate", where, "--prompt", "a", "--tokens", "3", "--beam", "2"],
        ["show", "causal", "--cost", "--length", "3"],
    ):
        assert run([*words, *low]) == 0, capsys.readouterr().err
    fails(capsys, ["show", "causal", "--precision", "bf16"], "--precision has no effect without --cost; leave it out")


@torch.no_grad()
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "sinkhorn_encoder" else pytest.mark.prove) for name in members()]
)
def test_every_member_is_judged_in_low_precision(name: str) -> None:
    make = next(example.make for place, example in examples("members") if place == name)
    torch.manual_seed(0)
    exact = make().eval()
    batch = exact.sample(2, 24, 0)
    full = exact.judge(batch).totals
    for dtype in DTYPES.values():
        low = with_autocast(copy.deepcopy(exact), dtype).judge(batch).totals  # type: ignore[operator]
        for metric, (total, count) in full.items():
            assert float(low[metric][0]) == pytest.approx(float(total), rel=0.05, abs=0.05 * float(count)), metric
