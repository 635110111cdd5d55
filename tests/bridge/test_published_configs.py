"""Configs of models of the Hub, with every key that they have and small sizes: each is read, and the logits agree."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import kinformer as kf
from kinformer.bridge.family import families
from tests.parity.peers import agree, shaken

VOCAB = 19
CHOICES = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
LLAMA = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_cache": True,
    "vocab_size": VOCAB,
}
WITHOUT_BIAS = {key: value for key, value in LLAMA.items() if key != "attention_bias"}
BERT = {
    "architectures": ["AnyForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 34,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": VOCAB,
}
ENDS = {"bos_token_id": 0, "eos_token_id": 2}
SIDES = {
    **dict.fromkeys(("add_bias_logits", "add_final_layer_norm", "gradient_checkpointing", "normalize_before"), False),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 40),
    **dict.fromkeys(("decoder_layers", "encoder_layers", "num_hidden_layers"), 2),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("activation_dropout", "attention_dropout", "classif_dropout", "dropout"), 0.1),
    **dict.fromkeys(("decoder_layerdrop", "encoder_layerdrop"), 0.0),
    **CHOICES,
    "bos_token_id": 0,
    "classifier_dropout": 0.0,
    "d_model": 24,
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "max_position_embeddings": 40,
    "use_cache": True,
    "vocab_size": VOCAB,
}
T5 = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 40,
    "d_kv": 6,
    "d_model": 24,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-6,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 4,
    "num_layers": 2,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "use_cache": True,
    "vocab_size": VOCAB,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {
        **dict.fromkeys(("bos_token_id", "eos_token_id"), 18),
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.1),
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "model_type": "gpt2",
        "n_ctx": 32,
        "n_embd": 24,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 32,
        "summary_activation": None,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": VOCAB,
    },
    "opt-125m": {
        **dict.fromkeys(("activation_dropout", "attention_dropout", "layerdrop"), 0.0),
        "_name_or_path": "opt-125m",
        "_remove_final_layer_norm": False,
        "activation_function": "relu",
        "architectures": ["OPTForCausalLM"],
        "bos_token_id": 2,
        "do_layer_norm_before": True,
        "dropout": 0.1,
        "eos_token_id": 2,
        "ffn_dim": 96,
        "hidden_size": 24,
        "init_std": 0.02,
        "max_position_embeddings": 32,
        "model_type": "opt",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "pad_token_id": 1,
        "prefix": "</s>",
        "torch_dtype": "float16",
        "use_cache": True,
        "vocab_size": VOCAB,
        "word_embed_proj_dim": 24,
    },
    "llama-7b": {key: value for key, value in WITHOUT_BIAS.items() if key != "num_key_value_heads"},
    "Llama-2-7b": {**LLAMA, "pretraining_tp": 1, "rope_scaling": None, "max_length": 32, "do_sample": True},
    "SmolLM2-135M": {
        **LLAMA,
        "is_llama_config": True,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
    },
    "Mistral-7B-v0.1": {**WITHOUT_BIAS, "model_type": "mistral", "rope_theta": 10000.0, "sliding_window": 8},
    "Qwen2.5-0.5B": {
        **WITHOUT_BIAS,
        "max_window_layers": 2,
        "model_type": "qwen2",
        "rope_theta": 1000000.0,
        "sliding_window": 8,
        "tie_word_embeddings": True,
        "use_mrope": False,
        "use_sliding_window": False,
    },
    "Qwen3-0.6B": {
        **LLAMA,
        "head_dim": 10,
        "max_window_layers": 2,
        "model_type": "qwen3",
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "pythia-70m": {
        "architectures": ["GPTNeoXForCausalLM"],
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "gelu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 40,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 32,
        "model_type": "gpt_neox",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "use_cache": True,
        "use_parallel_residual": True,
        "vocab_size": VOCAB,
    },
    "bloom-560m": {
        **dict.fromkeys(("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion"), True),
        "skip_bias_add": True,
        **dict.fromkeys(("skip_bias_add_qkv", "slow_but_exact"), False),
        "apply_residual_connection_post_layernorm": False,
        "architectures": ["BloomForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_dropout": 0.0,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "model_type": "bloom",
        "n_embed": 24,
        "n_inner": None,
        "n_layer": 2,
        "num_attention_heads": 4,
        "offset_alibi": 100,
        "pad_token_id": 3,
        "pretraining_tp": 2,
        "seq_length": 32,
        "unk_token_id": 0,
        "use_cache": True,
        "vocab_size": VOCAB,
    },
    "bert-base-uncased": {**BERT, "model_type": "bert", "pad_token_id": 0, "position_embedding_type": "absolute"},
    "roberta-base": {**BERT, **ENDS, "model_type": "roberta", "type_vocab_size": 1},
    "distilbert-base-uncased": {
        **dict.fromkeys(("attention_dropout", "dropout", "qa_dropout", "seq_classif_dropout"), 0.1),
        "activation": "gelu",
        "architectures": ["DistilBertForMaskedLM"],
        "dim": 24,
        "hidden_dim": 30,
        "initializer_range": 0.02,
        "max_position_embeddings": 34,
        "model_type": "distilbert",
        "n_heads": 4,
        "n_layers": 2,
        "output_past": True,
        "pad_token_id": 0,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "vocab_size": VOCAB,
    },
    "longformer-base-4096": {
        **BERT,
        **ENDS,
        "attention_mode": "longformer",
        "attention_window": [4, 4],
        "ignore_attention_mask": False,
        "model_type": "longformer",
        "sep_token_id": 2,
        "type_vocab_size": 1,
    },
    "bigbird-roberta-base": {
        **BERT,
        "attention_type": "block_sparse",
        "block_size": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "gelu_new",
        "model_type": "big_bird",
        "num_random_blocks": 3,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "rescale_embeddings": False,
        "sep_token_id": 6,
        "use_bias": True,
    },
    "nystromformer-512": {
        **BERT,
        **ENDS,
        "conv_kernel_size": 5,
        "hidden_act": "gelu_new",
        "inv_coeff_init_option": False,
        "model_type": "nystromformer",
        "num_landmarks": 4,
        "segment_means_seq_len": 4,
    },
    "opus-mt-en-de": {
        **SIDES,
        "activation_function": "swish",
        "architectures": ["MarianMTModel"],
        "bad_words_ids": [[18]],
        "decoder_start_token_id": 18,
        "decoder_vocab_size": VOCAB,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "max_length": 512,
        "model_type": "marian",
        "normalize_embedding": False,
        "num_beams": 6,
        "pad_token_id": 18,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "static_position_embeddings": True,
    },
    "bart-base": {
        **SIDES,
        "activation_function": "gelu",
        "architectures": ["BartModel"],
        "decoder_start_token_id": 2,
        "early_stopping": True,
        "eos_token_id": 2,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 2,
        "model_type": "bart",
        "no_repeat_ngram_size": 3,
        "normalize_embedding": True,
        "num_beams": 4,
        "pad_token_id": 1,
        "scale_embedding": False,
        "task_specific_params": {"summarization": {"length_penalty": 1.0, "max_length": 128}},
        "torch_dtype": "float32",
    },
    "t5-small": {
        **T5,
        "feed_forward_proj": "relu",
        "task_specific_params": {"summarization": {"early_stopping": True, "prefix": "summarize: "}},
    },
    "flan-t5-small": {
        **T5,
        "feed_forward_proj": "gated-gelu",
        "num_decoder_layers": 2,
        "relative_attention_max_distance": 128,
        "tie_word_embeddings": False,
    },
    "decision-transformer-gym-hopper-medium": {
        **dict.fromkeys(("bos_token_id", "eos_token_id"), 50256),
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.1),
        "act_dim": 3,
        "action_tanh": True,
        "activation_function": "relu",
        "architectures": ["DecisionTransformerModel"],
        "hidden_size": 24,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "max_ep_len": 40,
        "max_length": 20,
        "model_type": "decision_transformer",
        "n_ctx": 64,
        "n_head": 1,
        "n_inner": None,
        "n_layer": 2,
        "n_positions": 64,
        "reorder_and_upcast_attn": False,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "state_dim": 11,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 1,
    },
}


def published(name: str, folder: Path) -> Any:
    """Write a folder with a published config, and small weights; return the model of transformers, in float32."""
    architecture = getattr(transformers, families()[CONFIGS[name]["model_type"]].architecture)
    text = json.dumps(CONFIGS[name])
    (folder / "config.json").write_text(text)
    config = transformers.AutoConfig.from_pretrained(folder)
    shaken(architecture(config)).to(config.dtype or torch.float32).save_pretrained(folder)
    (folder / "config.json").write_text(text)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return architecture.from_pretrained(folder, dtype=torch.float32).eval()


def test_every_family_has_a_published_config() -> None:
    assert {config["model_type"] for config in CONFIGS.values()} == families().keys()


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_published_config_is_read(name: str, tmp_path: Path) -> None:
    theirs, ours = published(name, tmp_path), kf.load(tmp_path)
    dtype = getattr(torch, CONFIGS[name].get("torch_dtype", "float32"))
    assert {weight.dtype for weight in ours.parameters()} == {dtype}
    ours, tokens = ours.float(), torch.randint(3, VOCAB - 1, (1, 12))
    if ours.reads == "pairs":
        target = torch.randint(3, VOCAB - 1, (1, 5))
        want = theirs(input_ids=tokens, decoder_input_ids=target).logits
        agree(ours.logits(target, source=tokens).y, want[..., : ours.vocab])
    elif "vocab" in ours.member.keywords:
        agree(ours.logits(tokens).y, theirs(tokens).logits)
    else:
        assert ours.member.keywords["states"] == 11 and ours.member.keywords["context"] == 20
