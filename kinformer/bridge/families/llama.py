"""Llama and its kin: Mistral (a sliding window), Qwen2 (biases), Qwen3 (norms of queries and keys)."""

from collections.abc import Mapping
from typing import Any

from kinformer.bridge.family import Family, rules
from kinformer.bridge.settings import ACTIVATIONS, Config, Constants, Keyword, Keywords, Setting, UnreadableKey
from kinformer.bridge.tensors import Stacked
from kinformer.members.llama import llama


def rope_parameters(config: Config) -> Mapping[str, Any]:
    """Return the parameters of the rotations; as in transformers, the older key comes first.

    config: the foreign config.

    Errors: UnreadableKey for scaled rotations, and for values that are no parameters.
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    parameters = config.get(key) or {}
    is_mapping = isinstance(parameters, Mapping)
    if not is_mapping or parameters.get("rope_type", parameters.get("type", "default")) != "default":
        raise UnreadableKey(key, parameters, "rope_type 'default'")
    return parameters


class Rope(Setting):
    """The base of the rotations; scaled rotations are refused."""

    keys = ("rope_parameters", "rope_theta", "rope_scaling")

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        return {"base": float(rope_parameters(config).get("rope_theta", config.get("rope_theta", 10000.0)))}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {"rope_parameters": {"rope_theta": keywords["base"], "rope_type": "default"}}


class SlidingWindow(Setting):
    """Mistral's sliding window: each query reads the last `sliding_window` tokens, itself included."""

    keys = ("sliding_window",)

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        width = config.get("sliding_window")
        return {"pattern": FULL if width is None else windowed(width)}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {"sliding_window": width_of(keywords["pattern"])}


class LayerWindows(Setting):
    """Qwen's sliding windows, which only some layers have.

    `layer_types` names these layers. Without it, they are the layers from `max_window_layers` on.
    """

    keys = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        width = config.get("sliding_window") if config.get("use_sliding_window") else None
        depth = keywords["depth"]
        kinds = config.get("layer_types") or [
            "full_attention" if n < config.get("max_window_layers", 28) else "sliding_attention" for n in range(depth)
        ]
        if strange := [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]:
            raise UnreadableKey("layer_types", strange[0], "full_attention or sliding_attention")
        patterns = tuple(FULL if width is None or kind == "full_attention" else windowed(width) for kind in kinds)
        return {"pattern": patterns[0] if len(set(patterns)) == 1 else patterns}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        pattern, depth = keywords["pattern"], keywords["depth"]
        widths = [width_of(text) for text in (pattern if isinstance(pattern, tuple) else (pattern,) * depth)]
        kinds = ["full_attention" if width is None else "sliding_attention" for width in widths]
        width = next((width for width in widths if width is not None), None)
        return {"layer_types": kinds, "sliding_window": width, "use_sliding_window": width is not None}


FULL = "Causal()"


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
    Keyword("num_key_value_heads", "key_heads"),
    Keyword("head_dim", "head_dim", usual=lambda keywords: keywords["d"] // keywords["heads"]),
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


def _family(kind: str, architecture: str, *settings: Setting) -> Family:
    return Family(
        kind,
        architecture,
        llama,
        (*BASE, *settings),
        TENSORS,
        prefix="model.",
        length_key="max_position_embeddings",
        spare=(r".*rotary_emb\.inv_freq",),
    )


FAMILIES = (
    _family("llama", "LlamaForCausalLM", UNTIED, NO_WINDOW, Biases(), Constants(query_norm=False)),
    _family("mistral", "MistralForCausalLM", UNTIED, SlidingWindow(), Constants(bias="none", query_norm=False)),
    _family("qwen2", "Qwen2ForCausalLM", UNTIED, LayerWindows(), Constants(bias="qkv", query_norm=False)),
    _family(
        "qwen3",
        "Qwen3ForCausalLM",
        UNTIED,
        LayerWindows(),
        Keyword("attention_bias", "bias", False, values={False: "none", True: "attention"}),
        Constants(query_norm=True),
    ),
)
