"""BERT and its kin: RoBERTa (positions begin at 2), DistilBERT (no segment types). MiniLM is a BERT."""

from typing import Any

from kinformer.bridge.family import Family, rules
from kinformer.bridge.settings import Config, Constants, Keyword, Keywords, OneValue, Setting
from kinformer.bridge.tensors import LaterRows, Stacked
from kinformer.members.bert import bert

UNUSED = 2  # rows before the first position of RoBERTa


class MaskToken(Setting):
    """The id of the mask token. A folder has it in its tokenizer, and configs have none.

    usual: id in the published vocabulary; smaller vocabularies have it at their end.
    """

    keys = ("mask_token_id",)

    def __init__(self, usual: int) -> None:
        self.usual = usual

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        mask = config.get("mask_token_id")
        return {"mask": min(self.usual, keywords["vocab"] - 1) if mask is None else mask}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {"mask_token_id": keywords["mask"]}


class LaterPositions(Setting):
    """The length of a table of positions that begins with unused rows."""

    keys = ("max_position_embeddings",)

    def read(self, config: Config, keywords: Keywords) -> dict[str, Any]:
        return {"length": config.get("max_position_embeddings", 512) - UNUSED}

    def write(self, keywords: Keywords) -> dict[str, Any]:
        return {"max_position_embeddings": keywords["length"] + UNUSED}


GELUS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}  # as in ACTIVATIONS
SIZES = (
    Keyword("vocab_size", "vocab"),
    Keyword("hidden_size", "d"),
    Keyword("num_hidden_layers", "depth"),
    Keyword("num_attention_heads", "heads"),
    Keyword("intermediate_size", "hidden", usual=lambda keywords: 4 * keywords["d"]),
    Keyword("type_vocab_size", "kinds", 2, least=1),
    Keyword("layer_norm_eps", "eps", 1e-12),
    OneValue("position_embedding_type", "absolute"),
    OneValue("is_decoder", False),
    OneValue("add_cross_attention", False),
    OneValue("tie_word_embeddings", True),
    Constants(head_dim=None),
)
FULL = (
    OneValue("hidden_act", "gelu"),
    Constants(position="learned", norm="post", pattern="Full()", drawn=0, segments=None),
)


def encoder_tensors(
    root: str,
    position: tuple[Any, ...],
    head: dict[str, str],
    *further: tuple[Any, ...],
    block: str = "body.layers.{n}.",
) -> tuple[Any, ...]:
    """Return the tensor table of BERT, RoBERTa or an encoder with their names.

    root: first part of the names.
    position: form of the table of positions, if it is not the same table.
    head: foreign names of the head's parts.
    further: further lines of the table (`rules`).
    block: first part of our names of a block.
    """
    layer = root + "encoder.layer.{n}."
    return rules(
        ("embedding.weight", root + "embeddings.word_embeddings.weight"),
        ("position.table.weight", root + "embeddings.position_embeddings.weight", *position),
        ("kind.weight", root + "embeddings.token_type_embeddings.weight"),
        ("norm.{p}", root + "embeddings.LayerNorm.{p}"),
        (
            block + "layers.0.projection.qkv.{p}",
            [layer + f"attention.self.{name}.{{p}}" for name in ("query", "key", "value")],
            Stacked(),
        ),
        (block + "layers.0.aggregation.linear.{p}", layer + "attention.output.dense.{p}"),
        (block + "norms.0.{p}", layer + "attention.output.LayerNorm.{p}"),
        (block + "layers.1.up.{p}", layer + "intermediate.dense.{p}"),
        (block + "layers.1.down.{p}", layer + "output.dense.{p}"),
        (block + "norms.1.{p}", layer + "output.LayerNorm.{p}"),
        *head.items(),
        *further,
    )


HEAD_PREFIXES = ("transform.", "head.")
IGNORED_TENSORS = (  # the layers of other tasks, a second copy of the head's bias, and constants
    r"\w+\.pooler\..*",
    r"cls\.seq_relationship\..*",
    r"(cls\.predictions|lm_head)\.decoder\.bias",
    r".*(position|token_type)_ids",
)
BERT_HEAD = {
    "transform.0.{p}": "cls.predictions.transform.dense.{p}",
    "transform.2.{p}": "cls.predictions.transform.LayerNorm.{p}",
    "head.bias": "cls.predictions.bias",
    "head.weight": "cls.predictions.decoder.weight",
}
ROBERTA_HEAD = {
    "transform.0.{p}": "lm_head.dense.{p}",
    "transform.2.{p}": "lm_head.layer_norm.{p}",
    "head.bias": "lm_head.bias",
    "head.weight": "lm_head.decoder.weight",
}
DISTIL, DISTIL_BLOCK = "distilbert.transformer.layer.{n}.", "body.layers.{n}."

FAMILIES = (
    Family(
        "bert",
        "BertForMaskedLM",
        bert,
        (*SIZES, *FULL, Keyword("max_position_embeddings", "length", 512), MaskToken(103)),
        encoder_tensors("bert.", (), BERT_HEAD),
        base_model_prefix="bert.",
        unread=frozenset({"pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "directionality"})
        | {"pooler_size_per_head", "pooler_type"},
        ignored_tensors=IGNORED_TENSORS,
        head_prefixes=HEAD_PREFIXES,
    ),
    Family(
        "roberta",
        "RobertaForMaskedLM",
        bert,
        (*SIZES, *FULL, LaterPositions(), OneValue("pad_token_id", 1), MaskToken(50264)),
        encoder_tensors("roberta.", (LaterRows(UNUSED),), ROBERTA_HEAD),
        base_model_prefix="roberta.",
        ignored_tensors=IGNORED_TENSORS,
        head_prefixes=HEAD_PREFIXES,
    ),
    Family(
        "distilbert",
        "DistilBertForMaskedLM",
        bert,
        (
            Keyword("vocab_size", "vocab"),
            Keyword("dim", "d"),
            Keyword("n_layers", "depth"),
            Keyword("n_heads", "heads"),
            Keyword("hidden_dim", "hidden", usual=lambda keywords: 4 * keywords["d"]),
            Keyword("max_position_embeddings", "length", 512),
            OneValue("activation", "gelu"),
            OneValue("tie_word_embeddings", True),
            Constants(position="learned", norm="post", pattern="Full()", drawn=0, segments=None, head_dim=None),
            Constants(kinds=0, eps=1e-12),
            MaskToken(103),
        ),
        rules(
            ("embedding.weight", "distilbert.embeddings.word_embeddings.weight"),
            ("position.table.weight", "distilbert.embeddings.position_embeddings.weight"),
            ("norm.{p}", "distilbert.embeddings.LayerNorm.{p}"),
            (
                DISTIL_BLOCK + "layers.0.projection.qkv.{p}",
                [DISTIL + f"attention.{name}_lin.{{p}}" for name in "qkv"],
                Stacked(),
            ),
            (DISTIL_BLOCK + "layers.0.aggregation.linear.{p}", DISTIL + "attention.out_lin.{p}"),
            (DISTIL_BLOCK + "norms.0.{p}", DISTIL + "sa_layer_norm.{p}"),
            (DISTIL_BLOCK + "layers.1.up.{p}", DISTIL + "ffn.lin1.{p}"),
            (DISTIL_BLOCK + "layers.1.down.{p}", DISTIL + "ffn.lin2.{p}"),
            (DISTIL_BLOCK + "norms.1.{p}", DISTIL + "output_layer_norm.{p}"),
            ("transform.0.{p}", "vocab_transform.{p}"),
            ("transform.2.{p}", "vocab_layer_norm.{p}"),
            ("head.bias", "vocab_projector.bias"),
            ("head.weight", "vocab_projector.weight"),
        ),
        base_model_prefix="distilbert.",
        aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
        # sines were only the initial values of the table; tie_word_embeddings says whether the head is tied
        unread=frozenset({"sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_"}),
        head_prefixes=HEAD_PREFIXES,
    ),
)
