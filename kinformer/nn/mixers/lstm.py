"""LSTM: a recurrent network as a layer, a baseline for models with a memory."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from kinformer.core.autocast import autocast_dtype
from kinformer.core.checks import check_at_least, check_in_range, check_probability
from kinformer.core.function_transforms import are_plain_tensors, is_forward_mode
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, make_state_spec
from kinformer.core.token_positions import check_in_order

Pair = tuple[Tensor, Tensor]


class LSTMState(NamedTuple):
    """State of an `LSTM`: hidden state and memory cells of each of its layers after the last real token.

    h: hidden states.
    c: memory cells.
    """

    h: Float[Tensor, "B N D"]
    c: Float[Tensor, "B N D"]


class LSTM(Layer):
    """Stack of long short-term memory layers.

    i, f, o = sigmoid(W [x_t; h_(t-1)]), g = tanh(W' [x_t; h_(t-1)]),
    c_t = f * c_(t-1) + i * g, h_t = o * tanh(c_t)

    Choose it as a baseline for models with a memory. Its state has 2 d numbers per layer for any row length, and a
    token costs 16 d^2 operations per layer. The content of the state decays unless a gate learns to keep it. Choose
    attention if the model must find an earlier token by its content. The LSTM treats array order as time and computes
    one token after the other. Padding does not change the state.

    d: width of x and of each layer's hidden state.
    depth: number of layers.
    dropout: dropout probability of each layer's input.
    forget: number added to the initial biases of the forget gates. At first the cells keep sigmoid(`forget`) of their
        values at each step: half for 0; 95 percent for 3, so about a quarter is left after 30 steps.

    Errors: ValueError without `ctx.run`, with `ctx.only` or `ctx.also` (a state of all past tokens allows no limits),
    or if depth is below 1.

    Source: Hochreiter and Schmidhuber, 1997, doi:10.1162/neco.1997.9.8.1735, with the forget gate of Gers et al., 2000,
    doi:10.1162/089976600300015015; its initial weights: Jozefowicz et al., 2015,
    https://proceedings.mlr.press/v37/jozefowicz15.html; dropout: Zaremba et al., 2014, arXiv:1409.2329.
    """

    def __init__(self, d: int, depth: int = 1, *, dropout: float = 0.0, forget: float = 0.0):
        super().__init__()
        self.d, self.dropout = check_at_least("d", d, 1), check_probability("dropout", dropout)
        self.cells = nn.ModuleList(nn.LSTMCell(d, d) for _ in range(check_at_least("depth", depth, 1)))
        check_in_range("forget", forget, -math.inf, math.inf, open_end=True)
        with torch.no_grad():
            for cell in self.cells:
                cell.bias_ih[d : 2 * d] += forget

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> LSTMState:
        new = make_state_spec(self, batch, length, dtype, device)
        empty = torch.zeros(batch, len(self.cells), self.d, dtype=new.dtype, device=new.device)
        return LSTMState(empty, empty.clone())

    def forward(self, x: Float[Tensor, "B T D"], state: LSTMState | None, ctx: Context) -> Out:
        check_in_order(ctx, "LSTM")
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                "LSTM does not support ctx.only or ctx.also: it keeps one state for all past tokens. Leave them out"
            )
        if x.shape[2] != self.d:  # PyTorch's fast kernel does not check the width and reads beyond it
            raise ValueError(f"LSTM got x of shape {list(x.shape)}, expected width d={self.d}")
        before = self.start(len(x), 0, dtype=x.dtype, device=x.device) if state is None else state
        real, after = ctx.pos >= 0, []
        if before.h.shape != (len(x), len(self.cells), self.d):
            raise ValueError(
                f"the state does not fit x: got a state of {len(before.h)} rows for {len(x)} rows of x. Pass one "
                "state per row"
            )
        plain = _has_fast_kernel(x)
        whole = plain and (ctx.full or bool(real.all()))
        lengths = _lengths(real) if plain and not whole else None
        for n, cell in enumerate(self.cells):
            x, now = F.dropout(x, self.dropout, self.training), (before.h[:, n].to(x.dtype), before.c[:, n].to(x.dtype))
            if whole and x.shape[1]:
                x, now = _run_full_rows(cell, x, now)
            elif lengths is not None:
                x, now = _run_packed(cell, x, now, lengths)
            else:
                x, now = _step_by_step(cell, x, now, real)
            after.append(now)
        if state is None:
            return Out(x)
        return Out(x, LSTMState(*(torch.stack(leaves, 1).to(state.h.dtype) for leaves in zip(*after, strict=True))))


def _has_fast_kernel(x: Tensor) -> bool:
    """Return whether PyTorch's whole-row kernel supports x.

    It supports neither compiled graphs, nor function transforms, nor float16 on a CPU, nor bfloat16 on some CPUs.
    """
    if torch.compiler.is_compiling() or not are_plain_tensors(x) or is_forward_mode():
        return False
    if x.device.type != "cpu" or (dtype := autocast_dtype(x)) not in (torch.float16, torch.bfloat16):
        return True
    return dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _run_full_rows(cell: nn.LSTMCell, x: Float[Tensor, "B T D"], now: Pair) -> tuple[Tensor, Pair]:
    """Run a layer over rows without padding in one call, several times as fast as step by step."""
    weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
    y, h, c = torch.lstm(
        x, [leaf[None].contiguous() for leaf in now], weights, True, 1, 0.0, torch.is_grad_enabled(), False, True
    )
    return y, (h[0], c[0])


def _lengths(real: Bool[Tensor, "B T"]) -> Int[Tensor, " B"] | None:
    """Return the length of each row, or None if a row is empty or has padding before a real token."""
    lengths = real.sum(1)
    behind = torch.arange(real.shape[1], device=real.device) < lengths[:, None]
    return lengths if len(lengths) and bool((behind == real).all() & (lengths > 0).all()) else None


def _run_packed(
    cell: nn.LSTMCell, x: Float[Tensor, "B T D"], now: Pair, lengths: Int[Tensor, " B"]
) -> tuple[Tensor, Pair]:
    """Run a layer over rows with padding at the end in one call; the output at padding is 0."""
    rows = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    assert rows.sorted_indices is not None and rows.unsorted_indices is not None
    weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
    before = [leaf[None, rows.sorted_indices] for leaf in now]
    y, h, c = torch.lstm(rows.data, rows.batch_sizes, before, weights, True, 1, 0.0, torch.is_grad_enabled(), False)
    padded, _ = pad_packed_sequence(rows._replace(data=y), batch_first=True, total_length=x.shape[1])
    return padded, (h[0][rows.unsorted_indices], c[0][rows.unsorted_indices])


def _step_by_step(
    cell: nn.LSTMCell, x: Float[Tensor, "B T D"], now: Pair, real: Bool[Tensor, "B T"]
) -> tuple[Tensor, Pair]:
    """Run a layer step by step. Any step may be padding, which does not change the state."""
    ys = []
    for t in range(x.shape[1]):
        h, c = _run_cell(cell, x[:, t], now)
        h, c = (torch.where(real[:, t, None], new, old.to(new.dtype)) for new, old in zip((h, c), now, strict=True))
        now = h, c
        ys.append(now[0][:, None])
    return torch.cat(ys, 1) if ys else x, now


def _run_cell(cell: nn.LSTMCell, x: Float[Tensor, "B D"], now: Pair) -> Pair:
    """Run one step in plain operations, which support every function transform."""
    h, c = now
    gates = F.linear(x, cell.weight_ih, cell.bias_ih) + F.linear(h, cell.weight_hh, cell.bias_hh)
    enter, keep, new, show = gates.chunk(4, -1)
    c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
    return (show.sigmoid() * c.tanh()).to(gates.dtype), c.to(gates.dtype)


EXAMPLES = (lambda: LSTM(16), lambda: LSTM(16, 2, forget=1.0))
