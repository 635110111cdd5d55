"""BERT's encoder with a class for each row in place of hidden tokens."""

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


@member(needs={"length": "position=learned"})
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
    """BERT that sorts texts (Devlin et al., 2018, arXiv:1810.04805, section 4.1): one class for each row.

    Choose it to tell of a text what kind it is: `--data labelled=FILE.tsv`, whose labels say how many `classes` there
    are. `pool` makes one vector of a row: the "mean" over its tokens, or the "first", a token of the model's own as in
    the paper, through a matrix and tanh. All else is as in `bert`: `--from` the folder of a trained one fine-tunes
    that, as the paper does.
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
