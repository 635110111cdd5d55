"""Models of transformers by the laws for other libraries: plain ones keep all, known faults are named."""

import builtins
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

import kinformer as kf
from kinformer.cli.__main__ import run
from kinformer.laws.foreign.support.saving import quiet_transformers
from tests.laws.foreign_models import BREAKS, MORE, PLAIN, tiny


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    with quiet_transformers():
        yield


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    torch.manual_seed(0)
    return {name: tiny(name) for name in PLAIN}


def broken(model: Any, **options: Any) -> dict[str, str]:
    """The findings by law."""
    return {verdict.law: verdict.text for verdict in kf.check(model, **options) if verdict.end in ("broken", "slow")}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_models_keep_every_law(name: str, plain: dict[str, Any]) -> None:
    assert broken(plain[name]) == {}


@pytest.mark.prove
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", PLAIN)
def test_plain_models_keep_every_law_with_other_weights(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    assert broken(tiny(name)) == {}


@pytest.mark.prove
@pytest.mark.parametrize("name", MORE)
def test_findings_are_those_that_are_explained(name: str) -> None:
    findings = broken(tiny(name))
    assert findings.keys() == BREAKS.get(name, {}).keys(), findings


def unmasked(module: Any, q: Any, k: Any, v: Any, attention_mask: Any, **options: Any) -> tuple[Any, None]:
    """Attention as the documentation of AttentionInterface registers it; the mask is added if there is one."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    weights = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
    return (weights @ v).transpose(1, 2).contiguous(), None


def test_attention_without_its_mask_function_reads_ahead(plain: dict[str, Any]) -> None:
    AttentionInterface.register("kinformer_unmasked", unmasked)
    assert "kinformer_unmasked" not in ALL_MASK_ATTENTION_FUNCTIONS
    model = type(plain["llama"])._from_config(plain["llama"].config, attn_implementation="kinformer_unmasked")
    text = broken(model, law="peek")["peek"]
    assert text.startswith("reads ahead: changing token 1 of 2 changes the logits at position 0 by ")
    assert "the attention 'kinformer_unmasked' gets no mask: register a mask function for it" in text


def test_ties_of_the_indexer_of_deepseek_are_found() -> None:
    text = broken(tiny("deepseek_v32"), law="chunk")["chunk"]
    assert text.startswith("decoding ") and "gives logits at position" in text
    assert int(text.split()[1]) > 8, "up to index_topk tokens, all are selected"


def test_the_command_tests_a_folder(plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain["gpt2"].save_pretrained(tmp_path / "gpt2")
    capsys.readouterr()
    assert run(["check", f"hf:{tmp_path / 'gpt2'}", "--law", "ties", "--law", "padding"]) == 0
    out = capsys.readouterr().out
    assert "a trained GPT2LMHeadModel" in out and "2 laws hold, none is broken" in out
    (tmp_path / "gpt2" / "model.safetensors").write_bytes(b"")
    assert run(["check", f"hf:{tmp_path / 'gpt2'}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_never_runs_code_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "input", lambda *_: "y")  # transformers asks whether it may run the code
    config = {"model_type": "aimv2_text_model", "auto_map": {"AutoModel": "code.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert run(["check", f"hf:{tmp_path}"]) == 2
    assert not (tmp_path / "ran").exists()
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("content", "message"), [("{", "is truncated or not JSON"), ("[1]", "is a list, expected an")])
def test_a_spoiled_config_is_refused_in_a_line(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(content)
    assert run(["check", f"hf:{tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
