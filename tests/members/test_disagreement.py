"""Disagreement: the penalty of its lowest heads by hand, a weight that is another, and the loss beside that of gpt."""

import pytest
import torch
from torch.nn import functional as F

import kinformer as kf
from tests.members.probes import distances, softmax

pytestmark = pytest.mark.usefixtures("float64")

SIZES = {"d": 16, "depth": 2, "heads": 4, "length": 32, "vocab": 11}


def penalty_by_hand(model: kf.LM, tokens: torch.Tensor) -> float:
    """-D_out = 1/H^2 sum_ij cos(O_i, O_j) of the heads' outputs: the mean over tokens, summed over layers."""
    inputs, total = [], 0.0
    layers = [block.layers[0] for block in model.body.layers]
    for layer in layers:
        layer.register_forward_hook(lambda _layer, arguments, _out: inputs.append(arguments[0]))
    model(tokens)
    for layer, x in zip(layers, inputs, strict=True):
        q, k, v = (F.linear(x, *layer.projection.matrix(name)).unflatten(-1, (4, 4)).transpose(1, 2) for name in "qkv")
        y = softmax((q @ k.mT / 2).masked_fill(distances(q.shape[2]) < 0, -torch.inf)) @ v
        direction = y / y.norm(dim=-1, keepdim=True)
        total += torch.einsum("bitv,bjtv->bt", direction, direction).mean().item() / 16
    return total


def check(model: kf.LM) -> None:
    tokens = torch.randint(0, 11, (3, 9))
    loss, expected = model.train()(tokens), penalty_by_hand(model, tokens)
    assert loss.total.item() == pytest.approx(loss.parts["nll"].item() + 0.5 * expected, abs=1e-12)


def test_the_loss_pays_for_outputs_of_heads_that_are_alike() -> None:
    check(kf.disagreement(**SIZES, output=0.5))


@pytest.mark.parametrize("weights", [{"output": 0.6}, {"output": 0.5, "position": 0.1}])
def test_another_weight_and_another_term_are_noticed(weights: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        check(kf.disagreement(**SIZES, **weights))


def test_disagreement_is_gpt_that_pays_for_heads_that_are_alike() -> None:
    plain, model = kf.gpt(**SIZES), kf.disagreement(**SIZES, subspace=0.5, position=0.25, output=2.0)
    rename = {name: name.replace("mechanism.mechanism", "mechanism") for name in model.state_dict()}
    assert set(rename.values()) == set(plain.state_dict())
    model.load_state_dict(plain.state_dict())
    tokens = torch.randint(0, 11, (3, 9))
    loss, of_plain = model(tokens), plain(tokens)
    parts = {name: value.item() for name, value in loss.parts.items()}
    extra = 0.5 * parts["subspace_disagreement"] + 0.25 * parts["position_disagreement"]
    extra += 2.0 * parts["output_disagreement"]
    assert loss.total.item() == pytest.approx(of_plain.total.item() + extra, abs=1e-12) and extra > 0.5
    assert list(kf.disagreement(**SIZES, output=0.0)(tokens).parts) == ["nll"]
    with pytest.raises(ValueError, match="output=-1.0: give a number from 0 up"):
        kf.disagreement(**SIZES, output=-1.0)
