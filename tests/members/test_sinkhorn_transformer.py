"""The Sinkhorn Transformer's keywords reach its parts, and what they cannot do is refused in one line."""

import pytest
import torch

from kinformer.core.mechanism import NoState
from kinformer.members.sinkhorn_encoder import sinkhorn_encoder
from kinformer.members.sinkhorn_transformer import sinkhorn_transformer
from kinformer.nn.mechanisms.sinkhorn import Sinkhorn
from kinformer.nn.mechanisms.sort_networks import BlockNet, PairNet

SMALL = {"d": 8, "heads": 2, "depth": 2, "vocab": 11, "length": 10, "block": 4}


def sorts(model: torch.nn.Module) -> list[Sinkhorn]:
    return [part for part in model.modules() if isinstance(part, Sinkhorn)]


def test_keywords_reach_the_parts() -> None:
    keywords = {"iterations": 3, "temperature": 0.5, "noise": False, "pool": "mean", "mixture": True}
    for sort in sorts(sinkhorn_transformer(net="pairs", **SMALL, **keywords)):  # type: ignore[arg-type]
        assert isinstance(sort.net, PairNet) and sort.causal and sort.chance is None
        assert (sort.block, sort.iterations, sort.temperature, sort.pool, sort.mixture) == (4, 3, 0.5, "mean", True)
    first, second = sorts(sinkhorn_encoder(cut=2, near=True, **SMALL))  # type: ignore[arg-type]
    assert (first.cut, first.near, first.causal) == (2, True, False)
    assert isinstance(first.net, BlockNet) and first.net.blocks == 3  # 10 tokens in blocks of 4
    assert first.chance is not None and second.chance is not None and first.chance.seed != second.chance.seed


def test_the_sort_learns_from_the_loss_alone() -> None:
    model = sinkhorn_transformer(**{**SMALL, "length": 40})  # type: ignore[arg-type]
    model(model.sample(3, 40, 0)).total.backward()
    for sort in sorts(model):
        assert isinstance(sort.net, BlockNet) and sort.net.weight.grad is not None and bool(sort.net.weight.grad.any())


def test_an_encoder_has_no_state_and_a_long_row_is_refused() -> None:
    with pytest.raises(NoState, match="use "):
        sinkhorn_encoder(**SMALL).start(1, 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="blocks of 4"):
        sinkhorn_transformer(**SMALL).start(1, 13)  # type: ignore[arg-type]
