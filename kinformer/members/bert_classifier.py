"""BERT's encoder with a classifier of rows in place of token prediction."""

from typing import Literal

from kinformer.core.discover import member
from kinformer.members.support.encoder import encoder
from kinformer.members.support.wiring import Norms, Positions, Wiring
from kinformer.models.classifier import Classifier
from kinformer.nn.initialise import Scheme, at_width, initialise
from kinformer.nn.poolers.cls import CLSPooler
from kinformer.nn.poolers.mean import MeanPooler

EPS = 1e-12
Pool = Literal["mean", "first"]


@member(cost="L**2", needs={"length": "position=learned"})
def bert_classifier(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    pattern: str | tuple[str, ...] = "Full()",
    position: Positions = "learned",
    norm: Norms = "post",
    length: int = 1024,
    kinds: int = 2,
    classes: int = 2,
    pool: Pool = "mean",
    init: Scheme = "truncated_normal",
    vocab: int = 256,
    dropout: float = 0.0,
) -> Classifier:
    """BERT as a text classifier (Devlin et al., 2018, arXiv:1810.04805, section 4.1).

    Choose it to assign one class to each text. `--data labelled=FILE.tsv` supplies the texts and their labels. `--from`
    with the folder of a trained `bert` fine-tunes that model, as the paper does.

    d, depth, heads, head_dim, pattern, position, norm, length, kinds, init, vocab, dropout: as in `bert`.
    classes: number of classes; the labels of the data set it.
    pool: vector of a row: "mean" averages its tokens. "first" takes an extra token of the model, as in the paper, and
        applies a matrix and tanh.
    """
    pooling = CLSPooler(d) if pool == "first" else MeanPooler()
    wiring = Wiring(d, heads, head_dim, position, length + pooling.own, norm=norm, dropout=dropout, eps=EPS)
    body = encoder(wiring, depth, pattern, dropout)
    model = Classifier(
        vocab,
        d,
        body,
        classes=classes,
        pooling=pooling,
        position=wiring.added_position(),
        scale=wiring.scale,
        kinds=kinds,
        eps=EPS,
        dropout=dropout,
    )
    return initialise(model, init, std=at_width(0.02, 768, d))


EXAMPLES = (
    lambda: bert_classifier(d=16, depth=2, heads=2, length=64, classes=3, vocab=11),
    lambda: bert_classifier(d=16, depth=1, heads=2, length=64, pool="first", vocab=11),
    lambda: bert_classifier(
        d=16,
        depth=2,
        heads=2,
        classes=3,
        pattern=("Band(2)", "Full()"),
        position="rotary",
        norm="pre",
        init="library",
        vocab=11,
    ),
)
