"""kinformer train --lora: the line about trained weights, the saved model, its resumption and its refusals."""

from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.cli.support.lora_option import parse_lora
from kinformer.cli.support.typed_options import as_typed
from kinformer.lab.errors import UserError
from kinformer.lab.train.lora import LoRA
from tests.cli.test_commands import fails

SMALL = ("--batch", "2", "--length", "16")


def test_a_trained_model_is_adapted_and_saved_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, start, out = tmp_path / "text.txt", tmp_path / "start", tmp_path / "out"
    text.write_bytes(bytes(range(97, 123)) * 60)
    train = ["train", "llama", "d=16", "depth=1", "heads=2", "key_heads=1", "--data", f"text={text}", *SMALL]
    assert run([*train, "--steps", "2", "--out", str(start)]) == 0
    adapting = [*train, "--from", str(start), "--lora", "rank=2", "--lr", "0.05", "--out", str(out)]
    capsys.readouterr()
    assert run([*adapting, "--steps", "3"]) == 0
    assert "LoRA of rank 2 trains 224 weights" in (err := capsys.readouterr().err) and "of 2 matrices" in err
    before, after = load(start).state_dict(), load(out).state_dict()
    assert before.keys() == after.keys()
    attention = ["body.layers.0.layers.0.projection.qkv.weight", "body.layers.0.layers.0.aggregation.linear.weight"]
    assert [name for name in before if not torch.equal(before[name], after[name])] == attention
    assert run([*adapting, "--steps", "4", "--resume"]) == 0
    other = [*train, "--from", str(start), "--lr", "0.05", "--out", str(out), "--steps", "5", "--resume"]
    fails(capsys, other, "--lora rank=2,alpha=4.0,layers=attention")


def test_new_weights_are_not_frozen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "gpt", "--data", "text=stdlib", "--steps", "2", "--lora", "rank=2", "--out", str(tmp_path / "x")]
    fails(capsys, words, "Give --from")


@pytest.mark.parametrize("text", ["8", "rank=x", "alpha=3", "rank=8,width=2", "rank=8,rank=9", "rank=0", "rank="])
def test_wrong_values(text: str) -> None:
    with pytest.raises(UserError, match="wrong"):
        parse_lora(text)


def test_values_are_typed_as_they_are_read() -> None:
    lora = parse_lora("rank=8,layers=all,train=*.a,train=b")
    assert lora == LoRA(8, 16.0, "all", ("*.a", "b"))
    record = {"rank": 8, "alpha": 16.0, "layers": "all", "train": ["*.a", "b"]}
    typed = as_typed("settings", "lora", record)
    assert parse_lora(typed.removeprefix("--lora ").strip("'")) == lora
