"""Predictive and Evolving Attention: its keywords reach every block, and weights at their ends leave known members."""

import pytest
import torch

from kinformer.members.gpt import gpt
from kinformer.members.predictive_attention import predictive_attention
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.mechanisms.evolving import EvolvingAttention
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.predictive import PredictiveAttention

SMALL = {"d": 16, "depth": 3, "heads": 2, "length": 16, "vocab": 11}


def test_keywords_reach_every_block_but_the_lowest() -> None:
    model = predictive_attention(**SMALL, alpha=0.2, beta=0.7, size=5, slope=0.3)
    lowest, *higher = [block.layers[0].mechanism for block in model.body.layers]
    assert isinstance(model, MLM) and isinstance(lowest, Explicit) and len(higher) == 2
    for mechanism in higher:
        assert isinstance(mechanism, EvolvingAttention) and (mechanism.alpha, mechanism.beta) == (0.2, 0.7)
        assert mechanism.convolution.slope == 0.3
        assert mechanism.convolution.conv.weight.shape == (2, 2, 5, 5) and mechanism.convolution.of_keys == range(-2, 3)
    model = predictive_attention(**SMALL, scores="predictive", alpha=0.2, form="decoder")
    _, *higher = [block.layers[0].mechanism for block in model.body.layers]
    assert isinstance(model, LM) and all(
        isinstance(mechanism, PredictiveAttention) and mechanism.alpha == 0.2 for mechanism in higher
    )
    assert all(
        mechanism.convolution.of_keys == mechanism.convolution.of_queries == range(-2, 1) for mechanism in higher
    )
    assert all(mechanism.convolution.slope == 0.01 for mechanism in higher)  # the authors' rectifier unless told


@pytest.mark.parametrize(
    "keywords", [{"scores": "predictive", "alpha": 1.0}, {"alpha": 0.0, "beta": 0.0}], ids=["predictive", "evolving"]
)
def test_at_the_end_of_its_weights_it_is_gpt(keywords: dict, float64: None) -> None:
    """So a trained model can be given convolutions and go on from what it was."""
    plain, model = gpt(**SMALL), predictive_attention(**SMALL, **keywords, form="decoder")
    mismatch = model.load_state_dict(plain.state_dict(), strict=False)
    assert all("convolution" in name for name in mismatch.missing_keys) and not mismatch.unexpected_keys
    for block in plain.body.layers:
        block.layers[1].activation = "gelu"  # gpt takes its approximation by tanh
    tokens = torch.randint(0, 11, (2, 9))
    torch.testing.assert_close(model.logits(tokens).y, plain.logits(tokens).y, rtol=0, atol=1e-12)


def test_what_is_not_read_or_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="beta"):
        predictive_attention(**SMALL, scores="predictive", beta=0.7)
    with pytest.raises(ValueError, match="size=2 is even, so the kernel has no centre"):
        predictive_attention(**SMALL, size=2)
