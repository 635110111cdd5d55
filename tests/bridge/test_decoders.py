"""Decoders of transformers, read and written: equal logits, decoding and greedy text, and the way back."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import kinformer as kf
from kinformer.bridge.family import families, native
from tests.parity.peers import agree, left_padded, shaken

VOCAB = 19
LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
GPT2 = {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32}
OPT = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 96,
    "max_position_embeddings": 32,
    "word_embed_proj_dim": 24,
}
NEOX = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
BLOOM = {"vocab_size": VOCAB, "hidden_size": 24, "n_layer": 3, "n_head": 4}
ODD = {"num_key_value_heads": 1, "head_dim": 10, "rms_norm_eps": 1e-2, "tie_word_embeddings": True}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}
WINDOW = {"sliding_window": 4}


def rope(rope_type: str, **keys: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 77.0, **keys}}


SHORT = {"original_max_position_embeddings": 8}
YARN = rope("yarn", factor=4.0, **SHORT)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt2, odd": (
        "gpt2",
        {
            **GPT2,
            "n_inner": 30,
            "activation_function": "relu",
            "layer_norm_epsilon": 1e-2,
            "tie_word_embeddings": False,
        },
    ),
    "opt": ("opt", OPT),
    "opt, odd": ("opt", {**OPT, "ffn_dim": 30, "activation_function": "gelu", "tie_word_embeddings": False}),
    "bloom": ("bloom", BLOOM),
    "bloom, odd": ("bloom", {**BLOOM, "n_head": 6, "layer_norm_epsilon": 0.1, "tie_word_embeddings": False}),
    "llama": ("llama", LLAMA),
    "llama, odd": ("llama", {**LLAMA, **ODD, **ROPE}),
    "llama, biases": ("llama", {**LLAMA, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    "llama, biases of attention": ("llama", {**LLAMA, "attention_bias": True}),
    "llama, interpolated": ("llama", {**LLAMA, **rope("linear", factor=4.0)}),
    "llama, YaRN": ("llama", {**LLAMA, **YARN}),
    "llama, YaRN of given numbers": (
        "llama",
        {
            **LLAMA,
            **ODD,
            **rope(
                "yarn",
                factor=4.0,
                beta_fast=3.0,
                beta_slow=0.2,
                mscale=0.7,
                mscale_all_dim=0.2,
                truncate=False,
                **SHORT,
            ),
        },
    ),
    "llama, 3.1": (
        "llama",
        {**LLAMA, **rope("llama3", factor=4.0, low_freq_factor=0.3, high_freq_factor=1.2, **SHORT)},
    ),
    "gpt_neox": ("gpt_neox", NEOX),
    "gpt_neox, YaRN": ("gpt_neox", {**NEOX, **YARN, "rotary_pct": 1.0}),
    "gpt_neox, odd": (
        "gpt_neox",
        {
            **NEOX,
            "intermediate_size": 128,
            "rotary_pct": 0.5,
            "rotary_emb_base": 77,
            "attention_bias": False,
            "layer_norm_eps": 1e-2,
            "hidden_act": "gelu_new",
            "tie_word_embeddings": True,
        },
    ),
    "gpt_neox, one sublayer after the other": (
        "gpt_neox",
        {**NEOX, "num_attention_heads": 2, "rotary_pct": 1.0, "use_parallel_residual": False},
    ),
    "mistral": ("mistral", {**LLAMA, **WINDOW}),
    "mistral, YaRN": ("mistral", {**LLAMA, **rope("yarn", factor=4.0, attention_factor=1.5, **SHORT)}),
    "mistral, no window": ("mistral", {**LLAMA, "sliding_window": None}),
    "qwen2": ("qwen2", {**LLAMA, **ROPE}),
    "qwen2, windows above": ("qwen2", {**LLAMA, **WINDOW, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen2, YaRN": ("qwen2", {**LLAMA, **YARN}),
    "qwen3": ("qwen3", {**LLAMA, **ODD}),
    "qwen3, windows": (
        "qwen3",
        {
            **LLAMA,
            **WINDOW,
            "use_sliding_window": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "attention_bias": True,
        },
    ),
}


def peer(case: str, dtype: torch.dtype | None = None) -> Any:
    kind, keys = deepcopy(CASES[case])  # configs of transformers write into their dicts
    if dtype is None:  # BLOOM's own mask of padding overflows in float64
        dtype = torch.float32 if kind == "bloom" else torch.float64
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = transformers.AutoConfig.for_model(kind, **{**ends, "initializer_range": 0.3, **keys})
    model = transformers.AutoModelForCausalLM.from_config(config)
    return shaken(model.to(dtype).eval())


def loaded(model: Any, folder: Path) -> Any:
    model.save_pretrained(folder)
    return kf.load(folder)


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    real = tokens >= 0
    positions = (real.cumsum(1) - 1).clamp_min(0)
    return model(input_ids=tokens.clamp_min(0), attention_mask=real.long(), position_ids=positions).logits


def test_every_family_of_decoders_has_a_case() -> None:
    decoders = {
        kind for kind, family in families().items() if family.architecture.endswith(("CausalLM", "LMHeadModel"))
    }
    assert decoders == {kind for kind, _ in CASES.values()}


@pytest.mark.parametrize("case", CASES)
def test_logits_decoding_and_greedy_text_are_equal(case: str, tmp_path: Path) -> None:
    theirs = peer(case)
    ours = loaded(theirs, tmp_path)
    tokens, real = left_padded(VOCAB)
    want = logits_of(theirs, tokens)
    # rotations and norms of Llama's kin are in float32 whatever the model's dtype; GELU has digits of float32 elsewhere
    exact = case in ("gpt2, odd", "opt", "opt, odd")
    tolerance = 1e-10 if exact else 1e-5 if theirs.dtype == torch.float32 else 1e-6
    agree(ours.logits(tokens).y[real], want[real], tolerance)
    state, steps = ours.start(*tokens.shape, dtype=theirs.dtype), []
    for part in tokens.split([5, 1, 3, tokens.shape[1] - 9], 1):
        out = ours.logits(part, state)
        state = out.state
        steps.append(out.y)
    agree(torch.cat(steps, 1)[real], want[real], tolerance)
    prompt = tokens[:1]
    read = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
    row = theirs.generate(**read, max_new_tokens=9, do_sample=False, pad_token_id=0)
    assert torch.equal(kf.generate(ours, prompt, 9, temperature=0), row)


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_written_as_the_same_class(case: str, tmp_path: Path) -> None:
    theirs = peer(case)
    ours = loaded(theirs, tmp_path)
    assert native(ours)[0].member is families()[CASES[case][0]].member
    family = families()[CASES[case][0]]
    config = family.write({**ours.member.defaults, **ours.member.keywords})
    written_config = transformers.AutoConfig.for_model(
        **{key: value for key, value in config.items() if key != "architectures"}
    )
    read: dict[str, Any] = {"config": written_config, "state_dict": family.split(ours), "dtype": theirs.dtype}
    model, loading_info = getattr(transformers, family.architecture).from_pretrained(
        None, **read, output_loading_info=True
    )
    assert not loading_info["unexpected_keys"] and not loading_info["missing_keys"]
    tokens, real = left_padded(VOCAB)
    assert torch.equal(logits_of(model, tokens)[real], logits_of(theirs, tokens)[real])


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_keys_that_a_config_lacks_have_the_values_of_transformers(kind: str) -> None:
    keys: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 64}
    keys |= {} if kind in ("llama", "mistral") else {"use_sliding_window": True, "max_window_layers": 0}
    config = transformers.AutoConfig.for_model(kind, **keys)
    keywords = families()[kind].read(keys)
    assert keywords["key_heads"] == config.num_key_value_heads
    null = {"num_key_value_heads": None}
    if kind != "mistral":  # transformers refuses null there
        want = transformers.AutoConfig.for_model(kind, **keys, **null).num_key_value_heads
        assert families()[kind].read(keys | null)["key_heads"] == want
    assert keywords["head_dim"] == (config.head_dim if kind == "qwen3" else None)
    window = getattr(config, "sliding_window", None)
    assert keywords["pattern"] == ("Causal()" if window is None else f"Causal() & Band({window - 1})")


def test_loss_is_equal_and_trains_all_weights(tmp_path: Path) -> None:
    theirs = peer("qwen3")
    ours = loaded(theirs, tmp_path)
    tokens = torch.randint(0, VOCAB, (3, 17))
    loss = ours(tokens).total
    agree(loss, torch.nn.functional.cross_entropy(theirs(tokens).logits[:, :-1].transpose(1, 2), tokens[:, 1:]), 1e-6)
    loss.backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in ours.parameters())
