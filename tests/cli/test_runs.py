"""Runs from the command line: resumed, begun from weights, refused in one line."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.cli.support.training import prepare
from kinformer.cli.support.training_phases import plan_phases
from kinformer.lab.data.resolve import resolve
from kinformer.lab.member_choice import parse_member
from kinformer.lab.train.fit import fit
from kinformer.lab.train.history import History
from kinformer.lab.train.run_folder import RunFolder
from tests.cli.test_commands import fails

Command = Callable[..., list[str]]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 200)

    def words(*options: str, out: str = "run", steps: int = 6, length: int = 8) -> list[str]:
        member = ["train", "gpt", "d=16", "depth=1", "heads=2", f"length={length}", "--data", f"text={tmp_path}/text"]
        return [*member, "--out", f"{tmp_path / out}", "--steps", f"{steps}", "--batch", "4", "--length", "8", *options]

    return words


def same(first: Path, other: Path) -> bool:
    a, b = load(first).state_dict(), load(other).state_dict()
    return all(torch.equal(a[name], b[name]) for name in a)


def losses(folder: Path) -> list[float]:
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "step" in line]


def test_a_run_is_gone_on_with_and_made_longer(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command("--resume")) == 0
    captured = capsys.readouterr()
    assert "run has no checkpoint yet: the training starts from the beginning" in captured.err
    assert f"at the last step, 6, saved in {tmp_path}/run and {tmp_path}/run/best; " in captured.out
    assert captured.out.endswith(" tokens/s\n") and captured.out.count("bits per byte") == 1
    assert run(command("--resume", steps=9)) == 0
    assert "continues from step 6" in capsys.readouterr().err and History.read(tmp_path / "run").step == 9
    fails(capsys, command(), "holds a model of 'gpt' that was trained before, which would be overwritten")
    fails(capsys, command("--resume", "--lr", "0.1"), "got --lr 0.1, expected --lr 0.002. Pass --lr 0.002")
    fails(capsys, command("--resume", "--schedule", "linear"), "got --schedule linear, expected --schedule cosine")
    fails(capsys, command("--resume", "--eps", "1e-9"), "got --eps 1e-09, expected --eps 1e-08")
    assert RunFolder(tmp_path / "run").step == 9


def test_weights_of_another_run_are_begun_with(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(steps=40)) == 0
    assert run(command("--from", f"{tmp_path}/run/best", out="more", steps=1, length=16)) == 0
    first, anew = (losses(tmp_path / name) for name in ("run", "more"))
    assert len(anew) == 1 and anew[0] < sum(first[-10:]) / 10 + 0.5 < first[0]  # it goes on from where that was
    assert load(tmp_path / "more").member.keywords["length"] == 16
    fails(capsys, command("--from", f"{tmp_path}/none", out="x"), "there is no file or folder")
    wide = [word.replace("d=16", "d=32") for word in command("--from", f"{tmp_path}/run", out="x")]
    fails(capsys, wide, "got weights for d=16, expected weights for d=32. Only windows")
    other = [word if word != "gpt" else "llama" for word in command("--from", f"{tmp_path}/run", out="x")]
    fails(
        capsys,
        [word for word in other if "length=" not in word],
        "run belongs to the member gpt, not to llama, and has other layers. Give",
    )
    assert not (tmp_path / "x").exists()


def test_weights_that_are_not_trained_must_come_from_somewhere(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """A probe over random layers learns nothing of use."""
    calm = ["depth=2" if word == "depth=1" else word for word in command(out="calm")]
    calm[1] = "calm"
    frozen = [*calm[:2], "confidence=probe", *calm[2:], "frozen=true"]
    fails(
        capsys,
        frozen,
        "frozen=true trains 2 of 30 weights, but the others are frozen and would stay random; give --from",
    )
    assert run([*calm[:2], "confidence=probe", *calm[2:]]) == 0
    assert run([*frozen, "--from", f"{tmp_path}/calm", "--overwrite"]) == 0
    compare = ["compare", "gpt", "calm(confidence=probe,frozen=true)", *command()[command().index("--data") :]]
    fails(capsys, compare, "but the others are frozen and would stay random; leave it out, because a comparison trains")


def test_options_reach_the_training(tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(out="plain")) == 0
    assert run(command("--accumulate", "2", "--checkpointing", "--device", "cpu", "--tensorboard", out="pieces")) == 0
    assert any((tmp_path / "pieces/tensorboard").iterdir()) and not (tmp_path / "plain/tensorboard").exists()
    assert losses(tmp_path / "pieces") == pytest.approx(losses(tmp_path / "plain"), rel=1e-4)
    assert run(command("--precision", "bf16", out="rough")) == 0 and not same(tmp_path / "rough", tmp_path / "plain")
    assert run(command("--clip", "0.001", out="clipped")) == 0 and not same(tmp_path / "clipped", tmp_path / "plain")
    fails(
        capsys,
        command("--accumulate", "5", out="x"),
        "wrong accumulate: got 5, expected at most 4, the rows of a batch",
    )
    fails(capsys, command("--device", "gpu7", out="x"), "there is no device 'gpu7' on this machine")
    fails(capsys, command("--clip", "0", out="x"), "wrong clip: got 0.0, expected a number above 0")
    assert not (tmp_path / "x").exists()


def test_a_phase_that_was_stopped_goes_on_where_it_was(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kinformer.lab.train.loop import Training

    then = ("--then", "steps=4")
    assert run(command(*then, out="whole")) == 0
    step = Training.step

    def stop(training: Training, spent: float) -> None:
        step(training, spent)
        if training.history.step == 2 and training.budget.count == 4:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", stop)
        assert run(command(*then)) == 128 + signal.SIGTERM
    assert "stopped at step 2; the weights are kept" in capsys.readouterr().err
    assert run(command(*then, "--resume")) == 0
    captured = capsys.readouterr()
    assert captured.out.count("(phase ") == 1 and "(phase 2 of 2): continues from step 2" in captured.err
    assert same(tmp_path / "run", tmp_path / "whole") and same(tmp_path / "run/best", tmp_path / "whole/best")


def test_longformer_s_five_phases_are_four_words(tmp_path: Path) -> None:
    """Lengths, steps, rates and windows of appendix B of arXiv:2004.05150, from the first phase and what follows it."""
    (tmp_path / "text").write_bytes(b"x" * 1000)
    member = parse_member("longformer_lm", ["d=48", "depth=12", "heads=4", "window=32", "top=8192"])
    job = prepare(resolve(f"text={tmp_path}/text"), 430_000, None, batch=1, length=2048, lr=2.5e-4)
    phases = plan_phases(
        member, job, ["steps=50000", "steps=50000", "steps=35000", "steps=5000,length=23040"], tmp_path
    )
    settings = [phase.job.settings for phase in phases]
    assert [setting.length for setting in settings] == [2048, 4096, 8192, 16384, 23040]
    assert [setting.plan.lr for setting in settings if setting.plan] == [2.5e-4 / 2**n for n in range(5)]
    assert settings[4].plan is not None and settings[4].plan.lr == 1.5625e-5
    assert [phase.job.budget.count for phase in phases] == [430_000, 50_000, 50_000, 35_000, 5_000]
    assert [phase.choice.keywords["window"] for phase in phases] == [32, 64, 128, 256, 512]
    assert {phase.choice.keywords["top"] for phase in phases} == {8192}
    warm = [setting.plan.warmup * phase.job.budget.count for setting, phase in zip(settings, phases, strict=True)]
    assert warm == pytest.approx([10_000, 5_000, 5_000, 3_500, 500])  # a tenth, at most 10,000 steps


def test_sigterm_ends_a_command_with_its_own_code_and_all_saved(tmp_path: Path, command: Command) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kinformer.cli", *command(steps=1_000_000)], stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "run/metrics.jsonl"
    while not metrics.is_file() or metrics.read_text().count("step") < 5:
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM and "stopped at step" in err.splitlines()[-1]
    assert RunFolder(tmp_path / "run").step == History.read(tmp_path / "run").step >= 5


def test_what_cannot_be_gone_on_with_is_told_and_kept(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command()) == 0
    weights = tmp_path / "run" / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) // 2])
    fails(capsys, command("--resume"), f"{weights} is truncated")
    fails(capsys, command("--resume"), f"; --from {tmp_path}/run/best with another --out")
    weights.write_bytes(data)
    (tmp_path / "run" / "trainer").rename(tmp_path / "away")
    fails(
        capsys,
        command("--resume"),
        f"cannot resume: {tmp_path}/run/trainer, the training state, is missing; --from {tmp_path}/run with",
    )
    fails(capsys, command("--resume"), "another --out starts from its weights, --overwrite starts again")
    assert weights.read_bytes() == data and (tmp_path / "run" / "best").is_dir()


@pytest.mark.parametrize("name", ["trainer/6/trainer.safetensors", "trainer/6/trainer.json", "metrics.jsonl"])
@pytest.mark.parametrize("spoil", ["cut", "other"])
def test_a_damaged_file_of_the_trainer_says_what_to_do(
    name: str, spoil: str, tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command()) == 0
    path = tmp_path / "run" / name
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if spoil == "cut" else b"{}\n" + bytes(len(data)))
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    advice = f"; --from {tmp_path}/run/best with another --out starts from the best weights, --overwrite starts again"
    fails(capsys, command("--resume", steps=9), advice)
    assert before == {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(
        ValueError,
        match=f"; load weights from {tmp_path}/run/best if they are intact, or start again with overwrite=True",
    ):
        model = parse_member("gpt", ["d=16", "depth=1", "heads=2", "length=8"]).build(0)
        data_spec = f"text={tmp_path}/text"
        fit(model, data_spec, steps=9, batch=4, length=8, out=tmp_path / "run", resume=True)


def test_an_earlier_form_of_the_trainer_says_what_to_do(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command()) == 0
    path = tmp_path / "run/trainer/6/trainer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    fails(capsys, command("--resume", steps=9), "got edition 1, expected edition 2; --from ")


def test_what_was_made_of_weights_that_are_trained_on_is_named(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    for name in ("exits.json", "knn-lm.json"):
        (tmp_path / "run" / name).write_text("{}")
    folder = f"{tmp_path}/run"
    past = [
        f"{folder}/{name} is outdated: it belongs to the earlier weights. Run `kinformer {subcommand}` to make it again"
        for name, subcommand in (
            ("exits.json", f"calibrate {folder} --data KIND=PLACE"),
            ("knn-lm.json", f"knn-lm {folder} --datastore STORE --data text=PATH"),
        )
    ]
    for words, warned in (
        (command(), False),
        (command("--resume"), False),
        (command("--resume", steps=9), True),
        (command("--overwrite"), True),
    ):
        assert run(words) == 0
        error = capsys.readouterr().err
        assert [sentence in error for sentence in past] == [warned] * 2, words
    for name in ("exits.json", "knn-lm.json"):
        assert (tmp_path / "run" / name).read_text() == "{}"


def test_a_run_that_has_its_steps_has_nothing_to_do(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command()) == 0
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    for steps in (3, 6):
        capsys.readouterr()
        assert run(command("--resume", steps=steps)) == 0
        error = capsys.readouterr().err
        assert "ended after 6 steps, so there is nothing to do" in error and "continues" not in error
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    assert run(command("--resume", "--lr", "0.1", steps=9)) == 2
    assert "continues from" not in capsys.readouterr().err
    assert run(command("--resume", steps=9)) == 0
    assert "continues from step 6 of 9" in capsys.readouterr().err
