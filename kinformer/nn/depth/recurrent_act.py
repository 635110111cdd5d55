"""RecurrentACT: a recurrent cell that takes as many steps per token as this token needs."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_part
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, make_state_spec
from kinformer.core.state import concatenate, select
from kinformer.core.token_positions import check_in_order
from kinformer.nn.depth.act import Halt, Halting, Mix, add_weighted, interpolate_answer

GATHERING = 1e7  # multiplications that take as long as gathering rows and putting them back


class RecurrentACTState(NamedTuple):
    """The state of `RecurrentACT` after the last real token of each row.

    s: state, [B D].
    c: memory cells of an LSTM, [B D]; width 0 for other cells.
    """

    s: Float[Tensor, "B D"]
    c: Float[Tensor, "B C"]


class PonderedRows(NamedTuple):
    """The rows of a batch in which `RecurrentACT` still takes steps for the current token.

    row: indices into the batch.
    x: inputs, the current token of each row.
    now: states after the last step.
    mixed: weighted sums of the states of all steps so far.
    halt: halting state.
    """

    row: Int[Tensor, " R"]
    x: Float[Tensor, "R D"]
    now: RecurrentACTState
    mixed: RecurrentACTState
    halt: Halt


class RecurrentACT(Layer):
    """Adaptive computation time for a recurrent cell, in Graves' original form.

        s^n = S(s^(n-1), [x; 1 at the first step, else 0]), n up to N

    Here s^n is the state after step n, S the cell and N the number of steps of this token. Choose it to measure what
    adaptive time gains without attention; choose `ACT` for Transformers. Both the output y for a token and the state
    after it are the `mix` of the states of its steps. Graves' weights add up to 1, so a linear head on y gives the
    weighted mean of the steps' outputs, as in the paper. The layer reports `ponder`, `steps` and `remainder` per token,
    as `ACT` does. It reads array order as time; padding does not change the state.

    Costs: except in compiled code, a step in which all rows have halted is not computed. A step skips halted rows if
    that saves at least ten million multiplications, which take as long as gathering the other rows.

    d: width of input, state and output.
    steps: maximum number of steps per token.
    halting: decides when a token stops.
    cell: `cell(input, s)` maps d + 1 and d numbers to d; default a plain `nn.RNNCell`. The memory cells of an
        `nn.LSTMCell` are mixed like the state; halting and y read only the state.
    mix: combines the states into y; `add_weighted` as in Graves.

    Errors: ValueError without `ctx.run`, with `ctx.only` or `ctx.also`, and for less than one step. Source: Graves,
    2016, arXiv:1603.08983, section 2.
    """

    def __init__(self, d: int, steps: int, halting: Halting, *, cell: nn.Module | None = None, mix: Mix = add_weighted):
        super().__init__()
        self.d, self.steps, self.mix = check_at_least("d", d, 1), check_at_least("steps", steps, 1), mix
        self.halting = check_part("halting", halting, Halting, "a halting unit, such as Halting(d)")
        self.cell = cell or nn.RNNCell(d + 1, d)
        self.cells = d if isinstance(cell, nn.LSTMCell) else 0
        self.weights = sum(p.numel() for p in self.cell.parameters())

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> RecurrentACTState:
        new = make_state_spec(self, batch, length, dtype, device)
        return self._empty(batch, torch.empty(0, dtype=new.dtype, device=new.device))

    def forward(self, x: Float[Tensor, "B T D"], state: RecurrentACTState | None, ctx: Context) -> Out:
        check_in_order(ctx, "RecurrentACT")
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                "RecurrentACT does not support ctx.only or ctx.also: it keeps one state for all past tokens. Use ACT"
            )
        now = self._empty(len(x), x) if state is None else RecurrentACTState(state.s.to(x.dtype), state.c.to(x.dtype))
        real = ctx.pos >= 0
        ys, halts = [], [self.halting.start(real[:, :0], x)]
        for t in range(x.shape[1]):
            new, halt = self._ponder(x[:, t], now, real[:, t])
            now = RecurrentACTState(*(torch.where(real[:, t, None], *pair) for pair in zip(new, now, strict=True)))
            ys.append(now.s[:, None])
            halts.append(Halt(*(leaf[:, None] for leaf in halt)))
        halt = Halt(*(torch.cat(leaves, 1) for leaves in zip(*halts, strict=True)))
        new_state = None if state is None else RecurrentACTState(now.s.to(state.s.dtype), now.c.to(state.c.dtype))
        return Out(torch.cat([x[:, :0], *ys], 1), new_state, halt.report())

    def _ponder(
        self, x: Float[Tensor, "B D"], now: RecurrentACTState, real: Bool[Tensor, " B"]
    ) -> tuple[RecurrentACTState, Halt]:
        row = torch.arange(len(x), device=x.device)
        going = PonderedRows(row, x, now, self._empty(len(x), x), self.halting.start(real, x))
        left: list[PonderedRows] = []
        for n in range(self.steps):
            if n and not torch.compiler.is_compiling():
                alive = going.halt.alive
                goes_on = int(alive.sum())
                if not goes_on:
                    break
                if (len(alive) - goes_on) * self.weights >= GATHERING:
                    left.append(select(going, (~alive).nonzero()[:, 0]))
                    going = select(going, alive.nonzero()[:, 0])
            going = self._step(n, going)
        if left:
            going = concatenate([*left, going])
            going = select(going, going.row.argsort())
        return going.mixed, going.halt

    def _step(self, n: int, going: PonderedRows) -> PonderedRows:
        row, x, now, mixed, halt = going
        z = torch.cat([x, x.new_full((len(x), 1), float(n == 0))], 1)
        now = (
            RecurrentACTState(*self.cell(z, (now.s, now.c)))
            if self.cells
            else RecurrentACTState(self.cell(z, now.s), now.c)
        )
        weight, halt = self.halting(now.s, halt, n == self.steps - 1)
        mixed = RecurrentACTState(*(self.mix(old, new, weight) for old, new in zip(mixed, now, strict=True)))
        return PonderedRows(row, x, now, mixed, halt)

    def _empty(self, batch: int, like: Tensor) -> RecurrentACTState:
        return RecurrentACTState(like.new_zeros(batch, self.d), like.new_zeros(batch, self.cells))


EXAMPLES = (
    lambda: RecurrentACT(16, 3, Halting(16, epsilon=0.1, bias=-0.5)),
    lambda: RecurrentACT(16, 2, Halting(16), cell=nn.GRUCell(17, 16)),
    lambda: RecurrentACT(16, 2, Halting(16, bias=-0.5), cell=nn.LSTMCell(17, 16), mix=interpolate_answer),
)
