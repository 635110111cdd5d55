"""GPT-2."""

from kinformer.bridge.family import Family, rules
from kinformer.bridge.settings import ACTIVATIONS, Constants, Keyword, OneValue
from kinformer.bridge.tensors import Transposed
from kinformer.members.gpt import gpt

LAYER = "transformer.h.{n}."

FAMILIES = (
    Family(
        "gpt2",
        "GPT2LMHeadModel",
        gpt,
        (
            Keyword("vocab_size", "vocab"),
            Keyword("n_embd", "d"),
            Keyword("n_layer", "depth"),
            Keyword("n_head", "heads"),
            Keyword("n_positions", "length", 1024),
            Keyword("n_inner", "hidden", usual=lambda keywords: 4 * keywords["d"]),
            Keyword("activation_function", "activation", "gelu_new", values=ACTIVATIONS),
            Keyword("layer_norm_epsilon", "eps", 1e-5),
            Keyword("tie_word_embeddings", "tie", True),
            OneValue("scale_attn_weights", True),
            OneValue("scale_attn_by_inverse_layer_idx", False),
            OneValue("add_cross_attention", False),
            Constants(position="learned", norm="pre", pattern="Causal()", per_layer=False, head_dim=None),
        ),
        rules(
            ("embedding.weight", "transformer.wte.weight"),
            ("position.table.weight", "transformer.wpe.weight"),
            ("head.weight", "lm_head.weight"),
            ("body.norm.{p}", "transformer.ln_f.{p}"),
            ("body.layers.{n}.norms.0.{p}", LAYER + "ln_1.{p}"),
            ("body.layers.{n}.norms.1.{p}", LAYER + "ln_2.{p}"),
            ("body.layers.{n}.layers.0.projection.qkv.{p}", LAYER + "attn.c_attn.{p}", Transposed()),
            ("body.layers.{n}.layers.0.aggregation.linear.{p}", LAYER + "attn.c_proj.{p}", Transposed()),
            ("body.layers.{n}.layers.1.up.{p}", LAYER + "mlp.c_fc.{p}", Transposed()),
            ("body.layers.{n}.layers.1.down.{p}", LAYER + "mlp.c_proj.{p}", Transposed()),
        ),
        base_model_prefix="transformer.",
        aliases={
            "hidden_size": "n_embd",
            "max_position_embeddings": "n_positions",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
        unread=frozenset({"n_ctx", "reorder_and_upcast_attn"}),  # n_positions again; only how numbers round
        ignored_tensors=(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",),
    ),
)
