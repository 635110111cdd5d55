"""LSTM against a loop of its equations, and what padding is to it."""

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.nn.mixers.lstm import LSTM


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


def test_padding_behind_rows_is_read_in_one_call_to_the_same() -> None:
    torch.manual_seed(0)
    layer, x = LSTM(4, 2).double(), torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    pos = torch.tensor([[0, 1, 2, -1, -1], [0, 1, 2, 3, 4], [0, -1, -1, -1, -1]])
    before = layer.start(3, 5)._replace(h=torch.randn(3, 2, 4).double(), c=torch.randn(3, 2, 4).double())
    out = layer(x, before, Context(pos, run=True))
    for row, size in enumerate((3, 5, 1)):
        row_state = type(before)(*(leaf[row : row + 1] for leaf in before))
        alone = layer(x[row : row + 1, :size], row_state, Context(pos[row : row + 1, :size], run=True))
        torch.testing.assert_close(out.y[row : row + 1, :size], alone.y)
        torch.testing.assert_close(out.state.h[row], alone.state.h[0])
        torch.testing.assert_close(out.state.c[row], alone.state.c[0])
        (row_gradient,) = torch.autograd.grad(out.y[row, :size].sum(), x, retain_graph=True)
        (want,) = torch.autograd.grad(alone.y.sum(), x)
        torch.testing.assert_close(row_gradient, want)


def test_a_forget_gate_starts_as_told() -> None:
    torch.manual_seed(0)
    plain = LSTM(3)
    torch.manual_seed(0)
    keeps = LSTM(3, forget=2.5)
    change = keeps.cells[0].bias_ih - plain.cells[0].bias_ih
    torch.testing.assert_close(change, torch.tensor([0.0] * 3 + [2.5] * 3 + [0.0] * 6))


@pytest.mark.parametrize(
    ("rows", "width", "match"),
    [(2, 3, r"^LSTM got x of shape \[2, 1, 3\], expected width d=4$"), (3, 4, "got a state of 2 rows for 3 rows of x")],
)
def test_what_pytorch_would_read_beyond_is_refused(rows: int, width: int, match: str) -> None:
    layer, pos = LSTM(4), torch.zeros(rows, 1, dtype=torch.long)
    with pytest.raises(ValueError, match=match):
        layer(torch.ones(rows, 1, width), layer.start(2, 5), Context(pos, run=True, full=True))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own, of forward derivatives
def test_transforms_and_half_precision_are_served_step_by_step() -> None:
    layer, x = LSTM(4), torch.randn(3, 2, 5, 4)
    actual = torch.func.vmap(lambda rows: layer(rows).y)(x)
    torch.testing.assert_close(actual, torch.stack([layer(rows).y for rows in x]))
    change = torch.randn(2, 5, 4)
    _, along = torch.func.jvp(lambda rows: layer(rows).y, (x[0],), (change,))
    small = 1e-3
    near = (layer(x[0] + small * change).y - layer(x[0] - small * change).y) / (2 * small)
    torch.testing.assert_close(along, near, rtol=0, atol=1e-3)
    padded = Context(torch.tensor([[-1, 0, 1, 2, 3], [0, 1, 2, 3, 4]]), run=True)
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            assert layer(x[0]).y.dtype == layer(x[0], None, padded).y.dtype == dtype
