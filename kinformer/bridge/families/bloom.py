"""BLOOM, whose queries, keys and values lie head by head in one matrix."""

from kinformer.bridge.family import Family, rules
from kinformer.bridge.settings import Constants, Keyword, OneValue
from kinformer.bridge.tensors import ByHead
from kinformer.members.bloom import bloom

BLOCK, LAYER = "body.layers.{n+1}.", "transformer.h.{n}."  # our first layer is the norm of the embeddings

FAMILIES = (
    Family(
        "bloom",
        "BloomForCausalLM",
        bloom,
        (
            Keyword("vocab_size", "vocab"),
            Keyword("hidden_size", "d"),
            Keyword("n_layer", "depth"),
            Keyword("n_head", "heads"),
            Keyword("layer_norm_epsilon", "eps", 1e-5),
            Keyword("tie_word_embeddings", "tie", True),
            OneValue("apply_residual_connection_post_layernorm", False),
            Constants(head_dim=None),
        ),
        rules(
            ("embedding.weight", "transformer.word_embeddings.weight"),
            ("head.weight", "lm_head.weight"),
            ("body.layers.0.norm.{p}", "transformer.word_embeddings_layernorm.{p}"),
            ("body.norm.{p}", "transformer.ln_f.{p}"),
            (BLOCK + "norms.0.{p}", LAYER + "input_layernorm.{p}"),
            (BLOCK + "norms.1.{p}", LAYER + "post_attention_layernorm.{p}"),
            (BLOCK + "layers.0.projection.qkv.{p}", LAYER + "self_attention.query_key_value.{p}", ByHead()),
            (BLOCK + "layers.0.aggregation.linear.{p}", LAYER + "self_attention.dense.{p}"),
            (BLOCK + "layers.1.up.{p}", LAYER + "mlp.dense_h_to_4h.{p}"),
            (BLOCK + "layers.1.down.{p}", LAYER + "mlp.dense_4h_to_h.{p}"),
        ),
        base_model_prefix="transformer.",
        length_key="seq_length",
        aliases={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
        unread=frozenset(
            # how the training computed, which transformers does not read; slow_but_exact changes only how numbers round
            "masked_softmax_fusion bias_dropout_fusion skip_bias_add skip_bias_add_qkv attention_softmax_in_fp32 "
            "offset_alibi pretraining_pp slow_but_exact".split()
        ),
    ),
)
