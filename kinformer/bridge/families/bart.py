"""BART: a Transformer with normalised embeddings, and two unused rows in each table of positions."""

from kinformer.bridge.families.marian import SIDE_ALIASES, SIZES, TIED_NAMES, UNREAD, tensors
from kinformer.bridge.family import Family, rules
from kinformer.bridge.settings import Constants, Keyword, OneValue, TargetTokens
from kinformer.bridge.tensors import LaterRows
from kinformer.members.transformer import transformer

SIDES = ("encoder", "decoder")

FAMILIES = (
    Family(
        "bart",
        "BartForConditionalGeneration",
        transformer,
        (
            TargetTokens(begin=2, end=2, pad=1),
            Keyword("d_model", "d", 1024),
            *SIZES,
            Keyword("max_position_embeddings", "length", 1024),
            OneValue("normalize_embedding", True),
            OneValue("static_position_embeddings", False),
            Constants(position="learned", embedding_norm=True),
        ),
        rules(
            *[
                (f"{side}.layers.0.position.table.weight", f"model.{side}.embed_positions.weight", LaterRows(2))
                for side in SIDES
            ],
            *[(f"{side}.layers.0.block.norm.{{p}}", f"model.{side}.layernorm_embedding.{{p}}") for side in SIDES],
            *tensors("{n+1}"),
        ),
        base_model_prefix="model.",
        aliases=SIDE_ALIASES,
        unread=UNREAD | {"extra_pos_embeddings", "force_bos_token_to_be_generated"},  # forced_bos_token_id says it
        ignored_tensors=(r"model\.(en|de)coder\.version",),
        tied_names=TIED_NAMES,
        optional_zero_tensors=("final_logits_bias",),
    ),
)
