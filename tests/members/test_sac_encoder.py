"""SAC's encoder: tokens read the pairs that its network chose, through all layers, and pairs chosen anew noticed."""

from typing import Any

import pytest
import torch

import kinformer as kf
from tests.members.probes import LENGTH, receptive_field

pytestmark = pytest.mark.usefixtures("float64")

SMALL: dict[str, Any] = {"d": 8, "heads": 2, "edges": 2, "width": 4, "clip": 3, "length": 12, "vocab": 11}


def encoder(**keywords: Any) -> Any:
    """An encoder whose networks are drawn so wide that they go from token to token in place of staying at one."""
    model = kf.sac_encoder(**{**SMALL, **keywords})
    for name, weight in model.named_parameters():
        if "predictor" in name or "key_side" in name:
            torch.nn.init.normal_(weight, std=1.5)
    return model


def pairs_by_hand(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """The pairs of a row: h, c = LSTM(token chosen last), p(j) = softmax(h W (x_j + D)); a query, then its key."""
    net, nodes = layer.mechanism.predictor, layer.key_side(x).view(len(x), 2, -1).mean(1)
    h, c, last = net.first
    place, chosen = 0, torch.eye(len(x), dtype=torch.bool)  # a token always reads itself
    for turn in range(2 * 2 * len(x)):
        gates = net.cell.weight_ih @ last + net.cell.bias_ih + net.cell.weight_hh @ h + net.cell.bias_hh
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        distance = (place - torch.arange(len(x))).abs().clamp_max(net.clip)
        at = int(((nodes + net.distance[distance]) @ (net.match.weight @ h)).argmax())
        if turn % 2:
            chosen[place, at] = True
        place, last = at, nodes[at]
    return chosen


def check(depth: int, **keywords: Any) -> None:
    """All layers read by the pairs of the lowest one: through two of them a token reads the pairs of its pairs."""
    total = 0
    for seed in range(5):
        torch.manual_seed(seed)
        model, inputs = encoder(depth=depth, **keywords), []
        lowest = model.body.layers[0].layers[0]
        lowest.register_forward_hook(lambda _layer, arguments, _out, inputs=inputs: inputs.append(arguments[0][0]))
        field = receptive_field(model)
        pairs = pairs_by_hand(lowest, inputs[0]).long()
        torch.testing.assert_close(field, torch.linalg.matrix_power(pairs, depth) > 0)
        total += int(pairs.sum())
    assert total > 5 * (LENGTH + 1)  # beyond each token's own


@pytest.mark.parametrize("depth", [1, 2])
def test_a_token_reads_itself_and_the_keys_of_its_pairs(depth: int) -> None:
    check(depth)


def test_pairs_that_each_layer_chooses_for_itself_are_noticed() -> None:
    with pytest.raises(AssertionError):
        check(2, share="layer")
