"""Folders of transformers with hostile or damaged files: nothing is run, and every fault is one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

import kinformer as kf
from kinformer.bridge.family import family_of
from kinformer.bridge.hf_wrapper import KinformerConfig, KinformerForCausalLM
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.checkpoint.special_tokens import SpecialTokens
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.decoding.generate import end_tokens
from tests.bridge.test_decoders import VOCAB, peer
from tests.bridge.test_hf_folder import changed
from tests.bridge.test_seq2seq import OPUS


def refusal(folder: Path) -> str:
    """The message that refuses a folder, which is one short line."""
    with pytest.raises(CheckpointError) as error:
        kf.load(folder)
    message = str(error.value)
    assert "\n" not in message and len(message) < 600
    return message


def test_no_file_that_a_config_names_is_run(tmp_path: Path) -> None:
    evil, trace = tmp_path / "evil.py", tmp_path / "trace"
    evil.write_text(f"open({str(trace)!r}, 'w').close()\n")
    entries = {"model_type": "kinformer", "member": f"{evil}:f", "keywords": {}, "trained_length": None}
    (tmp_path / "config.json").write_text(json.dumps(entries))
    with pytest.raises(LookupError) as error:
        KinformerForCausalLM(KinformerConfig.from_pretrained(tmp_path))
    assert not trace.exists() and "there is no member" in str(error.value) and "\n" not in str(error.value)


def test_files_of_an_earlier_model_are_removed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    stale = ["chat_template.jinja", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
    stale += ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "modeling_kinformer.py"]
    stale += ["vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", "tokenizer.model", "spiece.model"]
    for name in (*stale, "generation_config.json"):
        (tmp_path / name).write_text("{}")
    model: Any = kf.gpt(d=16, depth=1, heads=2, length=8, vocab=11)
    kf.save(model, tmp_path, format="hf")
    names = {"notes.txt", "README.md", "config.json", "model.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", '{"model_type": ["x"]}', "does not read models of type ['x']"),
        ("generation_config.json", "[1]", "generation_config.json is damaged: got [1], expected"),
        ("model.safetensors.index.json", '{"weight_map": ["a"]}', "index.json is damaged: got weight_map=['a']"),
        ("model.safetensors.index.json", '{"weight_map": {"a": 1}}', "index.json is damaged: got weight_map={'a': 1}"),
        ("model.safetensors.index.json", '{"weight_map": {"a": null}}', "is damaged: got weight_map={'a': None}"),
        ("model.safetensors.index.json", '{"weight_map": null}', "index.json is damaged: got weight_map=None"),
        ("model.safetensors.index.json", "[1]", "index.json is damaged: got weight_map=[1]"),
        ("model.safetensors.index.json", "{", "is truncated or not JSON"),
    ],
)
def test_damaged_json_is_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    peer("llama").save_pretrained(tmp_path)
    if "index" in name:
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_text(content)
    assert message in refusal(tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"vocab_size": 10**12}, "the config cannot be built: "),
        ({"vocab_size": 2**63}, "the config cannot be built: "),
        ({"hidden_size": 10**30}, "the config cannot be built: "),
        ({"rope_parameters": "linear"}, "got rope_parameters='linear', expected"),
        ({"rope_scaling": [1]}, "got rope_scaling=[1], expected"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "got rope_type='dynamic', expected"),
    ],
)
@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_numbers_and_rotations_of_no_model_are_refused(
    kind: str, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    peer(kind).save_pretrained(tmp_path)
    changed(tmp_path, **keys)
    assert message in refusal(tmp_path)


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_of_two_keys_of_the_rotations_transformers_decides(kind: str) -> None:
    family = family_of(kind)
    config = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 4} if kind == "llama" else {}
    keys = {"rope_scaling": {"rope_theta": 7.0}, "rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}
    theirs = transformers.AutoConfig.for_model(kind, **config, **keys)
    assert theirs.rope_parameters["rope_theta"] == 7.0
    assert family.read({**config, **keys})["base"] == 7.0
    scaled = {"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    assert transformers.AutoConfig.for_model(kind, **config, **scaled).rope_parameters["rope_type"] == "default"
    assert family.read({**config, **scaled})["base"] == 10000.0


@pytest.mark.parametrize("dtype", [torch.int64, torch.float8_e4m3fn, torch.complex64, torch.bool])
def test_weights_of_other_dtypes_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    peer("llama").save_pretrained(tmp_path)
    path, name = tmp_path / "model.safetensors", "model.layers.0.mlp.up_proj.weight"
    tensors = load_file(path)
    save_file({**tensors, name: tensors[name].to(dtype)}, path, {"format": "pt"})
    assert f"the weights have {name} in {dtype}, expected torch.float64 or" in refusal(tmp_path)


@pytest.mark.parametrize("end", [10**30, VOCAB, -1])
def test_ends_outside_of_the_vocabulary_are_left_out(end: int, tmp_path: Path) -> None:
    peer("llama").save_pretrained(tmp_path)
    changed(tmp_path, eos_token_id=end)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, end]}))
    model = kf.load(tmp_path)
    assert end_tokens(model) == (3,)
    kf.generate(model, [1, 2], steps=2)


def test_ends_of_our_own_config_outside_of_the_vocabulary_end_nothing() -> None:
    model: Any = kf.gpt(d=16, depth=1, heads=2, length=8, vocab=11)
    model.foreign_ends = (10**30, 5, -1)
    assert end_tokens(model) == (5,)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"chat_template": "a\ud800"}),
        ("tokenizer_config.json", {"eos_token": "\udfff"}),
        ("special_tokens_map.json", {"bos_token": {"content": "\ud800"}}),
    ],
)
def test_texts_that_utf8_cannot_hold_are_refused(name: str, content: dict[str, Any], tmp_path: Path) -> None:
    peer("llama").save_pretrained(tmp_path)
    (tmp_path / name).write_text(json.dumps(content))
    assert "has a lone surrogate at character" in refusal(tmp_path)


def test_our_own_texts_that_utf8_cannot_hold_are_refused(tmp_path: Path) -> None:
    entry = {"names": {}, "ends": [], "chat_template": "\ud800"}
    with pytest.raises(CheckpointError, match="has a lone surrogate at character 0. Restore the file"):
        SpecialTokens.of_json(entry, tmp_path / "config.json")


def test_a_dropout_that_a_vocabulary_of_words_ignores() -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, "a"))
    settings = json.loads(words.to_str())
    settings["model"]["dropout"] = 0.5
    assert Tokenizer(json.dumps(settings)).encode("b") == [1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, None])
def test_other_positions_than_sines_are_refused(dtype: torch.dtype | None, tmp_path: Path) -> None:
    config = transformers.MarianConfig(**OPUS)
    model = transformers.MarianMTModel(config)
    model.save_pretrained(tmp_path)
    path, name = tmp_path / "model.safetensors", "model.encoder.embed_positions.weight"
    table = model.model.encoder.embed_positions.create_weight()
    weights = load_file(path)
    if dtype is not None:
        save_file({**weights, name: table.to(dtype)}, path, {"format": "pt"})
        kf.load(tmp_path)
        return
    for other in (table.roll(1, 0), -table, table * torch.nan, table.long(), table[0].clone(), table + 0.01):
        save_file({**weights, name: other}, path, {"format": "pt"})
        assert f"cannot load {name}: it differs from the sinusoidal table that kinformer computes. Run" in refusal(
            tmp_path
        )


@pytest.mark.parametrize("entry", ["[1]", "{", "3"])
def test_weights_with_a_damaged_note_of_their_config_are_refused(entry: str, tmp_path: Path) -> None:
    kf.save(kf.gpt(d=8, depth=1, heads=2, vocab=11), tmp_path, format="hf")
    path = tmp_path / "model.safetensors"
    save_file(load_file(path), path, {"format": "pt", "kinformer_config": entry})
    assert f"got kinformer_config={entry!r} in its metadata, expected an object of JSON" in refusal(tmp_path)
