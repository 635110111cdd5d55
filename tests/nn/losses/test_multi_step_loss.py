"""Auxiliary losses: when layers stop, and where further targets lie."""

import pytest
import torch

from kinformer.nn.losses.multi_step_loss import last_targets, layer_weights, multi_step_loss, targets_of_steps


@pytest.mark.parametrize("depth", [1, 2, 5, 12])
def test_layer_l_of_n_stops_when_l_over_2n_of_the_training_is_done(depth: int) -> None:
    for done in (*(n / (4 * depth) for n in range(4 * depth + 1)), 0.499):
        want = [layer - 1 for layer in range(1, depth) if not done >= layer / (2 * depth)]
        assert layer_weights(depth, done) == dict.fromkeys(want, 1.0)
        assert list(layer_weights(depth, done, "linear")) == want
    assert len(layer_weights(depth, 0.0)) == depth - 1 and not layer_weights(depth, 0.5)


def test_the_weight_of_a_lower_layer_can_fall_in_a_line_until_it_stops() -> None:
    """Layer 2 of 4 stops at 2 / 8 of the training, layer 3 at 3 / 8."""
    for done, second, third in ((0.0, 1.0, 1.0), (0.125, 0.5, 2 / 3), (0.1875, 0.25, 0.5), (0.25, 0.0, 1 / 3)):
        weights = layer_weights(4, done, "linear")
        assert weights.get(1, 0.0) == pytest.approx(second) and weights[2] == pytest.approx(third)


def test_a_further_target_has_every_one_before_it() -> None:
    expected = torch.tensor([[5, 3, -1, 2, 4, 6], [-1, -1, 7, 8, -1, -1]])
    assert [targets.tolist() for targets in targets_of_steps(expected, 3)] == [
        expected.tolist(),
        [[3, -1, -1, 4, 6, -1], [-1, -1, 8, -1, -1, -1]],
        [[-1, -1, -1, 6, -1, -1], [-1] * 6],
    ]
    assert targets_of_steps(expected[:, :2], 4)[3].tolist() == [[-1, -1]] * 2, "more steps than a row is long"
    assert last_targets(expected).tolist() == [[-1, 3, -1, -1, -1, 6], [-1, -1, -1, 8, -1, -1]], (
        "two documents, and one"
    )
    assert last_targets(torch.full((1, 3), -1)).tolist() == [[-1] * 3]


def test_further_targets_are_weighed(float64: None) -> None:
    logits, tokens = [torch.randn(2, 4, 7) for _ in range(3)], torch.tensor([[5, 3, 0, 2], [1, 6, -1, -1]])
    total = 0.0
    for k, (step_logits, targets) in enumerate(zip(logits, targets_of_steps(tokens, 3), strict=True)):
        for b, t in (targets >= 0).nonzero().tolist():
            total -= (1.0 if k == 0 else 0.25) * float(step_logits[b, t].log_softmax(-1)[targets[b, t]])
    assert float(multi_step_loss(logits, targets_of_steps(tokens, 3), 0.25)) == pytest.approx(total, rel=1e-12)
    with pytest.raises(ValueError, match="shorter than"):
        multi_step_loss(logits, targets_of_steps(tokens, 2))
