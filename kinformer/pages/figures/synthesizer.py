"""The figure `synthesizer`: the sources of a score, and weights of two similar texts."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.score import Score
from kinformer.core.scores.product import Product
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.scores.random_synthesizer import RandomSynthesizer
from kinformer.nn.scores.synthesizer import DenseSynthesizer
from kinformer.pages.eight_tokens import TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Panel, Picture, of_most, shades

REPLACED, BY = (1, 4), (2, 3)  # tokens that the other text replaces, and the tokens that it has there
WIDTH, STEP = 28, 34  # width of a box, and columns from one kind of score to the next


def draw() -> Iterator[Diagram | Picture]:
    """Yield the sources of a score, then weights by products, by a dense and by a random synthesizer."""
    yield _sources()
    yield _weights()


def _sources() -> Diagram:
    diagram = Diagram(
        "sources of the score S_ij of query i and key j",
        kinds=("token", "position", "computation", "score"),
        note="Softmax and values are the same in all three. A mixture adds weighted scores.",
    )
    columns = (
        ("dot product", (("token i", 1), ("token j", 1)), "q_i = Wq x_i, k_j = Wk x_j", "S_ij = q_i . k_j"),
        ("dense", (("token i", 1), ("position j", 2)), "W2 ReLU(W1 x_i + b1) + b2", "S_ij = number j of L"),
        ("random", (("position i", 2), ("position j", 2)), "table R, L x L", "S_ij = R_ij"),
    )
    for number, (title, inputs, computation, score) in enumerate(columns):
        x = STEP * number
        diagram.words(x + (WIDTH + 2 - len(title)) // 2, 0, title, bold=True)
        for place, (name, kind) in enumerate(inputs):
            left = x + 16 * place
            diagram.box(left, 2, 14, 3, name, kind)
            diagram.arrow((left + 7, 4), (left + 7, 7.6))
        diagram.box(x, 8, WIDTH + 2, 3, computation, 3)
        diagram.arrow((x + WIDTH // 2 + 1, 10), (x + WIDTH // 2 + 1, 12.6))
        diagram.box(x, 13, WIDTH + 2, 3, score, 4)
    return diagram


def _weights() -> Picture:
    dense, table = DenseSynthesizer(1, len(TOKENS), 2), RandomSynthesizer(1, len(TOKENS))
    with torch.no_grad():
        for tensor in (dense.weight, dense.bias, table.table):
            tensor.zero_()
        dense.weight[0, 0, [0, 4]], dense.weight[0, 1, [1, 5]] = 3.0, 3.0
        table.table[0, range(1, len(TOKENS)), range(len(TOKENS) - 1)] = 3.0
    text = token_vectors()
    other = text.clone()
    other[list(REPLACED)] = text[list(BY)]
    names = list(TOKENS)
    for place, source in zip(REPLACED, BY, strict=True):
        names[place] = TOKENS[source].upper()

    def panel(title: str, score: Score, x: Float[Tensor, "T K"], tokens: tuple[str, ...]) -> Panel:
        return shades(title, of_most(_read(score, x), 1), tokens, tokens)

    return Picture(
        "causal weights of the text, and of a text with other tokens at positions 1 and 4 (capitals)",
        (),
        (
            panel("product", Product(), text, TOKENS),
            panel("product, other", Product(), other, tuple(names)),
            panel("dense, other", dense, other, tuple(names)),
            panel("random, other", table, other, tuple(names)),
        ),
        note="Each row is divided by its largest weight. Only products change the row of dog. In dense, only "
        "the rows of the replaced tokens change; in random, no row.",
    )


def _read(score: Score, x: Float[Tensor, "T K"]) -> Float[Tensor, "T T"]:
    ctx = Context.of_sequence(x[None])
    queries = Queries(4 * x[None, None], ctx.pos[:, None], {"dense": x[None, None]})
    keys = Keys(x[None, None], torch.eye(len(x))[None, None], ctx.pos[:, None])
    with torch.no_grad():
        return Softmax(Causal(), score=score).eval()(queries, keys, None, ctx).y.y[0, 0]
