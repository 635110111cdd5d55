"""Gaussian Transformer: the lowest attention with its prior by hand, another deviation, and whose w and b they are."""

import pytest
import torch

import kinformer as kf
from kinformer.nn.biases.gaussian_prior import GaussianPrior
from tests.members.probes import Heads, check_lowest, distances, softmax
from tests.members.test_attention_forms import TINY, attentions

pytestmark = pytest.mark.usefixtures("float64")


def by_hand(heads: Heads, h: int) -> torch.Tensor:
    """Scores lose |w (i - j)^2 + b|, where w = 1 / (2 sigma^2) = 1/8 and b = -0.3 at the start."""
    scores = heads.q[:, h] @ heads.k[:, h].T / 8**0.5
    return softmax(scores - (distances().square() / 8 - 0.3).abs()) @ heads.v[:, h]


def test_scores_fall_off_with_the_square_of_the_distance() -> None:
    """As w and b are at the start."""
    check_lowest(kf.gaussian_transformer(**TINY, sigma=2.0, own=0.3), by_hand, noise=False)


@pytest.mark.parametrize("start", [{"sigma": 2.1, "own": 0.3}, {"sigma": 2.0, "own": 0.2}])
def test_another_start_is_noticed(start: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        check_lowest(kf.gaussian_transformer(**TINY, **start), by_hand, noise=False)


def test_a_gaussian_transformer_has_a_w_and_b_for_each_layer_or_head() -> None:
    shared, apart = (
        [
            layer.mechanism.bias
            for layer in attentions(kf.gaussian_transformer(**TINY, by_head=by_head, sigma=2.0, own=0.3))
        ]
        for by_head in (False, True)
    )
    for priors, heads in ((shared, 1), (apart, 2)):
        assert len({id(bias) for bias in priors}) == 2
        for bias in priors:
            assert isinstance(bias, GaussianPrior)
            torch.testing.assert_close(bias.w, torch.full((heads,), 1 / 8))
            torch.testing.assert_close(bias.b, torch.full((heads,), -0.3))
