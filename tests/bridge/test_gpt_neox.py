"""Pythia's own folders: the keys and tensors of its files, a vocabulary larger than the tokenizer's, and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import kinformer as kf
from kinformer.bridge.family import families
from kinformer.checkpoint.model_files import CheckpointError
from tests.bridge.test_decoders import VOCAB, peer
from tests.parity.peers import agree

PUBLISHED = {  # config.json of EleutherAI/pythia-70m
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.24.0",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}


def test_the_published_config_is_the_member_with_few_keywords() -> None:
    keywords = families()["gpt_neox"].read(PUBLISHED)
    defaults = {"base": 10000.0, "bias": True, "eps": 1e-5, "parallel": True, "tie": False, "activation": "gelu"}
    sizes = {"d": 512, "depth": 6, "heads": 8, "vocab": 50304}
    usual = dict.fromkeys(("head_dim", "hidden", "turned", "scaling"))
    assert keywords == {**sizes, **usual, **defaults}


def test_tensors_of_early_files_that_are_no_weights_are_passed_over(tmp_path: Path) -> None:
    theirs = peer("gpt_neox")
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    extra: dict[str, Any] = {}
    for n in range(3):
        attention = f"gpt_neox.layers.{n}.attention."
        extra |= {attention + "bias": torch.ones(1, 1, 32, 32).bool(), attention + "masked_bias": torch.tensor(-1e9)}
        extra[attention + "rotary_emb.inv_freq"] = torch.ones(1)
    save_file({**load_file(path), **extra}, path, {"format": "pt"})
    tokens = torch.randint(0, VOCAB, (2, 9))
    agree(kf.load(tmp_path).logits(tokens).y, theirs(tokens).logits, 1e-6)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_theta": 55.0}, "rope_theta=55.0, expected 10000.0 as in"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5, expected 0.25 as"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "got rope_type='dynamic', expected 'default'"),
        ({"rotary_pct": 0.4, "rope_parameters": None}, "an even number"),
        ({"hidden_act": "xielu"}, "got hidden_act='xielu'"),
        ({"head_dim": 9}, "got head_dim=9"),
        ({"num_attention_heads": 0}, "heads"),
    ],
)
def test_keys_that_would_change_results_are_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    peer("gpt_neox").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    with pytest.raises(CheckpointError) as error:
        kf.load(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_equal_repetitions_of_a_key_are_read(tmp_path: Path) -> None:
    """Files of transformers 4.45 and later name both numbers twice."""
    again = {"rope_theta": 10000, "partial_rotary_factor": 0.25}
    read = families()["gpt_neox"].read
    assert read({**PUBLISHED, **again}) == read(PUBLISHED)
