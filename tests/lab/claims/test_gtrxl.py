"""What the claims about GTrXL measure."""

import pytest
import torch

from kinformer.lab.claims import gtrxl_gate_bias, gtrxl_identity
from kinformer.members.gtrxl import gtrxl


@torch.no_grad()
def test_the_change_of_all_sublayers_is_that_of_the_stack() -> None:
    result = gtrxl_identity.changes("gru", seed=3, depth=2, b_g=1.0, d=16)
    torch.manual_seed(3)
    stack, x = (
        gtrxl(d=16, depth=2, segment=gtrxl_identity.LENGTH, memory=0, b_g=1.0).body.eval(),
        torch.randn(1, gtrxl_identity.LENGTH, 16),
    )
    y = stack(x).y[0]
    sizes, cosines = [], []
    for before, after in zip(x[0], y, strict=True):
        sizes.append(float((after - before).norm() / before.norm()))
        cosines.append(float(before @ after / (before.norm() * after.norm())))
    assert len(result) == 4
    torch.testing.assert_close(torch.tensor(result[-1]), torch.tensor([sizes, cosines]).mean(1))


def test_a_symbol_is_wanted_again_and_learning_ends_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    lag, symbols = gtrxl_gate_bias.LAG, torch.randint(4, (2, 12))
    expected: list[list[int]] = []

    class Knows(torch.nn.Linear):
        """Says nothing for a batch, then what came so much before."""

        def forward(self, symbols: torch.Tensor) -> torch.Tensor:
            expected.append([row[t - lag] for row in symbols.tolist() for t in range(lag, len(row))])
            answer = torch.nn.functional.one_hot(torch.tensor(expected[-1]), 4).float() * (len(expected) > 1)
            return answer.view(len(symbols), -1, 4) + 0 * self.bias.sum()

    assert gtrxl_gate_bias.RepeatReader(2.0, 1)(symbols).shape == (2, 12 - lag, 4)
    monkeypatch.setattr(gtrxl_gate_bias, "RepeatReader", lambda b_g, depth: Knows(1, 1))
    result = gtrxl_gate_bias.train_reader(2.0, 0, 5)
    assert result.steps == 2 and result.right[-1] == 1
    assert result.right[0] == pytest.approx(expected[0].count(0) / len(expected[0]))
    assert expected[0] != expected[1]
