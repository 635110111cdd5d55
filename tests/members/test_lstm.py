"""LSTM: its layers step by step, rows read backwards, its number of weights, and biases of forget gates."""

import pytest
import torch

import kinformer as kf
from kinformer.nn.mixers import lstm as mixer
from tests.members.probes import count, first_part

pytestmark = pytest.mark.usefixtures("float64")

D, DEPTH = 8, 2


def check(model: kf.LM) -> None:
    """i, f, o = sigmoid(W [x_t; h_t-1]), g = tanh(W' [x_t; h_t-1]), c_t = f c_t-1 + i g, h_t = o tanh(c_t)."""
    body, x, y = first_part(model, kf.LSTM)
    state = [(torch.zeros(D), torch.zeros(D)) for _ in range(DEPTH)]
    for t, h in enumerate(x):
        for n, cell in enumerate(body.cells):
            gates = cell.weight_ih @ h + cell.bias_ih + cell.weight_hh @ state[n][0] + cell.bias_hh
            i, f, g, o = gates.view(4, D)
            c = f.sigmoid() * state[n][1] + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            state[n] = h, c
        torch.testing.assert_close(y[t], h)


def test_each_layer_is_its_equation() -> None:
    check(kf.lstm(d=D, depth=DEPTH, vocab=11))


def test_rows_that_are_read_backwards_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mixer._run_full_rows
    monkeypatch.setattr(mixer, "_run_full_rows", lambda cell, x, now: whole(cell, x.flip(1), now))
    with pytest.raises(AssertionError):
        check(kf.lstm(d=D, depth=DEPTH, vocab=11))


def test_a_layer_has_8_d_squared_weights_and_8_d_biases() -> None:
    assert count(kf.lstm(d=D, depth=3, vocab=11)) == 3 * (8 * D**2 + 8 * D) + 2 * 11 * D  # embedding and head apart


def test_forget_is_added_to_the_biases_of_forget_gates_alone() -> None:
    biases = []
    for forget in (3.0, 0.0):
        torch.manual_seed(1)
        biases.append(kf.lstm(d=D, depth=1, forget=forget, vocab=11).body.cells[0].bias_ih)
    expected = torch.zeros(4, D)
    expected[1] = 3.0  # gates in the order i, f, g, o
    torch.testing.assert_close((biases[0] - biases[1]).view(4, D), expected)
