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
            OneValue("slow_but_exact", False),
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
        prefix="transformer.",
        length_key="seq_length",
        unread=frozenset({"masked_softmax_fusion", "bias_dropout_fusion", "unk_token_id"}),
    ),
)
