"""Tiny random models of transformers for the laws about other libraries, and the laws that some of them break.

BREAKS has an entry for each model and law, with the cause in the source of transformers 5.23. A test compares it with
the findings, so an entry must go when a later version keeps the law.
"""

from collections.abc import Callable
from typing import Any

import transformers

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}
OFFSET = SIZES | {"max_position_embeddings": 514}  # positions begin after the padding token's number
GPT = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
BART = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 512,
}
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
SHARED = SIZES | {"num_key_value_heads": 2}
GEMMA = SHARED | {"head_dim": 8}
MOE = GEMMA | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SSM = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
DEEPSEEK = SIZES | {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("CausalLM", SHARED),
    "gpt2": ("CausalLM", GPT | {"bos_token_id": 0, "eos_token_id": 0}),
    "gpt_neox": ("CausalLM", SIZES),
    "opt": (
        "CausalLM",
        {key: SIZES[key] for key in SIZES if key != "intermediate_size"} | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    ),
    "bloom": ("CausalLM", {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "bert": ("MaskedLM", SIZES),
    "roberta": ("MaskedLM", OFFSET),
    "t5": ("Seq2SeqLM", T5),
    "bart": ("Seq2SeqLM", BART),
}
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("MaskedLM", SIZES | {"embedding_size": 16}),
    "bamba": (
        "CausalLM",
        SHARED
        | {
            "mamba_d_state": 8,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_chunk_size": 16,
            "attn_layer_indices": [1],
        },
    ),
    "big_bird": ("MaskedLM", SIZES | {"block_size": 4, "num_random_blocks": 1}),
    "biogpt": ("CausalLM", SIZES),
    "blenderbot": ("Seq2SeqLM", BART),
    "codegen": ("CausalLM", GPT | {"rotary_dim": 4}),
    "cohere": ("CausalLM", SIZES),
    "convbert": ("MaskedLM", SIZES | {"embedding_size": 16, "head_ratio": 2}),
    "ctrl": ("CausalLM", GPT | {"dff": 64}),
    "deberta-v2": (
        "MaskedLM",
        SIZES | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16},
    ),
    "deepseek_v3": ("CausalLM", DEEPSEEK),
    "deepseek_v32": ("CausalLM", DEEPSEEK | {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}),
    "distilbert": ("MaskedLM", {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    "electra": ("MaskedLM", SIZES | {"embedding_size": 16}),
    "esm": ("MaskedLM", SIZES | {"pad_token_id": 0, "mask_token_id": 1}),
    "falcon": ("CausalLM", SIZES),
    "falcon_mamba": ("CausalLM", SSM),
    "fnet": ("MaskedLM", SIZES),
    "fsmt": (
        "Seq2SeqLM",
        {key: BART[key] for key in BART if key != "vocab_size"}
        | {"langs": ["a", "b"], "src_vocab_size": 99, "tgt_vocab_size": 99},
    ),
    "funnel": (
        "MaskedLM",
        {"vocab_size": 99, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64, "block_sizes": [1, 1]},
    ),
    "gemma": ("CausalLM", GEMMA),
    "gemma2": ("CausalLM", GEMMA | {"sliding_window": 16}),
    "gemma3_text": ("CausalLM", GEMMA | {"sliding_window": 16}),
    "gpt_bigcode": ("CausalLM", GPT),
    "gpt_neo": (
        "CausalLM",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 512,
            "window_size": 16,
        },
    ),
    "gpt_oss": ("CausalLM", GEMMA | {"num_local_experts": 4, "sliding_window": 16}),
    "gptj": ("CausalLM", GPT | {"rotary_dim": 4}),
    "granite": ("CausalLM", SIZES),
    "jamba": (
        "CausalLM",
        SHARED
        | {
            "mamba_d_state": 8,
            "num_experts": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "use_mamba_kernels": False,
        },
    ),
    "led": (
        "Seq2SeqLM",
        {key: BART[key] for key in BART if key != "max_position_embeddings"}
        | {"attention_window": [8, 8], "max_encoder_position_embeddings": 512, "max_decoder_position_embeddings": 512},
    ),
    "lfm2": ("CausalLM", SHARED | {"layer_types": ["conv", "full_attention"]}),
    "longformer": ("MaskedLM", OFFSET | {"attention_window": [8, 8]}),
    "longt5": ("Seq2SeqLM", T5 | {"local_radius": 7}),
    "mamba": ("CausalLM", SSM),
    "mamba2": ("CausalLM", SSM | {"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16}),
    "marian": ("Seq2SeqLM", BART | {"pad_token_id": 0, "decoder_start_token_id": 0}),
    "mbart": ("Seq2SeqLM", BART),
    "mistral": ("CausalLM", SHARED | {"sliding_window": 16}),
    "mixtral": ("CausalLM", SHARED | {"num_local_experts": 4}),
    "mobilebert": ("MaskedLM", SIZES | {"embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16}),
    "modernbert": (
        "MaskedLM",
        SIZES
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 3, "sep_token_id": 4}
        | {"local_attention": 16},
    ),
    "mpnet": ("MaskedLM", SIZES),
    "mpt": ("CausalLM", {"vocab_size": 99, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 512}),
    "mra": ("MaskedLM", SIZES),
    "mt5": ("Seq2SeqLM", T5),
    "olmo": ("CausalLM", SIZES),
    "olmo2": ("CausalLM", SIZES),
    "openai-gpt": ("CausalLM", GPT),
    "pegasus": ("Seq2SeqLM", BART),
    "persimmon": ("CausalLM", SIZES),
    "phi": ("CausalLM", SIZES),
    "phi3": ("CausalLM", SIZES | {"pad_token_id": 0}),
    "prophetnet": (
        "Seq2SeqLM",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "max_position_embeddings": 512,
        },
    ),
    "qwen2": ("CausalLM", SHARED),
    "qwen3": ("CausalLM", GEMMA),
    "qwen3_moe": ("CausalLM", MOE),
    "recurrent_gemma": (
        "CausalLM",
        {key: SIZES[key] for key in SIZES if key != "max_position_embeddings"}
        | {"num_hidden_layers": 3, "attention_window_size": 16, "lru_width": 32},
    ),
    "reformer": (
        "CausalLM",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "attention_head_size": 8,
            "feed_forward_size": 64,
            "is_decoder": True,
            "attn_layers": ["local", "lsh"],
            "local_attn_chunk_length": 16,
            "lsh_attn_chunk_length": 16,
            "axial_pos_shape": [16, 32],
            "axial_pos_embds_dim": [16, 16],
            "num_buckets": 4,
            "max_position_embeddings": 512,
            "hash_seed": 1,
        },
    ),
    "roformer": ("MaskedLM", SIZES | {"embedding_size": 32}),
    "rwkv": ("CausalLM", {key: SSM[key] for key in SSM if key != "state_size"} | {"attention_hidden_size": 32}),
    "stablelm": ("CausalLM", SHARED),
    "starcoder2": ("CausalLM", SHARED),
    "switch_transformers": ("Seq2SeqLM", T5 | {"num_experts": 4}),
    "xglm": (
        "CausalLM",
        {"vocab_size": 99, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64}
        | {"max_position_embeddings": 512},
    ),
    "xlm": ("MaskedLM", {"vocab_size": 99, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 512}),
    "xlnet": ("CausalLM", {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}),
    "yoso": ("MaskedLM", SIZES | {"use_expectation": True}),
}
SCAN = "fault: the scan of a chunk of several tokens starts from zero, and not from the cached recurrent state"
NO_MASK = "fault: it expects -10000 at padding, but gets the mask of ones and zeros, so it masks nothing"
BLOCKS = "property: scores are approximated by means over blocks of 32 columns, which padding on the left moves"
TOP = "fault: with two heads of the indexer, many scores are 0; top-k breaks these ties by the number of columns"
BREAKS: dict[str, dict[str, str]] = {
    "convbert": {"padding": "property: its convolutions read the columns of padding"},
    "deepseek_v32": {"chunk": TOP, "padding": TOP},
    "falcon_mamba": {"chunk": SCAN},
    "fnet": {"dtype": "limit of PyTorch: its Fourier transforms have no bfloat16"},
    "fsmt": {
        "chunk": "fault: with use_cache=True its decoder has no causal mask, so the tokens of a prompt read ahead"
    },
    "funnel": {"padding": "property: pooling merges a real token with padding"},
    "jamba": {"chunk": SCAN},
    "mamba": {"chunk": SCAN},
    "mra": {"dtype": "limit: its attention computes in float32, and the output is not cast back", "padding": BLOCKS},
    "prophetnet": {
        "chunk": "fault: relative positions of the predicting stream are laid out as [head, token], but its buckets as "
        "[token, head], so that they mix with the length of the row"
    },
    "recurrent_gemma": {
        "padding": "limit: the recurrence and the convolution take no mask and read padding on the left"
    },
    "reformer": {
        "padding": "property: hashed tokens are sorted with the padding before they are cut into chunks",
        "peek": "property: the whole row is sorted by its hashes, so later tokens decide which tokens share a chunk",
    },
    "rwkv": {
        "chunk": "fault: in decoding, the shifted state [B D] broadcasts against tokens [B 1 D], which mixes the batch",
        "padding": "limit: attention_mask is not used, and the recurrence reads padding on the left",
    },
    "switch_transformers": {
        "chunk": "property: each expert takes a limited number of a row's tokens and drops the rest"
    },
    "yoso": {"padding": NO_MASK},
}


def tiny(name: str) -> Any:
    """Return a tiny random model of transformers in eval mode, by its model type."""
    head, keywords = (PLAIN | MORE)[name]
    config = transformers.AutoConfig.for_model(name, **keywords)
    build: Callable[..., Any] = getattr(transformers, f"AutoModelFor{head}").from_config
    return build(config).eval()
