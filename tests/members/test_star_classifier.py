"""Star-Transformer that sorts texts: its scores from tokens and relay by hand, and the relay alone."""

from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.core.layer import Context
from kinformer.core.parameter_noise import add_parameter_noise
from tests.members.probes import count
from tests.members.test_star_transformer import SMALL, rounds_by_hand

pytestmark = pytest.mark.usefixtures("float64")


def check(model: kf.Classifier, pool: str) -> None:
    """W p + b: p is the largest of each number over (h_t + s) / 2 of a row's tokens, or the relay s alone."""
    add_parameter_noise(model)
    tokens = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, -1, -1]])
    scores = model.eval().scores(tokens)
    for row, scored in zip(tokens, scores, strict=True):
        real = row[row >= 0][None]
        h, s = rounds_by_hand(model.body, model.embed_tokens(real, Context.of_sequence(real))[0])
        pooled = s if pool == "relay" else ((h + s) / 2).amax(0)
        torch.testing.assert_close(scored, model.head.weight @ pooled + model.head.bias)


@pytest.mark.parametrize("pool", ["mixed", "relay"])
def test_a_text_is_sorted_by_its_tokens_and_its_relay(pool: Any) -> None:
    check(kf.star_classifier(**SMALL, pool=pool, classes=3), pool)


def test_the_mean_of_tokens_in_place_of_their_largest_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    mean = kf.MeanPooler()
    monkeypatch.setattr(kf.MaxPooler, "forward", lambda self, y, real: mean(y, real))
    with pytest.raises(AssertionError):
        check(kf.star_classifier(**SMALL), "mixed")


def test_one_matrix_makes_classes_of_what_a_star_transformer_reads() -> None:
    sizes = [count(kf.star_classifier(**SMALL, classes=classes)) for classes in (2, 5)]
    assert sizes[1] - sizes[0] == 3 * (8 + 1)
    body = dict(kf.star_transformer(**SMALL).body.named_parameters())
    assert body.keys() == dict(kf.star_classifier(**SMALL).body.named_parameters()).keys()
