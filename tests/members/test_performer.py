"""Performer: the lowest attention by its random features, another kernel, directions, and how near to softmax it is."""

import pytest
import torch

import kinformer as kf
from tests.members.probes import Heads, check_lowest, distances, receptive_field, softmax

pytestmark = pytest.mark.usefixtures("float64")

SMALL = {"d": 8, "heads": 2, "depth": 1, "features": 12, "length": 12, "vocab": 11}


def phi(heads: Heads, x: torch.Tensor) -> torch.Tensor:
    """exp(w.x - |x|^2 / 2) / sqrt(m) for m directions w, x divided by the fourth root of its width."""
    mechanism = heads.layer.mechanism
    directions, x = mechanism.map.directions, x / x.shape[-1] ** 0.25
    return (x @ directions.T - x.square().sum(-1, keepdim=True) / 2).exp() / len(directions) ** 0.5


def by_hand(heads: Heads, h: int, causal: bool = True) -> torch.Tensor:
    """y_i = sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j) over tokens up to i, in an encoder over all."""
    weights = phi(heads, heads.q[:, h]) @ phi(heads, heads.k[:, h]).T * ((distances() >= 0) | (not causal))
    return weights @ heads.v[:, h] / weights.sum(-1, keepdim=True)


def test_weights_are_products_of_positive_random_features() -> None:
    check_lowest(kf.performer(**SMALL, eps=0.0), by_hand)
    check_lowest(kf.performer(**SMALL, eps=0.0, form="encoder"), lambda heads, h: by_hand(heads, h, False))


@pytest.mark.parametrize("fault", [{"kernel": "exp", "eps": 1e-12}, {"eps": 0.1}])
def test_another_kernel_and_a_floor_are_noticed(fault: dict) -> None:
    """exp(W x) leaves out exp(-|x|^2 / 2), which weighs keys."""
    with pytest.raises(AssertionError):
        check_lowest(kf.performer(**{**SMALL, "eps": 0.0, **fault}), by_hand)


def test_directions_are_at_right_angles_unless_drawn_alone() -> None:
    for orthogonal in (True, False):
        model = kf.performer(**SMALL, orthogonal=orthogonal)
        directions = model.body.layers[0].layers[0].mechanism.map.directions
        for block in directions.split(4):  # as many as a head is wide
            products = (block @ block.T).fill_diagonal_(0.0)
            assert bool(products.abs().max() < 1e-5) is orthogonal
    blocks = kf.performer(**{**SMALL, "depth": 2}).body.layers
    first, second = (block.layers[0].mechanism.map.directions for block in blocks)
    assert not torch.equal(first, second)  # each block draws its own


def test_more_features_are_nearer_to_softmax_and_a_window_is_nearer_still() -> None:
    def error(**keywords: object) -> float:
        model = kf.performer(**{**SMALL, **keywords}).eval()
        layer, x = model.body.layers[0].layers[0], torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(0))
        heads = Heads(layer, x[0])
        exact = [
            softmax((heads.q[:, h] @ heads.k[:, h].T / 2).masked_fill(distances() < 0, -torch.inf)) for h in (0, 1)
        ]
        y = torch.stack([weights @ heads.v[:, h] for h, weights in enumerate(exact)])
        return (layer(x).y - layer.aggregation(y[None], torch.arange(9)[None])).norm().item()

    torch.manual_seed(0)
    few, many, window = [], [], []
    for seed in range(5):
        for errors, keywords in ((few, {"features": 4}), (many, {"features": 400}), (window, {"window": 6})):
            torch.manual_seed(seed)
            errors.append(error(**keywords))
    assert sum(many) < sum(few) / 2 and sum(window) < sum(few)


def test_a_decoder_reads_nothing_ahead() -> None:
    assert torch.equal(receptive_field(kf.performer(**SMALL)), distances() >= 0)
