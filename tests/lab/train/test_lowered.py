"""Under autocast to bfloat16: what is promised in float32 is so, where rounding first and widening after would not be.

Each is held against the same numbers without autocast, from the same inputs.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.pooler import Pooler
from kinformer.core.state import detach
from kinformer.members.agent import agent
from kinformer.members.compressive_transformer import compressive_transformer
from kinformer.models.support.logistic_mixture import STEP, LogisticMixture
from kinformer.nn.losses.exit_oracles import Correctness, ExitOracle, Likelihood
from kinformer.nn.mechanisms import edge_predictor as edges
from kinformer.nn.poolers.max import MaxPooler
from kinformer.nn.poolers.mean import MeanPooler
from kinformer.nn.poolers.sum import SumPooler


def lowered(on: bool) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=on)


@pytest.mark.parametrize("loss", ["attention", "autoencoding"])
def test_a_compression_learns_what_it_loses_and_not_rounding(loss: Any) -> None:
    original = compressive_transformer(d=32, depth=1, heads=2, memory=24, dropout=0.0, loss=loss).train()

    def gradient(model: Any, low: bool) -> Tensor:
        with lowered(low):
            first = model(model.sample(4, 50, 0), model.start(4, 200)).state
            model(model.sample(4, 50, 1), detach(first), 0.5).total.backward()
        gradients = [p.grad.double().flatten() for name, p in model.named_parameters() if ".memory." in name]
        return torch.cat(gradients)

    want = gradient(copy.deepcopy(original).double(), False)
    assert float(want.norm()) > 0
    assert float((gradient(original, True) - want).norm()) < 0.1 * float(want.norm())


def test_logistics_are_narrower_than_bfloat16_is() -> None:
    values = LogisticMixture(32, 1, mixtures=2)
    with torch.no_grad():
        values.head.bias.view(-1, 2)[1], values.head.bias.view(-1, 2)[2] = 0.9, -6.0  # sure of bright pixels
    y = torch.randn(4, 50, 32) / 5
    mean = y @ values.head.weight[2] + 0.9
    pixels = ((mean.clamp(-1, 1) + 1) / STEP).round().long()[..., None]
    want = values.nll(y, pixels)
    with lowered(True):
        surprise = values.nll(y, pixels)
    torch.testing.assert_close(surprise, want, rtol=0, atol=1e-5)


def test_shares_of_chosen_keys_add_up_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = 128
    predictor, nodes = edges.EdgePredictor(16, 8), torch.randn(1, 1, keys, 16) * 2
    may, distance, shares = torch.ones(1, 1, keys, dtype=torch.bool), torch.arange(keys)[None, None], []
    for index in range(keys):
        monkeypatch.setattr(edges, "choice", lambda make, index=index: torch.full((1, 1, 1), index))
        with torch.no_grad(), lowered(True):
            _, log_p, _ = predictor.choose(predictor.begin(nodes), nodes, may, distance, None)
        shares.append(log_p.double().exp())
    assert float(torch.stack(shares).sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("oracle", [Likelihood(0.01, sigma=4.0), Correctness(0.01, sigma=4.0)], ids=["nats", "right"])
def test_exits_are_chosen_by_exact_merits(oracle: ExitOracle) -> None:
    about = torch.randn(4, 64, 50)
    logits = [about + torch.randn_like(about) / 20 for _ in range(4)]
    targets = torch.randint(50, (4, 64))
    with lowered(True):
        chosen = oracle(logits, targets)
    assert torch.equal(chosen, oracle(logits, targets))


@pytest.mark.parametrize(
    ("pooling", "expected"), [(SumPooler(), 301.0), (MeanPooler(), 1.0), (MaxPooler(), 1.0)], ids=["sum", "mean", "max"]
)
def test_elements_are_counted_beyond_256(pooling: Pooler, expected: float) -> None:
    with lowered(True):
        pooled = pooling(torch.ones(1, 301, 4, dtype=torch.bfloat16), torch.ones(1, 301, dtype=torch.bool))
    assert pooled.flatten().tolist() == [expected] * 4


def test_values_of_steps_near_one_another_stay_apart() -> None:
    model = agent(observations=(2,)).train()
    with torch.no_grad():
        model.value.bias.fill_(100.0)  # as of a pole that stands
    experience = model.sample(2, 40, 0).observations
    with lowered(True):
        value = model.predict(experience).value
    assert value.dtype == torch.float32 and value.unique().numel() > 40
