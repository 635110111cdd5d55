"""OPT: GPT-2's decoder with ReLU, whose table of positions begins with two unused rows."""

from typing import Any

from kinformer.bridge.family import Family, rules
from kinformer.bridge.settings import (
    ACTIVATIONS,
    Config,
    Constants,
    Keyword,
    Keywords,
    OneValue,
    Setting,
    UnreadableKey,
)
from kinformer.bridge.tensors import LaterRows, Stacked
from kinformer.members.gpt import gpt


class EmbeddingWidth(Setting):
    """The width of the embeddings, which must be the width of the model."""

    keys = ("word_embed_proj_dim",)

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        if (width := config.get("word_embed_proj_dim", keywords["d"])) != keywords["d"]:
            raise UnreadableKey("word_embed_proj_dim", width, f"hidden_size={keywords['d']}")
        return {}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {"word_embed_proj_dim": keywords["d"]}


LAYER = "model.decoder.layers.{n}."

FAMILIES = (
    Family(
        "opt",
        "OPTForCausalLM",
        gpt,
        (
            Keyword("vocab_size", "vocab"),
            Keyword("hidden_size", "d"),
            Keyword("num_hidden_layers", "depth"),
            Keyword("num_attention_heads", "heads"),
            Keyword("max_position_embeddings", "length", 2048),
            Keyword("ffn_dim", "hidden", usual=lambda keywords: 4 * keywords["d"]),
            Keyword("activation_function", "activation", "relu", values=ACTIVATIONS),
            Keyword("tie_word_embeddings", "tie", True),
            EmbeddingWidth(),
            OneValue("do_layer_norm_before", True),
            OneValue("enable_bias", True),
            OneValue("layer_norm_elementwise_affine", True),
            OneValue("_remove_final_layer_norm", False),
            Constants(position="learned", norm="pre", pattern="Causal()", per_layer=False, head_dim=None, eps=1e-5),
        ),
        rules(
            ("embedding.weight", "model.decoder.embed_tokens.weight"),
            ("position.table.weight", "model.decoder.embed_positions.weight", LaterRows(2)),
            ("head.weight", "lm_head.weight"),
            ("body.norm.{p}", "model.decoder.final_layer_norm.{p}"),
            ("body.layers.{n}.norms.0.{p}", LAYER + "self_attn_layer_norm.{p}"),
            ("body.layers.{n}.norms.1.{p}", LAYER + "final_layer_norm.{p}"),
            (
                "body.layers.{n}.layers.0.projection.qkv.{p}",
                [LAYER + f"self_attn.{name}_proj.{{p}}" for name in "qkv"],
                Stacked(),
            ),
            ("body.layers.{n}.layers.0.aggregation.linear.{p}", LAYER + "self_attn.out_proj.{p}"),
            ("body.layers.{n}.layers.1.up.{p}", LAYER + "fc1.{p}"),
            ("body.layers.{n}.layers.1.down.{p}", LAYER + "fc2.{p}"),
        ),
        base_model_prefix="model.",
    ),
)
