"""BigBird as transformers computes it outside training.

Every row has the result that a freshly loaded model of transformers gives for a batch of this row. In transformers, a
short row switches the model to full attention for good, and padding moves the last global block of a row.
"""

from typing import Any

from kinformer.bridge.families.bert import (
    BERT_HEAD,
    GELUS,
    HEAD_PREFIXES,
    IGNORED_TENSORS,
    SIZES,
    MaskToken,
    encoder_tensors,
)
from kinformer.bridge.family import Family
from kinformer.bridge.settings import Config, Constants, Keyword, Keywords, OneValue, Setting, UnreadableKey
from kinformer.members.bigbird import bigbird

SPARSE, FULL = "block_sparse", "original_full"


class FullRows(Setting):
    """Rows with full attention: all rows, or rows that are too short for the blocks of "block_sparse"."""

    keys = ("attention_type",)

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        attention_type = config.get("attention_type", SPARSE)
        if attention_type not in (SPARSE, FULL):
            raise UnreadableKey("attention_type", attention_type, f"{SPARSE!r} or {FULL!r}")
        return {"full_up_to": keywords["length"] if attention_type == FULL else _too_short(keywords)}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {"attention_type": SPARSE if keywords["full_up_to"] == _too_short(keywords) else FULL}


def _too_short(keywords: Keywords) -> int:
    """Return the longest row that transformers reads in full: 2 global, 3 near and twice as many random blocks."""
    return int((5 + 2 * keywords["keys"]) * keywords["block"])


FAMILIES = (
    Family(
        "big_bird",
        "BigBirdForMaskedLM",
        bigbird,
        (
            *SIZES,
            Keyword("max_position_embeddings", "length", 4096, least=1),
            Keyword("block_size", "block", 64, least=1),
            Keyword("num_random_blocks", "keys", 3, least=1),
            FullRows(),
            Keyword("hidden_act", "activation", "gelu_new", values=GELUS),
            OneValue("use_bias", True),
            OneValue("rescale_embeddings", False),
            MaskToken(67),
            Constants(form="itc", window=1, draw="first", tables=None),
        ),
        encoder_tensors("bert.", (), BERT_HEAD, block="body.layer.layers.{n}."),
        base_model_prefix="bert.",
        ignored_tensors=IGNORED_TENSORS,
        head_prefixes=HEAD_PREFIXES,
    ),
)
