"""Star-Transformer as a text classifier: classes from the relay, alone or mixed with the tokens."""

from typing import Literal

from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.members.star_transformer import Form, star
from kinformer.models.classifier import Classifier
from kinformer.nn.depth.star import PADDED
from kinformer.nn.poolers.max import MaxPooler
from kinformer.nn.positions.learned import Learned


@member(cost="L", needs={"length": "position=learned"})
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
    """Star-Transformer as a text classifier (Guo et al., 2019, arXiv:1902.09113, section 3.4).

    Choose it over `bert_classifier` for little data and long texts. `--data labelled=FILE.tsv` supplies the texts and
    their labels. `--from` with the folder of a trained `star_transformer` fine-tunes that model.

    d, depth, heads, head_dim, form, position, length, vocab, dropout: as in `star_transformer`.
    classes: number of classes; the labels of the data set it.
    pool: vector of a text. "mixed", as in the paper, is the mean of the relay and the maximum over the tokens, number
        by number. "relay" is only the relay, the vector that reads all tokens.

    Differences: the authors' code has a hidden layer before the classes. This member has one matrix.
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
