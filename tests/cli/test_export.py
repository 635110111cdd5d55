"""`kinformer export`: the folder, the class that it names, the card of a run, and one line for what is wrong."""

import json
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch

import kinformer as kf
from kinformer.cli.__main__ import run
from kinformer.cli.support.evaluation import note_unmeasured
from tests.cli.folders import folder
from tests.cli.test_commands import fails


def test_a_run_becomes_a_class_of_transformers_with_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, made, out = tmp_path / "book.txt", tmp_path / "small-gpt", tmp_path / "out"
    text.write_bytes(b"the cat sat on the mat. " * 100)
    words = ["train", "gpt", "d=16", "depth=1", "heads=2", "length=64", "--data", f"text={text}", "--steps", "3"]
    assert run([*words, "--batch", "2", "--length", "16", "--out", str(made)]) == 0
    capsys.readouterr()
    assert run(["export", str(made / "best"), "--out", str(out)]) == 0
    line = f'wrote GPT2LMHeadModel: AutoModelForCausalLM.from_pretrained("{out}")\n'
    assert capsys.readouterr().out == line
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    assert {path.name for path in out.iterdir()} == names | {"README.md"}
    tokens = torch.arange(16)[None]
    assert torch.equal(kf.load(out).logits(tokens).y, kf.load(made / "best").logits(tokens).y)
    card = huggingface_hub.ModelCard((out / "README.md").read_text())
    (point,) = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines() if '"valid"' in line]
    (result,) = card.data.eval_results
    assert (result.metric_name, result.metric_value) == ("bits per byte", point["valid"])
    assert card.data.pipeline_tag == "text-generation" and "# small-gpt" in card.text
    for fact in ("text=book.txt", "Longest row: 16 tokens", "3 steps, 96 tokens", "heads=2", f"{point['valid']:.4f}"):
        assert fact in card.text
    assert str(tmp_path) not in card.text and "license" not in card.data.to_dict()
    again = ["export", str(made), "--out", str(out)]
    fails(capsys, again, f"{out} holds README.md, config.json, model.safetensors and 3 more. Give another --out, or")
    assert run([*again, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == "GPT2LMHeadModel"
    fails(capsys, ["export", str(made), "--out", str(made), "--overwrite"], "is the folder of the model itself")


def test_the_reason_for_a_class_of_kinformer_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = folder(tmp_path / "run", "gpt", position="rotary")
    (tmp_path / "run" / "curves.png").write_bytes(b"a picture")
    assert run(["export", made, "--out", str(tmp_path / "out")]) == 0
    first, reason = capsys.readouterr().out.splitlines()
    assert first.startswith("wrote KinformerForCausalLM: ") and first.endswith(", trust_remote_code=True)")
    assert "GPT2LMHeadModel cannot compute position='rotary'" in reason
    assert kf.load(tmp_path / "out").member.keywords["position"] == "rotary"
    assert "trust_remote_code=True" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("format", ["hf", "pt2"])
def test_a_model_of_other_data_is_refused(format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = folder(tmp_path / "run", "image_transformer", shape=(1, 4, 4), block=4, memory=4)
    out = tmp_path / "out"
    fails(capsys, ["export", made, "--out", str(out), "--format", format], "image_transformer")
    fails(capsys, ["export", str(tmp_path / "none"), "--out", str(out)], "no file or folder")
    assert not out.exists()


def test_an_export_over_another_leaves_none_of_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    wrapped, native = folder(tmp_path / "one", "gpt", position="rotary"), folder(tmp_path / "two", "gpt", vocab=11)
    assert run(["export", wrapped, "--out", str(out)]) == 0
    (out / "notes.txt").touch()
    assert run(["export", native, "--out", str(out), "--overwrite"]) == 0
    names = {"README.md", "config.json", "model.safetensors", "notes.txt"}
    assert {path.name for path in out.iterdir()} == names


NO_EXPORT = {
    "run": "a model of kinformer",
    "best": "a model of kinformer",
    "results.json": "a comparison",
    "metrics.jsonl": "a model of kinformer",
    "config.json": "a config.json of another program",
}


@pytest.mark.parametrize("kind", NO_EXPORT)
def test_what_is_no_export_is_never_replaced(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(tmp_path / "run", "gpt")
    if kind in ("run", "best"):
        out = Path(folder(tmp_path / "other" / kind, "gpt", seed=1))
    else:
        (out := tmp_path / "other").mkdir()
        (out / kind).write_text("{}")
    before = {path: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr("kinformer.cli.support.load_model.load_model", lambda *_: pytest.fail("the model was loaded"))
    fails(capsys, ["export", made, "--out", str(out), "--overwrite"], f"{out} holds {NO_EXPORT[kind]}, which --over")
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_the_title_of_a_card_is_the_whole_name_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(tmp_path / "gpt-v1.5", "gpt", vocab=11)
    monkeypatch.chdir(made)
    for place, out in ((made, tmp_path / "one"), (".", tmp_path / "two")):
        assert run(["export", str(place), "--out", str(out)]) == 0
        assert "\n# gpt-v1.5\n" in (out / "README.md").read_text()
    cached = folder(tmp_path / "models--org--small-gpt" / "snapshots" / "0123abcd", "gpt", vocab=11)
    assert run(["export", cached, "--out", str(tmp_path / "three")]) == 0
    assert "\n# small-gpt\n" in (tmp_path / "three" / "README.md").read_text()


def test_an_exported_model_knows_its_training_data_without_their_folder(capsys: pytest.CaptureFixture[str]) -> None:
    model = SimpleNamespace(trained_on="text=book.txt")
    for place, is_noted in (("/here/book.txt", False), ("/here/other.txt", True)):
        note_unmeasured(model, SimpleNamespace(train=None, name=f"text={place}"), ["test"])
        assert ("is not the training data" in capsys.readouterr().err) == is_noted
