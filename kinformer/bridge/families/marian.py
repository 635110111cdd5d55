"""Marian: the Transformer of 2017 as OPUS-MT translates with it."""

from typing import Any

import torch
from torch import Tensor

from kinformer.bridge.family import Family, rules
from kinformer.bridge.settings import (
    ACTIVATIONS,
    Config,
    Constants,
    Equal,
    Keyword,
    Keywords,
    OneValue,
    TargetTokens,
    UnreadableKey,
)
from kinformer.bridge.tensors import Row, Stacked
from kinformer.members.transformer import transformer
from kinformer.nn.positions.sinusoidal import Sinusoidal


class EvenWidth(Keyword):
    """The width of Marian, which must be even: transformers has one more sine than cosines in an odd one."""

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        read = super().read(config, keywords)
        if read["d"] % 2:
            raise UnreadableKey("d_model", read["d"], "an even number")
        return read


SIZES = (
    Keyword("encoder_layers", "depth", 12),
    Keyword("decoder_layers", "decoder_depth", 12, usual=lambda keywords: keywords["depth"]),
    Keyword("encoder_attention_heads", "heads", 16),
    Equal("decoder_attention_heads", "heads", 16),
    Keyword("encoder_ffn_dim", "hidden", 4096),
    Equal("decoder_ffn_dim", "hidden", 4096),
    Keyword("activation_function", "activation", "gelu", values=ACTIVATIONS),
    Keyword("scale_embedding", "scale", False),
    Keyword("tie_word_embeddings", "tie", True),
    Keyword("forced_bos_token_id", "first", usual=lambda keywords: None),
    OneValue("normalize_before", False),
    OneValue("add_final_layer_norm", False),
    OneValue("add_bias_logits", False),
    OneValue("is_decoder", False),
    OneValue("is_encoder_decoder", True),
    Constants(norm="post", pattern="Full()", head_bias=True, head_dim=None),
)
SIDE_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}
UNREAD = frozenset({"encoder_layerdrop", "decoder_layerdrop", "classif_dropout"})


def _attention(ours: str, theirs: str) -> tuple[tuple[object, ...], ...]:
    return (
        (ours + ".projection.qkv.{p}", [theirs + f".{name}_proj.{{p}}" for name in "qkv"], Stacked()),
        (ours + ".aggregation.linear.{p}", theirs + ".out_proj.{p}"),
    )


def tensors(number: str) -> tuple[tuple[object, ...], ...]:
    """Return the lines of the tensor table that Marian and BART share.

    number: placeholder of the number of our layer.
    """
    ours, theirs = f"coder.layers.{number}.", "coder.layers.{n}."
    read, write = f"en{ours}", f"de{ours}"
    return (
        ("embedding.weight", "model.shared.weight"),
        ("head.weight", "lm_head.weight"),
        ("head.bias", "final_logits_bias", Row()),
        *_attention(read + "layers.0", f"model.en{theirs}self_attn"),
        (read + "norms.0.{p}", f"model.en{theirs}self_attn_layer_norm.{{p}}"),
        (read + "layers.1.up.{p}", f"model.en{theirs}fc1.{{p}}"),
        (read + "layers.1.down.{p}", f"model.en{theirs}fc2.{{p}}"),
        (read + "norms.1.{p}", f"model.en{theirs}final_layer_norm.{{p}}"),
        *_attention(write + "layers.0", f"model.de{theirs}self_attn"),
        (write + "norms.0.{p}", f"model.de{theirs}self_attn_layer_norm.{{p}}"),
        *_attention(write + "layers.1", f"model.de{theirs}encoder_attn"),
        (write + "norms.1.{p}", f"model.de{theirs}encoder_attn_layer_norm.{{p}}"),
        (write + "layers.2.up.{p}", f"model.de{theirs}fc1.{{p}}"),
        (write + "layers.2.down.{p}", f"model.de{theirs}fc2.{{p}}"),
        (write + "norms.2.{p}", f"model.de{theirs}final_layer_norm.{{p}}"),
    )


def sines(rows: int, width: int) -> Tensor:
    """Return the table of positions that the member computes.

    rows, width: shape of the table.
    """
    return Sinusoidal(width, layout="concat", frequencies="paper").double()(torch.arange(rows)[None])[0]


TIED_NAMES = {f"model.{side}.embed_tokens.weight": "model.shared.weight" for side in ("encoder", "decoder")}

FAMILIES = (
    Family(
        "marian",
        "MarianMTModel",
        transformer,
        (
            TargetTokens(begin=58100, end=0),
            EvenWidth("d_model", "d", 1024),
            *SIZES,
            OneValue("normalize_embedding", False),
            OneValue("static_position_embeddings", True),
            OneValue("share_encoder_decoder_embeddings", True),
            Constants(position="sines_first", embedding_norm=False),
        ),
        rules(*tensors("{n}")),
        base_model_prefix="model.",
        length_key="max_position_embeddings",
        aliases=SIDE_ALIASES,
        unread=UNREAD | {"extra_pos_embeddings", "decoder_vocab_size"},
        computed_tables={r"model\.(en|de)coder\.embed_positions\.weight": sines},
        tied_names=TIED_NAMES,
        optional_zero_tensors=("final_logits_bias",),
    ),
)
