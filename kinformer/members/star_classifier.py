"""Star-Transformer that sorts texts: what it says of one is its relay, alone or mixed with its tokens."""

from typing import Literal

from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.members.star_transformer import Form, star
from kinformer.models.classifier import Classifier
from kinformer.nn.depth.star import PADDED
from kinformer.nn.poolers.max import MaxPooler
from kinformer.nn.positions.learned import Learned


@member(needs={"length": "position=learned"})
def star_classifier(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    form: Form = "paper",
    position: Literal["learned", "none"] = "learned",
    length: int = 1024,
    classes: int = 2,
    pool: Literal["mixed", "relay"] = "mixed",
    vocab: int = 256,
    dropout: float = 0.0,
) -> Classifier:
    """Star-Transformer that sorts texts (Guo et al., 2019, arXiv:1902.09113, section 3.4): a class for each row.

    Choose it over `bert_classifier` for little data and long texts: `--data labelled=FILE.tsv`, whose labels say how
    many `classes` there are. `pool` makes one vector of a text: "mixed", the paper's, the largest of each number over
    its tokens and the relay, half and half; "relay" the relay alone. One matrix makes classes of it, where the authors'
    code has a hidden layer. All else is as in `star_transformer`: `--from` the folder of a trained one fine-tunes that.
    """
    body, places = star(d, depth, heads, head_dim, form, dropout, pool), Learned(d, length)
    return Classifier(
        vocab,
        d,
        body,
        classes=classes,
        pooling=MaxPooler(),
        position=places if position == "learned" else None,
        dropout=dropout,
    )


EXAMPLES = (
    lambda: star_classifier(d=16, depth=2, heads=2, length=64, classes=3, vocab=11),
    lambda: star_classifier(d=16, depth=1, heads=2, length=64, pool="relay", vocab=11),
    Example(
        lambda: star_classifier(d=16, depth=2, heads=2, form="published", position="none", vocab=11), breaks=PADDED
    ),
)
