"""nystromformer, csalr and low_rank_band: keywords reach the parts, and what they cannot do is refused in one line."""

import pytest
import torch
from torch import nn

from kinformer.core.mechanism import NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.csalr import csalr
from kinformer.members.low_rank_band import low_rank_band
from kinformer.members.nystromformer import nystromformer
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.mechanisms.low_rank_band import LowRankBand
from kinformer.nn.mechanisms.nystrom import Nystrom, NystromIdentity
from kinformer.nn.mechanisms.nystrom_published import PublishedNystrom
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band

SMALL = {"d": 16, "heads": 2, "depth": 2, "vocab": 11, "length": 20}


def of(model: nn.Module, kind: type) -> list:
    return [part for part in model.modules() if isinstance(part, kind)]


def test_keywords_reach_the_parts() -> None:
    parts = of(nystromformer(landmarks=5, conv=7, iterations=3, norms="batch", **SMALL), Nystrom)  # type: ignore[arg-type]
    assert len(parts) == 2
    for one in parts:
        assert (one.landmarks, one.iterations, one.norms, *one.skip.weight.shape) == (5, 3, "batch", 2, 7)
    assert all(one.skip is None for one in of(nystromformer(conv=None, **SMALL), Nystrom))  # type: ignore[arg-type]
    published = of(nystromformer(form="published", **SMALL), PublishedNystrom)  # type: ignore[arg-type]
    assert [one.norms for one in published] == ["batch"] * 2
    exact = of(nystromformer(form="published", norms="head", **SMALL), PublishedNystrom)  # type: ignore[arg-type]
    assert [one.norms for one in exact] == ["head"] * 2
    assert {type(one) for one in parts} == {Nystrom}
    assert [one.size for one in of(csalr(size=3, **SMALL), NystromIdentity)] == [3, 3]  # type: ignore[arg-type]
    decoder, encoder = (
        low_rank_band(window=3, **SMALL),
        low_rank_band(  # type: ignore[arg-type]
            window=3,
            rank=5,
            combine="sum",
            form="encoder",
            dropout=0.1,
            **SMALL,  # type: ignore[arg-type]
        ),
    )
    assert isinstance(decoder, LM) and isinstance(encoder, MLM)
    assert [(one.rank, one.gate is None) for one in of(decoder, LowRankBand)] == [(2, False)] * 2  # a quarter of 8
    assert [(one.rank, one.gate is None) for one in of(encoder, LowRankBand)] == [(5, True)] * 2
    assert [one.pattern for one in of(decoder, Softmax)] == [Causal() & Band(3), Causal()] * 2
    assert [(one.pattern, one.dropout) for one in of(encoder, Softmax)] == [(Band(3), 0.1), (Full(), 0.1)] * 2


@pytest.mark.parametrize("model", [nystromformer, csalr, lambda **how: low_rank_band(form="encoder", **how)])
def test_an_encoder_has_no_state(model) -> None:
    with pytest.raises(NoState, match="use "):
        model(**SMALL).start(1, 4)


@pytest.mark.parametrize(
    ("member", "keywords", "says"),
    [
        (nystromformer, {"conv": 4}, "conv=4 has no token in its middle; give an odd number"),
        (nystromformer, {"conv": 0}, "conv=0: give a whole number of at least 1"),
        (nystromformer, {"landmarks": 0}, "landmarks=0: give a whole number of at least 1"),
        (nystromformer, {"iterations": -1}, "iterations=-1: give a whole number of at least 0"),
        (csalr, {"size": 0}, "size=0: give a whole number of at least 1"),
        (low_rank_band, {"rank": 0}, "rank=0: give a whole number of at least 1"),
        (low_rank_band, {"window": -1}, "window=-1: give a whole number of at least 0"),
    ],
)
def test_what_means_nothing_is_refused(member, keywords: dict, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        member(**{**SMALL, **keywords})


def test_the_convolution_the_gate_and_the_narrow_heads_learn() -> None:
    for model in (nystromformer(landmarks=4, conv=3, **SMALL), low_rank_band(window=2, **SMALL)):  # type: ignore[arg-type]
        model(model.sample(3, 16, 0)).total.backward()
        for name, weight in model.named_parameters():
            if name.endswith(("skip.weight", "gate", "side.weight")):
                assert weight.grad is not None and bool(weight.grad.any()), name
        assert torch.isfinite(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None])).all()
