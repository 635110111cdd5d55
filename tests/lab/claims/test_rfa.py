"""The claim about RFA's decoding steps and features: what it measures, by formulas and draws."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.lab.claims import rfa_steps
from kinformer.lab.claims.support.verdict import Claim
from kinformer.members.gpt import gpt
from kinformer.nn.maps.random_fourier import RandomFourier

SMALL: dict[str, Any] = {"lengths": (4, 16), "directions": (16, 256)}
DRAWS: dict[str, Any] = {"d": 64, "depth": 3, "heads": 8}


def random_features(monkeypatch: pytest.MonkeyPatch) -> dict[str, Claim]:
    """The claim at small sizes."""
    monkeypatch.setattr(rfa_steps, "DRAWS", DRAWS)
    return {"rfa_steps": rfa_steps.claim((0, 1), **SMALL)}


def test_the_claim_holds_of_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    assert random_features(monkeypatch)["rfa_steps"].verdict == "holds"


def test_the_error_of_a_kernel_is_the_variance_of_its_cosines() -> None:
    """By drawing directions: the mean of D cosines against the kernel."""
    generator = torch.Generator().manual_seed(0)
    for squared in (0.5, 2.0):
        apart = torch.zeros(6, dtype=torch.float64)
        apart[0] = squared**0.5
        directions = torch.randn(20_000, 8, 6, generator=generator, dtype=torch.float64)
        estimates = (directions @ apart).cos().mean(1)
        by_hand = float((estimates - torch.tensor(-squared / 2).exp()).square().mean())
        expected = float(rfa_steps.expected_error(torch.tensor([squared]), 8))
        assert by_hand == pytest.approx(expected, rel=0.05)


def test_kernel_errors_are_those_of_the_member_s_own_features() -> None:
    maps = rfa_steps.feature_maps(32)
    assert len(maps) == rfa_steps.DRAWS["depth"] and all(isinstance(part, RandomFourier) for part in maps)
    assert not torch.equal(maps[0].directions, maps[1].directions)
    assert maps[0].directions.shape == (rfa_steps.DRAWS["heads"], 32, 16)


def test_a_wrong_map_and_a_growing_state_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = RandomFourier.forward
    monkeypatch.setattr(rfa_steps, "DRAWS", DRAWS)

    def repeated(self: RandomFourier, x: Tensor, is_query: bool) -> tuple[Tensor, Tensor]:
        """Features whose directions are all the first."""
        self.directions.copy_(self.directions[:, :1].expand_as(self.directions))
        return forward(self, x, is_query)

    with monkeypatch.context() as patch:
        patch.setattr(RandomFourier, "forward", repeated)
        verdicts = {x.quantity: x.verdict for x in rfa_steps.claim((0, 1), **SMALL).measures}
        assert [name for name, verdict in verdicts.items() if verdict == "does not hold"] == list(verdicts)[-2:]
    monkeypatch.setattr(rfa_steps, "rfa", lambda **sizes: gpt(**sizes))
    monkeypatch.setattr(rfa_steps, "kernel_errors", lambda count, seed: rfa_steps.KernelErrors(1 / count, 1 / count))
    assert rfa_steps.claim((0, 1), **SMALL).verdict == "does not hold"
