"""What the claims about auxiliary losses, adaptive time and the size of heads measure."""

import pytest
import torch

from kinformer.lab.claims import act_parity, al_rfou_losses, head_size
from kinformer.lab.claims.support.verdict import Claim
from kinformer.lab.data.text import TextData


def depth_and_heads(monkeypatch: pytest.MonkeyPatch) -> dict[str, Claim]:
    """These claims, without their trainings."""
    half = act_parity.BITS // 2
    steps = {price: [1.0] * half + [2 - 5 * price] * half for price in act_parity.PRICES}
    monkeypatch.setattr(act_parity, "train_and_test", lambda price, *_: act_parity.ParityResult(1.0, steps[price]))
    monkeypatch.setattr(al_rfou_losses, "read_text", lambda where: TextData("none", *torch.zeros(3, 1)))
    monkeypatch.setattr(al_rfou_losses, "bits", lambda name, *_: 5.0 if name == "none" else 4.0)
    return {
        "act_parity": act_parity.claim((0, 1)),
        "al_rfou_losses": al_rfou_losses.claim((0, 1)),
        "head_size": head_size.claim((0, 1), length=4, iterations=100),
    }


def test_parity_counts_the_ones_and_difficulty_what_is_not_zero() -> None:
    rows = act_parity.batch(200, torch.Generator().manual_seed(0))
    for x, nonzero, odd in zip(*(x.tolist() for x in rows), strict=True):
        assert sum(value != 0 for value in x) == nonzero and set(x) <= {-1, 0, 1}
        assert sum(value == 1 for value in x) % 2 == odd
    assert set(rows.nonzero.tolist()) == set(range(1, act_parity.BITS + 1))
    assert act_parity.ParityResult(1.0, [1.0, 2.0, 4.0, 6.0]).extra_steps == 3.5


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert act_parity.gradient_error(0, directions=1) < act_parity.GRADIENT

    class Scaled(act_parity.Ponderer):
        def loss(self, rows: act_parity.ParityBatch, price: float) -> torch.Tensor:
            loss = super().loss(rows, price)
            return loss.detach() + 1.01 * (loss - loss.detach())

    monkeypatch.setattr(act_parity, "Ponderer", Scaled)
    assert act_parity.gradient_error(0, directions=1) > 1e-3


def test_a_network_is_trained_and_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(act_parity, "ROWS", 8)
    monkeypatch.setattr(act_parity, "TRIED", 200)
    result = act_parity.train_and_test(0.1, 0, 1)
    assert 0 <= result.right <= 1 and all(1 <= steps <= act_parity.MOST for steps in result.steps)


def test_what_is_left_out_is_left_out_and_judged_at_the_last_position(monkeypatch: pytest.MonkeyPatch) -> None:
    built = {name: al_rfou_losses.WITHOUT[name] for name in ("all", *al_rfou_losses.WITHOUT)}
    assert built["all"] == {} and set(built["none"]) == {"every_position", "every_layer", "targets"}
    assert all(
        set(of) <= set(built["none"]) and len(of) == 1 for name, of in built.items() if name not in ("all", "none")
    )
    monkeypatch.setattr(al_rfou_losses, "SIZES", {"d": 8, "depth": 1, "heads": 2})
    monkeypatch.setattr(al_rfou_losses, "JUDGED", 70)
    tokens = torch.randint(256, (200,), dtype=torch.uint8)
    assert 4 < al_rfou_losses.bits("none", 0, 1, TextData("random", tokens, tokens, tokens)) < 12


def test_no_logits_of_a_rank_are_nearer_than_the_least() -> None:
    weights = head_size.random_weights(0, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(5, dtype=torch.float64))
    logits = weights.log() - weights.log().mean(-1, keepdim=True)
    for width in (1, 3):
        result = head_size.fit_attention(weights, width, 0, 10).log()
        apart = (result - result.mean(-1, keepdim=True) - logits).square().mean().sqrt()
        assert 0 < head_size.least_logit_error(weights, width) <= float(apart)
    assert head_size.least_logit_error(weights, 4) < 1e-12
    u, s, v = torch.linalg.svd(logits)
    best = (u[:, :2] * s[:2]) @ v[:2]
    assert head_size.least_logit_error(weights, 2) == pytest.approx(float((best - logits).square().mean().sqrt()))
