"""Scaled rotary positions in configs: each rope_type in each form, read, refused, written and loaded again."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import kinformer as kf
from kinformer.bridge.family import families, native
from kinformer.checkpoint.model_files import CheckpointError
from tests.bridge.test_decoders import LLAMA, NEOX, VOCAB
from tests.parity.peers import TOLERANCE, agree, shaken

FLOAT32 = TOLERANCE[torch.float32]  # transformers rotates in float32, whatever the dtype of the model
LENGTH = 8  # the original length; rows are 5 times as long
TYPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": LENGTH},
    "llama3": {"factor": 4, "low_freq_factor": 0.4, "high_freq_factor": 1, "original_max_position_embeddings": LENGTH},
}
LLAMA_3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
PUBLISHED = {  # rope_scaling of published config.json
    "Llama 3.2": ({"rope_type": "llama3", **LLAMA_3}, "llama3:factor=32.0,low_freq_factor=1.0,high_freq_factor=4.0"),
    "Qwen 2.5": ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, "yarn:factor=4.0,length="),
    "LongChat": ({"type": "linear", "factor": 8.0}, "pi:factor=8.0"),
    "Vicuna 1.5": ({"factor": 4.0, "type": "linear"}, "pi:factor=4.0"),
}
BASES: dict[str, dict[str, Any]] = {"llama": LLAMA, "gpt_neox": {**NEOX, "rotary_pct": 0.5}}


def peer(kind: str, **keys: Any) -> Any:
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = transformers.AutoConfig.for_model(
        kind, **ends, **{**deepcopy(BASES[kind]), "initializer_range": 0.3, **keys}
    )
    return shaken(transformers.AutoModelForCausalLM.from_config(config).double().eval())


def rewritten(folder: Path, without: tuple[str, ...] = (), **keys: Any) -> Path:
    path = folder / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key not in without}
    path.write_text(json.dumps({**config, **keys}))
    return folder


@pytest.mark.parametrize("form", ["rope_parameters", "rope_scaling", "type"])
@pytest.mark.parametrize("rope_type", TYPES)
@pytest.mark.parametrize("kind", BASES)
def test_long_rows_have_the_logits_of_transformers(kind: str, rope_type: str, form: str, tmp_path: Path) -> None:
    share = {"partial_rotary_factor": 0.5} if kind == "gpt_neox" else {}
    theirs = peer(kind, rope_parameters={"rope_type": rope_type, "rope_theta": 50.0, **TYPES[rope_type], **share})
    theirs.save_pretrained(tmp_path)
    if form != "rope_parameters":
        old = {"rotary_emb_base": 50.0, "rotary_pct": 0.5} if kind == "gpt_neox" else {"rope_theta": 50.0}
        scaling = {"type" if form == "type" else "rope_type": rope_type, **TYPES[rope_type]}
        rewritten(tmp_path, without=("rope_parameters",), rope_scaling=scaling, **old)
    ours = kf.load(tmp_path)
    tokens = torch.randint(0, VOCAB, (2, 5 * LENGTH))
    want = theirs(tokens).logits
    agree(ours.logits(tokens).y, want, FLOAT32)
    plain = kf.load(rewritten(tmp_path, ("rope_parameters", "rope_scaling")))
    assert (plain.logits(tokens).y - want).abs().max() > 1e-2 * want.abs().max()


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize(
    "scaling",
    [
        None,
        "pi:factor=3",
        "ntk:factor=3",
        "yarn:length=8,factor=3",
        "yarn:factor=3,length=8,beta_fast=4,beta_slow=0.5,attention_factor=1.3,truncate=no",
        "llama3:factor=3,low_freq_factor=0.4,high_freq_factor=1,length=8",
    ],
)
def test_export_is_loaded_by_the_class_of_transformers(kind: str, scaling: str | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make = kf.llama if kind == "llama" else kf.gpt_neox
    ours: Any = make(d=32, depth=2, heads=4, vocab=VOCAB, base=50.0, turned=None, scaling=scaling)
    ours = shaken(ours.double().eval())
    ours.trained_length = 24
    kf.save(ours, tmp_path, format="hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(theirs).__name__ == families()[kind].architecture == native(ours)[0].architecture
    tokens = torch.randint(0, VOCAB, (2, 40))
    want = theirs(tokens).logits
    agree(ours.logits(tokens).y, want, FLOAT32)
    agree(kf.load(tmp_path).logits(tokens).y, want, FLOAT32)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_scalings_are_read(name: str) -> None:
    scaling, text = PUBLISHED[name]
    keys = {"vocab_size": 9, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    keywords = families()["llama"].read({**keys, "rope_theta": 500000.0, "rope_scaling": scaling})
    assert keywords["base"] == 500000.0 and keywords["scaling"].startswith(text)


def test_the_original_length_is_the_context_length_of_a_config_without_it(tmp_path: Path) -> None:
    theirs = peer("llama", rope_parameters={"rope_type": "yarn", "rope_theta": 50.0, "factor": 2.0})
    tokens = torch.randint(0, VOCAB, (1, 60))
    want = theirs(tokens).logits
    theirs.save_pretrained(tmp_path)
    rewritten(tmp_path, rope_parameters={"rope_type": "yarn", "rope_theta": 50.0, "factor": 2.0})
    agree(kf.load(tmp_path).logits(tokens).y, want, FLOAT32)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "dynamic", "factor": 2.0}, "got rope_type='dynamic', expected 'default' or 'linear'"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "got rope_type='longrope', expected 'default'"),
        ({"rope_type": ["yarn"]}, "got rope_type=['yarn'], expected 'default'"),
        ({"rope_type": "linear"}, "got factor=None, expected a number"),
        ({"rope_type": "linear", "factor": "4"}, "got factor='4', expected a number"),
        ({"rope_type": "linear", "factor": True}, "got factor=True, expected a number"),
        ({"rope_type": "linear", "factor": 0.5}, "factor=0.5: give a number from 1 up"),
        (
            {"rope_type": "linear", "factor": 2, "beta_fast": 32},
            "got beta_fast=32, expected no such key for rope_type 'l",
        ),
        ({"type": "default", "mrope_section": [2, 2]}, "got mrope_section=[2, 2], expected no such key"),
        ({"rope_type": "yarn", "factor": 2, "truncate": 1}, "got truncate=1, expected True or False"),
        (
            {"rope_type": "yarn", "factor": 2, "partial_rotary_factor": 0.5},
            "got partial_rotary_factor=0.5, expected no",
        ),
        (
            {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 8.0},
            "got original_max_position_embeddings=8.0, expected a whole number",
        ),
        ({**LLAMA_3, "rope_type": "llama3", "low_freq_factor": None}, "got low_freq_factor=None, expected a number"),
        ({**LLAMA_3, "rope_type": "llama3", "low_freq_factor": 4}, "high_freq_factor=4.0: give a number above 4"),
    ],
)
def test_other_scalings_are_refused_by_name(scaling: dict[str, Any], message: str, tmp_path: Path) -> None:
    peer("llama").save_pretrained(tmp_path)
    rewritten(tmp_path, ("rope_parameters",), rope_scaling=scaling)
    with pytest.raises(CheckpointError) as error:
        kf.load(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)
