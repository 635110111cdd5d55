"""Longformer, a RoBERTa with windows.

No token is global after loading. `Context(also=Marked(mask))` marks global tokens, as `global_attention_mask` does in
transformers.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kinformer.bridge.families.bert import (
    HEAD_PREFIXES,
    IGNORED_TENSORS,
    ROBERTA_HEAD,
    SIZES,
    UNUSED,
    LaterPositions,
    MaskToken,
    encoder_tensors,
)
from kinformer.bridge.family import Family
from kinformer.bridge.settings import Config, Constants, Keywords, OneValue, Setting, UnreadableKey
from kinformer.bridge.tensors import LaterRows, Stacked
from kinformer.members.longformer import longformer


class AttentionWindows(Setting):
    """The tokens of a window on both sides, as one number or a list; our window counts one side.

    Transformers pads rows to a multiple of the largest window, which must be a multiple of the others. It fails for
    windows of 2.
    """

    keys = ("attention_window",)

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        window = config.get("attention_window", 512)
        sizes = window if isinstance(window, list) else [window]
        if not all(isinstance(size, int) and size >= 4 and size % 2 == 0 for size in sizes):
            raise UnreadableKey("attention_window", window, "an even number of at least 4, or a list of them")
        if any(max(sizes) % size for size in sizes):
            raise UnreadableKey("attention_window", window, "windows that divide the largest")
        return {"window": tuple(size // 2 for size in sizes) if isinstance(window, list) else window // 2}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        window = keywords["window"]
        return {"attention_window": [2 * size for size in window] if isinstance(window, tuple) else 2 * window}


class KeysAndValues(Stacked):
    """Separate foreign maps of the keys and values that global tokens read, which are one map of ours."""

    def split(self, tensor: Tensor, owner: Any) -> Sequence[Tensor]:
        return tensor.chunk(2)


BLOCK, LAYER = "body.layers.{n}.layers.0.", "longformer.encoder.layer.{n}.attention.self."

FAMILIES = (
    Family(
        "longformer",
        "LongformerForMaskedLM",
        longformer,
        (
            *SIZES,
            LaterPositions(),
            AttentionWindows(),
            OneValue("hidden_act", "gelu"),
            OneValue("pad_token_id", 1),
            MaskToken(50264),
            Constants(marked=0),
        ),
        encoder_tensors(
            "longformer.",
            (LaterRows(UNUSED),),
            ROBERTA_HEAD,
            (BLOCK + "side.{p}", LAYER + "query_global.{p}"),
            (BLOCK + "key_side.{p}", [LAYER + "key_global.{p}", LAYER + "value_global.{p}"], KeysAndValues()),
        ),
        base_model_prefix="longformer.",
        # keys of the authors' code, which transformers does not read, and the form of an export
        unread=frozenset({"attention_mode", "ignore_attention_mask", "onnx_export"}),
        ignored_tensors=IGNORED_TENSORS,
        head_prefixes=HEAD_PREFIXES,
    ),
)
