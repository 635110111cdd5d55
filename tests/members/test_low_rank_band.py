"""Low-rank and band attention: the lowest attention by hand, another window, and which form reads ahead."""

from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.core.mechanism import NoState
from kinformer.nn.mechanisms.low_rank_band import LowRankBand
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from tests.members.probes import Heads, check_lowest, distances, softmax

pytestmark = pytest.mark.usefixtures("float64")

SMALL: dict[str, Any] = {"d": 16, "heads": 2, "depth": 2, "vocab": 11, "length": 20}
WINDOW, RANK = 3, 2


def by_hand(heads: Heads, h: int) -> torch.Tensor:
    """g low + (1 - g) band: one softmax of keys of width 2 over the past, one of whole keys in the window."""
    layer, later = heads.layer, distances() < 0
    low_q, low_k = (side(heads.x).view(-1, 2, RANK)[:, h] for side in (layer.side, layer.key_side))
    low = softmax((low_q @ low_k.T / RANK**0.5).masked_fill(later, -torch.inf))
    outside = later | (distances() > WINDOW)
    band = softmax((heads.q[:, h] @ heads.k[:, h].T / 8**0.5).masked_fill(outside, -torch.inf))
    g = 1 / (1 + (-layer.mechanism.gate[h]).exp())
    return (g * low + (1 - g) * band) @ heads.v[:, h]


def test_far_tokens_are_read_by_narrow_heads_and_near_ones_by_wide_heads() -> None:
    check_lowest(kf.low_rank_band(**SMALL, window=WINDOW), by_hand)


def test_another_window_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check_lowest(kf.low_rank_band(**SMALL, window=WINDOW + 1), by_hand)


def parts(model: torch.nn.Module, kind: type) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, kind)]


def test_keywords_reach_the_parts() -> None:
    decoder = kf.low_rank_band(window=3, **SMALL)
    encoder = kf.low_rank_band(window=3, rank=5, combine="sum", form="encoder", dropout=0.1, **SMALL)
    assert isinstance(decoder, kf.LM) and isinstance(encoder, kf.MLM)
    assert [(part.rank, part.gate is None) for part in parts(decoder, LowRankBand)] == [(2, False)] * 2
    assert [(part.rank, part.gate is None) for part in parts(encoder, LowRankBand)] == [(5, True)] * 2
    assert [part.pattern for part in parts(decoder, Softmax)] == [kf.Causal() & Band(3), kf.Causal()] * 2
    patterns = [(part.pattern, part.dropout) for part in parts(encoder, Softmax)]
    assert patterns == [(Band(3), 0.1), (kf.Full(), 0.1)] * 2
    with pytest.raises(NoState, match="use "):
        encoder.start(1, 4)


def test_the_gate_and_the_narrow_heads_learn() -> None:
    model = kf.low_rank_band(window=2, **SMALL)
    model(model.sample(3, 16, 0)).total.backward()
    names = [name for name, _ in model.named_parameters() if name.endswith(("gate", "side.weight"))]
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert len(names) == 6 and all(gradients[name].any() and gradients[name].isfinite().all() for name in names)


@pytest.mark.parametrize(("keyword", "value", "least"), [("rank", 0, 1), ("window", -1, 0)])
def test_what_means_nothing_is_refused(keyword: str, value: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"^{keyword}={value}: give a whole number of at least {least}$"):
        kf.low_rank_band(**{**SMALL, keyword: value})
