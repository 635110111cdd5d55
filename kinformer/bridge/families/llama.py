"""Llama and its kin: Mistral (a sliding window), Qwen2 (biases), Qwen3 (norms of queries and keys)."""

from typing import Any

from kinformer.bridge.family import Family, rules
from kinformer.bridge.rope import canonical_rope, read_scaling, rope_parameters, write_rope
from kinformer.bridge.settings import ACTIVATIONS, Config, Constants, Keyword, Keywords, Setting, UnreadableKey
from kinformer.bridge.tensors import Stacked
from kinformer.core.checks import resolve_head_dim
from kinformer.members.llama import llama


class Rope(Setting):
    """The base and the scaling of RoPE."""

    keys = ("rope_parameters", "rope_theta", "rope_scaling")

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        base = rope_parameters(config).get("rope_theta", config.get("rope_theta", 10000.0))
        return {"base": float(base), "scaling": read_scaling(config)}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {"rope_parameters": write_rope(keywords)}

    def canonical(self, keywords: Keywords) -> dict[str, Any]:
        width = resolve_head_dim(keywords["d"], keywords["heads"], keywords["head_dim"])
        return canonical_rope(keywords, width if keywords["turned"] is None else keywords["turned"])


class KeyHeads(Setting):
    """The number of heads of keys and values; null stands for the number of query heads.

    default: value that a config without the key has.
    """

    keys = ("num_key_value_heads",)

    def __init__(self, default: int | None) -> None:
        self.default = default

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        number = config.get("num_key_value_heads", self.default)
        return {"key_heads": keywords["heads"] if number is None else number}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {"num_key_value_heads": keywords["key_heads"]}


class SlidingWindow(Setting):
    """Mistral's sliding window: each query reads the last `sliding_window` tokens, itself included."""

    keys = ("sliding_window",)

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        width = config.get("sliding_window", USUAL_WINDOW)
        return {"pattern": FULL if width is None else windowed(width)}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {"sliding_window": width_of(keywords["pattern"])}


class LayerWindows(Setting):
    """Qwen's sliding windows, which only some layers have.

    `layer_types` names these layers. Without it, they are the layers from `max_window_layers` on.
    """

    keys = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        width = config.get("sliding_window", USUAL_WINDOW) if config.get("use_sliding_window") else None
        depth = keywords["depth"]
        layer_types = config.get("layer_types") or [
            "full_attention" if n < config.get("max_window_layers", 28) else "sliding_attention" for n in range(depth)
        ]
        if unknown := [name for name in layer_types if name not in ("full_attention", "sliding_attention")]:
            raise UnreadableKey("layer_types", unknown[0], "full_attention or sliding_attention")
        patterns = tuple(FULL if width is None or name == "full_attention" else windowed(width) for name in layer_types)
        return {"pattern": patterns[0] if len(set(patterns)) == 1 else patterns}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        pattern, depth = keywords["pattern"], keywords["depth"]
        widths = [width_of(text) for text in (pattern if isinstance(pattern, tuple) else (pattern,) * depth)]
        layer_types = ["full_attention" if width is None else "sliding_attention" for width in widths]
        width = next((width for width in widths if width is not None), None)
        return {"layer_types": layer_types, "sliding_window": width, "use_sliding_window": width is not None}


FULL = "Causal()"
USUAL_WINDOW = 4096  # of a config of Mistral or Qwen without the key; null is no window


def windowed(width: int) -> str:
    """Return the pattern of a causal window.

    width: number of tokens that each query reads, itself included.
    """
    return f"Causal() & Band({width - 1})"


def width_of(pattern: Any) -> int | None:
    """Return the width of a causal window; None for another pattern.

    pattern: the pattern as text.
    """
    head, _, rest = str(pattern).partition("Causal() & Band(")
    return int(rest[:-1]) + 1 if not head and rest.endswith(")") and rest[:-1].isdigit() else None


class Biases(Setting):
    """Llama's biases of attention and of the feed-forward layer."""

    keys = ("attention_bias", "mlp_bias")

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        attention, mlp = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
        if mlp and not attention:
            raise UnreadableKey("mlp_bias", True, "False, or attention_bias=True too")
        return {"bias": "all" if mlp else "attention" if attention else "none"}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {"attention_bias": keywords["bias"] in ("attention", "all"), "mlp_bias": keywords["bias"] == "all"}


BASE = (
    Keyword("vocab_size", "vocab"),
    Keyword("hidden_size", "d"),
    Keyword("num_hidden_layers", "depth"),
    Keyword("num_attention_heads", "heads"),
    Keyword("intermediate_size", "hidden", usual=lambda keywords: round(8 * keywords["d"] / 3)),
    Keyword("rms_norm_eps", "eps", 1e-6),
    Keyword("hidden_act", "activation", "silu", values=ACTIVATIONS),
    Rope(),
)
UNTIED, NO_WINDOW = Keyword("tie_word_embeddings", "tie", False), Constants(pattern=FULL)
LAYER = "model.layers.{n}."
TENSORS = rules(
    ("embedding.weight", "model.embed_tokens.weight"),
    ("head.weight", "lm_head.weight"),
    ("body.norm.weight", "model.norm.weight"),
    ("body.layers.{n}.norms.0.weight", LAYER + "input_layernorm.weight"),
    ("body.layers.{n}.norms.1.weight", LAYER + "post_attention_layernorm.weight"),
    (
        "body.layers.{n}.layers.0.projection.qkv.{p}",
        [LAYER + f"self_attn.{name}_proj.{{p}}" for name in "qkv"],
        Stacked(),
    ),
    ("body.layers.{n}.layers.0.projection.q_norm.weight", LAYER + "self_attn.q_norm.weight"),
    ("body.layers.{n}.layers.0.projection.k_norm.weight", LAYER + "self_attn.k_norm.weight"),
    ("body.layers.{n}.layers.0.aggregation.linear.{p}", LAYER + "self_attn.o_proj.{p}"),
    ("body.layers.{n}.layers.1.gate.{p}", LAYER + "mlp.gate_proj.{p}"),
    ("body.layers.{n}.layers.1.up.{p}", LAYER + "mlp.up_proj.{p}"),
    ("body.layers.{n}.layers.1.down.{p}", LAYER + "mlp.down_proj.{p}"),
)


# keys of the software that trained SmolLM2 and Qwen2; transformers reads none of them
UNREAD = frozenset({"is_llama_config", "rope_interleaved", "use_mrope"})


def _family(
    model_type: str, architecture: str, *settings: Setting, key_heads: int | None, head_dim: int | None = None
) -> Family:
    """Return a family of the kin.

    key_heads, head_dim: values that a config without the keys has.
    """
    width = Keyword("head_dim", "head_dim", head_dim, usual=lambda keywords: keywords["d"] // keywords["heads"])
    return Family(
        model_type,
        architecture,
        llama,
        (*BASE, KeyHeads(key_heads), width, *settings),
        TENSORS,
        base_model_prefix="model.",
        length_key="max_position_embeddings",
        unread=UNREAD,
        ignored_tensors=(r".*rotary_emb\.inv_freq",),
    )


FAMILIES = (
    _family("llama", "LlamaForCausalLM", UNTIED, NO_WINDOW, Biases(), Constants(query_norm=False), key_heads=None),
    _family(
        "mistral", "MistralForCausalLM", UNTIED, SlidingWindow(), Constants(bias="none", query_norm=False), key_heads=8
    ),
    _family("qwen2", "Qwen2ForCausalLM", UNTIED, LayerWindows(), Constants(bias="qkv", query_norm=False), key_heads=32),
    _family(
        "qwen3",
        "Qwen3ForCausalLM",
        UNTIED,
        LayerWindows(),
        Keyword("attention_bias", "bias", False, values={False: "none", True: "attention"}),
        Constants(query_norm=True),
        key_heads=32,
        head_dim=128,
    ),
)
