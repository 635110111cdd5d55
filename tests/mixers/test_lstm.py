"""LSTM against a loop of its equations, and what padding is to it."""

import torch

from kinformer.core.layer import Context
from kinformer.mixers.lstm import LSTM


def test_it_is_its_equations() -> None:
    torch.manual_seed(0)
    layer, x = LSTM(5, 2).double(), torch.randn(2, 7, 5, dtype=torch.float64)
    y = x
    for cell in layer.cells:
        h = c = torch.zeros(2, 5, dtype=torch.float64)
        ys = []
        for t in range(7):
            z = y[:, t] @ cell.weight_ih.T + cell.bias_ih + h @ cell.weight_hh.T + cell.bias_hh
            i, f, g, o = z.split(5, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            ys.append(h)
        y = torch.stack(ys, 1)
    torch.testing.assert_close(layer(x).y, y)


def test_padding_is_read_step_by_step_to_the_same() -> None:
    torch.manual_seed(0)
    layer, x = LSTM(4, 2).double(), torch.randn(1, 6, 4, dtype=torch.float64)
    pos = torch.tensor([[-1, -1, 0, 1, 2, 3]])
    out = layer(x, layer.start(1, 6), Context(pos, run=True))
    alone = layer(x[:, 2:], layer.start(1, 4), Context(pos[:, 2:], run=True))
    torch.testing.assert_close(out.y[:, 2:], alone.y)
    torch.testing.assert_close(out.state.c, alone.state.c)
