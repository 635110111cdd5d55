"""GPT-NeoX, such as the Pythia suite: parallel sublayers and partial RoPE."""

from typing import Any

from kinformer.bridge.family import Family, rules
from kinformer.bridge.rope import canonical_rope, read_scaling, rope_parameters, write_rope
from kinformer.bridge.settings import ACTIVATIONS, Config, Constants, Keyword, Keywords, Setting, UnreadableKey
from kinformer.bridge.tensors import ByHead
from kinformer.core.checks import resolve_head_dim
from kinformer.members.gpt_neox import gpt_neox, quarter


class PartialRope(Setting):
    """The base and the scaling of RoPE, and the part of each head that it rotates."""

    keys = ("rope_parameters", "rope_scaling", "rotary_emb_base", "rotary_pct", "rope_theta", "partial_rotary_factor")

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        values = {key: config[key] for key in self.keys if config.get(key) is not None}
        parameters = rope_parameters(config)
        base = parameters.get("rope_theta", values.get("rotary_emb_base", 10000.0))
        share = parameters.get("partial_rotary_factor", values.get("rotary_pct", 0.25))
        for key, value in (("rope_theta", base), ("partial_rotary_factor", share)):
            if values.get(key, value) != value:  # transformers does not read these keys beside the others
                raise UnreadableKey(key, values[key], f"{value} as in rope_parameters, rotary_emb_base and rotary_pct")
        width = resolve_head_dim(keywords["d"], keywords["heads"])
        turned = int(width * share)
        scaling = read_scaling(config, also=("partial_rotary_factor",))
        return {"base": float(base), "turned": None if turned == quarter(width) else turned, "scaling": scaling}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        width = resolve_head_dim(keywords["d"], keywords["heads"])
        share = _turned(keywords, width) / width
        return {"rope_parameters": {**write_rope(keywords), "partial_rotary_factor": share}}

    def canonical(self, keywords: Keywords) -> dict[str, Any]:
        width = resolve_head_dim(keywords["d"], keywords["heads"], keywords["head_dim"])
        return canonical_rope(keywords, _turned(keywords, width))


def _turned(keywords: Keywords, width: int) -> int:
    """Return the number of rotating dimensions of a head of this width."""
    return quarter(width) if keywords["turned"] is None else keywords["turned"]


LAYER = "gpt_neox.layers.{n}."

FAMILIES = (
    Family(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        gpt_neox,
        (
            Keyword("vocab_size", "vocab"),
            Keyword("hidden_size", "d"),
            Keyword("num_hidden_layers", "depth"),
            Keyword("num_attention_heads", "heads"),
            Keyword("intermediate_size", "hidden", usual=lambda keywords: 4 * keywords["d"]),
            Keyword("hidden_act", "activation", "gelu", values=ACTIVATIONS),
            Keyword("attention_bias", "bias", True),
            Keyword("layer_norm_eps", "eps", 1e-5),
            Keyword("tie_word_embeddings", "tie", False),
            Keyword("use_parallel_residual", "parallel", True),
            PartialRope(),
            Constants(head_dim=None),
        ),
        rules(
            ("embedding.weight", "gpt_neox.embed_in.weight"),
            ("head.weight", "embed_out.weight"),
            ("body.norm.{p}", "gpt_neox.final_layer_norm.{p}"),
            *(
                line
                for block in ("body.layers.{n}.layers.0.", "body.layers.{n}.")  # parallel, or one after the other
                for line in (
                    (block + "norms.0.{p}", LAYER + "input_layernorm.{p}"),
                    (block + "norms.1.{p}", LAYER + "post_attention_layernorm.{p}"),
                    (block + "layers.0.projection.qkv.{p}", LAYER + "attention.query_key_value.{p}", ByHead()),
                    (block + "layers.0.aggregation.linear.{p}", LAYER + "attention.dense.{p}"),
                    (block + "layers.1.up.{p}", LAYER + "mlp.dense_h_to_4h.{p}"),
                    (block + "layers.1.down.{p}", LAYER + "mlp.dense_4h_to_h.{p}"),
                )
            ),
        ),
        base_model_prefix="gpt_neox.",
        length_key="max_position_embeddings",
        unread=frozenset({"is_decoder"}),  # read by models of other types only
        ignored_tensors=(r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    ),
)
