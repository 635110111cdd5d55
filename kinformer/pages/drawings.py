"""The drawings of mechanisms on the page of the tour."""

from typing import NamedTuple

SIZE = 24  # tokens of a drawing


class Drawing(NamedTuple):
    """One mechanism that the tour draws.

    title: its name.
    sentence: explanation in one sentence.
    shown: the words after `kinformer show` that explain it.
    pattern: the expression to draw; "" draws the part `shown`.
    kind: kind of the part, if there is no expression.
    """

    title: str
    sentence: str
    shown: str
    pattern: str = ""
    kind: str = ""


DRAWINGS = (
    Drawing("Causal (dense)", "Every token reads itself and all tokens before it.", "causal", "Causal()"),
    Drawing("Window", "Every token reads itself and the five tokens before it.", "band", "Causal() & Band(5)"),
    Drawing(
        "Sparse Transformer, strided",
        "A window, and every fifth token before it: two layers connect all positions.",
        "sparse_transformer",
        "Causal() & (Band(4) | Strided(5))",
    ),
    Drawing(
        "Sparse Transformer, fixed",
        "The query's own block, and the last token of each earlier block.",
        "fixed",
        "Causal() & Fixed(6, 1)",
    ),
    Drawing(
        "Longformer",
        "A window to both sides, and two global tokens that read and are read by all.",
        "longformer",
        "Band(2) | Tokens(2) | Rows(2)",
    ),
    Drawing(
        "BigBird",
        "Blocks of three tokens: a window, a global block and random blocks.",
        "bigbird",
        "Block(3, 1, 1) | Tokens(3) | Rows(3) | Random(1, 3)",
    ),
    Drawing(
        "Transformer-XL",
        "Segments of six tokens, which also read the states of the six tokens before the segment.",
        "transformer_xl",
        "Causal() & Segment(6, 6)",
    ),
    Drawing("Dilated window", "A window with gaps reaches further.", "dilated", "Causal() & Dilated(4, 3)"),
    Drawing(
        "ALiBi",
        "A penalty on distance replaces position embeddings. Stronger colour means more weight.",
        "alibi",
        kind="biases",
    ),
    Drawing(
        "Reformer (LSH)",
        "A token reads earlier tokens of its hash bucket in one of two rounds. Colours are first-round buckets.",
        "lsh",
        kind="mechanisms",
    ),
    Drawing(
        "Routing Transformer",
        "A token reads earlier tokens of its own cluster. Colours are clusters.",
        "routing",
        kind="mechanisms",
    ),
    Drawing(
        "Top-k",
        "Each query reads only its three best keys (blue). All other keys are scored and left out.",
        "topk",
        kind="mechanisms",
    ),
)
