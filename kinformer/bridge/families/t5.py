"""T5, its version 1.1 and FLAN-T5."""

from typing import Any

from torch import nn

from kinformer.bridge.family import Family, rules
from kinformer.bridge.settings import (
    ACTIVATIONS,
    Config,
    Keyword,
    Keywords,
    OneValue,
    Setting,
    TargetTokens,
    UnreadableKey,
)
from kinformer.bridge.tensors import Same, Stacked
from kinformer.members.t5 import t5
from kinformer.nn.feedforward.mlp import MLP, GatedMLP


class FeedForward(Setting):
    """The feed-forward layer: the name of its activation, after "gated-" if it has a gate.

    The name "gated-gelu" means the approximation of GPT-2. `dense_act_fn` and `is_gated_act` repeat what it says.
    """

    keys = ("feed_forward_proj", "dense_act_fn", "is_gated_act")

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        name = config.get("feed_forward_proj", "relu")
        gate, _, activation = name.rpartition("-") if isinstance(name, str) else ("", "", "")
        usual = "gelu_new" if name == "gated-gelu" else activation
        activation, gated = config.get("dense_act_fn", usual), config.get("is_gated_act", gate == "gated")
        if gate not in ("", "gated") or activation not in ACTIVATIONS:
            raise UnreadableKey("feed_forward_proj", name, "relu or gated-gelu, or another activation")
        return {"gated": gated, "activation": ACTIVATIONS[activation]}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
        name, gate = names[keywords["activation"]], "gated-" if keywords["gated"] else ""
        return {
            "feed_forward_proj": "gated-gelu" if gate and name == "gelu_new" else gate + name,
            "dense_act_fn": name,
            "is_gated_act": keywords["gated"],
        }


class OutputScale(Setting):
    """Tie of the head to the embedding, which scales the output. Transformers 5 writes only the scale."""

    keys = ("scale_decoder_outputs", "tie_word_embeddings")

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        return {"tie": config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {"tie_word_embeddings": keywords["tie"]}


MATRICES = (("up", "wi", MLP), ("gate", "wi_0", GatedMLP), ("up", "wi_1", GatedMLP), ("down", "wo", nn.Module))


def _attention(ours: str, theirs: str) -> tuple[tuple[Any, ...], ...]:
    return (
        (ours + ".projection.qkv.weight", [f"{theirs}.{name}.weight" for name in "qkv"], Stacked()),
        (ours + ".aggregation.linear.weight", theirs + ".o.weight"),
    )


def _tensors() -> list[tuple[Any, ...]]:
    """Return the lines of the tensor table."""
    lines: list[tuple[Any, ...]] = [("embedding.weight", "shared.weight"), ("head.weight", "lm_head.weight")]
    for side, last in (("encoder", 1), ("decoder", 2)):
        ours, theirs = f"{side}.layers.{{n}}.", f"{side}.block.{{n}}.layer."
        lines += [
            (
                ours + "layers.0.mechanism.bias.table",
                f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            ),
            *_attention(ours + "layers.0", theirs + "0.SelfAttention"),
            *(_attention(ours + "layers.1", theirs + "1.EncDecAttention") if last == 2 else ()),
            *[(f"{ours}norms.{n}.weight", f"{theirs}{n}.layer_norm.weight") for n in range(last + 1)],
            *[
                (f"{ours}layers.{last}.{part}.weight", f"{theirs}{last}.DenseReluDense.{name}.weight", Same(), owner)
                for part, name, owner in MATRICES
            ],
            (f"{side}.norm.weight", f"{side}.final_layer_norm.weight"),
        ]
    return lines


FAMILIES = (
    Family(
        "t5",
        "T5ForConditionalGeneration",
        t5,
        (
            TargetTokens(begin=0, end=1),
            Keyword("d_model", "d"),
            Keyword("num_layers", "depth"),
            Keyword("num_decoder_layers", "decoder_depth", usual=lambda keywords: keywords["depth"]),
            Keyword("num_heads", "heads"),
            Keyword("d_kv", "head_dim", 64, usual=lambda keywords: keywords["d"] // keywords["heads"]),
            Keyword("d_ff", "hidden"),
            Keyword("relative_attention_num_buckets", "buckets", 32),
            Keyword("relative_attention_max_distance", "furthest", 128),
            Keyword("layer_norm_epsilon", "eps", 1e-6),
            FeedForward(),
            OutputScale(),
            OneValue("is_decoder", False),
            OneValue("is_encoder_decoder", True),
            OneValue("forced_bos_token_id", None),
        ),
        rules(*_tensors()),
        aliases={
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "head_dim": "d_kv",
        },
        unread=frozenset({"dropout_rate", "n_positions"}),  # positions have no end
        # biases of distances between two sequences, which old versions wrote and none reads
        ignored_tensors=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
        tied_names={
            f"{name}.weight": "shared.weight" for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
        },
    ),
)
