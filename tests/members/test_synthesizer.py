"""synthesizer: each kind of scores and their mixtures, no queries and keys without a product, what is refused."""

import math

import pytest
import torch

from kinformer.core.scores.product import Product
from kinformer.members.synthesizer import synthesizer
from kinformer.models.mlm import MLM
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.value_projection import ValueProjection
from kinformer.nn.scores.factorised_dense import FactorisedDense
from kinformer.nn.scores.factorised_random import FactorisedRandom
from kinformer.nn.scores.mixture import Mixture
from kinformer.nn.scores.random_synthesizer import RandomSynthesizer
from kinformer.nn.scores.synthesizer import DenseSynthesizer

TINY = {"d": 16, "depth": 1, "heads": 2, "length": 12, "vocab": 11}
KINDS = {
    "dense": DenseSynthesizer,
    "factorised_dense": FactorisedDense,
    "random": RandomSynthesizer,
    "fixed_random": RandomSynthesizer,
    "factorised_random": FactorisedRandom,
    "product": Product,
}


def attention(**keywords: object):
    return synthesizer(**{**TINY, **keywords}).body.layers[0].layers[0]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_scores_as_it_is_named(kind: str) -> None:
    layer = attention(scores=kind)
    assert type(layer.mechanism.score) is KINDS[kind]
    assert type(layer.projection) is (QKV if kind == "product" else ValueProjection)
    learned = any(name.endswith("table") for name, _ in layer.named_parameters())
    assert learned is (kind == "random")


def test_mixtures_hold_what_is_named() -> None:
    layer = attention()
    assert type(layer.mechanism.score) is Mixture and type(layer.projection) is QKV
    assert [type(score) for score in layer.mechanism.score.scores] == [RandomSynthesizer, Product]
    other = attention(scores=("random", "dense"), weights="sum")
    assert type(other.projection) is ValueProjection and other.mechanism.score.weights is None


def test_its_keywords_change_what_they_name() -> None:
    assert attention(scores="dense").mechanism.score.hidden == 8
    assert attention(scores="dense", units=5).mechanism.score.hidden == 5
    assert attention(scores="factorised_random", rank=3).mechanism.score.rows.shape == (2, 12, 3)
    assert attention(scores="factorised_dense").mechanism.score.widths == (3, 4)
    factored = attention(scores="factorised_dense", first=6, second="repeated").mechanism.score
    assert factored.widths == (6, 2) and factored.second == "repeated"
    assert type(synthesizer(**TINY, form="encoder")) is MLM
    assert synthesizer(**TINY).longest == 12
    first, second = synthesizer(**{**TINY, "depth": 2}, scores="random").body.layers
    assert not torch.equal(first.layers[0].mechanism.score.table, second.layers[0].mechanism.score.table)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"units": 4}, "units=4 has no effect with scores=random,product"),
        ({"scores": "dense", "rank": 4}, "rank=4 has no effect with scores=dense"),
        ({"scores": "dense", "weights": "sum"}, "weights='sum' has no effect with scores=dense; leave it out"),
        ({"scores": "random", "first": 3}, "first=3 has no effect with scores=random"),
        ({"scores": "factorised_dense", "first": 5}, "length=12 is not a multiple of first=5; change one of them"),
        (
            {"scores": ("dense", "dense")},
            "two scores of a Mixture need the same extra projection 'dense'. Pass only one of them",
        ),
        ({"scores": ()}, "scores=() is empty; give one or more, such as random,product"),
    ],
)
def test_what_means_nothing_is_refused(keywords: dict, says: str) -> None:
    with pytest.raises(ValueError) as raised:
        synthesizer(**{**TINY, **keywords})
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_a_row_beyond_its_tables_is_an_error_and_is_written_by_sliding() -> None:
    from kinformer.decoding.generate import generate

    model = synthesizer(**TINY, scores="random").eval()
    with pytest.raises(IndexError, match="position 12 is beyond"):
        model.logits(torch.zeros(1, 13, dtype=torch.long))
    with pytest.warns(UserWarning, match="12 positions that this model has learned"):
        assert generate(model, torch.zeros(1, 3, dtype=torch.long), 15).shape[1] >= 15


@pytest.mark.parametrize("scores", [*KINDS, ("random", "product"), ("dense", "factorised_random")])
def test_the_first_loss_is_that_of_guessing(scores: str | tuple[str, ...]) -> None:
    model = synthesizer(d=32, depth=2, heads=2, length=64, scores=scores)
    loss = float(model(model.sample(2, 60, 0)).total.detach())
    assert abs(loss / math.log(256) - 1) < 0.1
