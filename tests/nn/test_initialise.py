"""initialise: the distributions that papers state, of the maps and embeddings of whole models."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.model import Model
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.llama import llama
from kinformer.members.transformer import transformer
from kinformer.members.transformer_xl import transformer_xl
from kinformer.nn.initialise import at_width, initialise
from kinformer.nn.norms.layer import LayerNorm


def maps(model: Model) -> dict[str, Tensor]:
    """The weights of linear maps and embeddings, each once, by name."""
    return {
        f"{name}.weight": part.weight.detach()
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear | nn.Embedding)
    }


def biases(model: Model) -> Tensor:
    return torch.cat(
        [part.bias.detach() for part in model.modules() if isinstance(part, nn.Linear) and part.bias is not None]
    )


def normal(weight: Tensor, std: float) -> None:
    """The mean and the deviation are within five standard errors."""
    n = weight.numel()
    assert abs(weight.mean().item()) < 5 * std / math.sqrt(n)
    assert weight.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * n))


def test_gpt_starts_as_gpt_2_states() -> None:
    """N(0, 0.02^2) at the width of 768, and on the residual path divided by the root of its two layers a block."""
    model = gpt(d=768, depth=2, heads=12, length=64, vocab=64)
    for name, weight in maps(model).items():
        residual = name.endswith(("aggregation.linear.weight", "down.weight"))
        normal(weight, 0.02 / math.sqrt(4) if residual else 0.02)
    assert model.head.weight is model.embedding.weight and not biases(model).any()
    norms = [part for part in model.modules() if isinstance(part, LayerNorm)]
    assert len(norms) == 5 and all((norm.weight == 1).all() for norm in norms)
    for name, weight in maps(gpt(d=768, depth=1, heads=12, length=64, vocab=64, init="normal")).items():
        normal(weight, 0.02), name


def test_narrower_models_start_in_proportion() -> None:
    for weight in maps(gpt(d=192, depth=1, heads=2, length=64, vocab=64, init="normal")).values():
        normal(weight, 0.04)
    assert at_width(0.02, 768, 192) == pytest.approx(0.04)


def test_bert_starts_as_in_its_code() -> None:
    """A normal distribution of deviation 0.02, drawn again beyond two of them: 0.8796 of that is left."""
    model = bert(d=768, depth=1, heads=12, length=64, vocab=64)
    for weight in maps(model).values():
        assert weight.abs().max() <= 0.04
        assert weight.std().item() == pytest.approx(0.8796 * 0.02, rel=0.02)
    assert not biases(model).any()


def test_transformer_xl_may_start_as_in_its_code() -> None:
    """N(0, 0.02^2) at the width of 410, tied embeddings included; u, v and tables of positions stay as they are."""
    model = transformer_xl(d=410, depth=2, heads=10, head_dim=41, vocab=200, init="normal")
    for weight in maps(model).values():
        normal(weight, 0.02)
    assert not biases(model).any()


def test_xavier_takes_queries_keys_and_values_each_by_itself_and_leaves_embeddings() -> None:
    torch.manual_seed(0)
    plain = transformer(d=96, depth=1, heads=2, hidden=200)
    torch.manual_seed(0)
    model = transformer(d=96, depth=1, heads=2, hidden=200, init="xavier")
    assert torch.equal(model.embedding.weight, plain.embedding.weight)
    sublayers = model.encoder.layers[0].layers
    for matrix in (
        *sublayers[0].projection.qkv.weight.detach().split(96),
        sublayers[0].aggregation.linear.weight.detach(),
    ):
        assert math.sqrt(6 / 192) * 0.99 < matrix.abs().max() <= math.sqrt(6 / 192)
    up = sublayers[1].up.weight.detach()
    assert math.sqrt(6 / 296) * 0.99 < up.abs().max() <= math.sqrt(6 / 296)
    assert up.std().item() == pytest.approx(math.sqrt(2 / 296), rel=0.02)


def test_the_library_s_own_start_draws_nothing() -> None:
    torch.manual_seed(0)
    model = gpt(d=16, depth=1, heads=2, length=8, init="library")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert initialise(model, "library") is model and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_of_gated_maps_is_scaled_by_its_branches() -> None:
    model = initialise(llama(d=256, depth=2, heads=4), "scaled_normal", std=0.1)
    normal(model.body.layers[1].layers[1].down.weight.detach(), 0.05)
    normal(model.body.layers[1].layers[1].gate.weight.detach(), 0.1)


@pytest.mark.parametrize("keywords", [{"scheme": "glorot"}, {"scheme": "normal", "std": 0.0}])
def test_what_is_none_is_refused_in_a_line(keywords: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        initialise(gpt(d=16, depth=1, heads=2, length=8), **keywords)
