"""ACT: adaptive computation time, in which each token takes as many steps of one block as it needs."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.autocast import linear_float32
from kinformer.core.checks import check_at_least, check_flag, check_in_range, check_option, check_part
from kinformer.core.choice import choice
from kinformer.core.collected_outputs import Collected
from kinformer.core.example import Example
from kinformer.core.function_transforms import are_plain_tensors
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.loss import Penalty
from kinformer.core.residual_block import ResidualBlock
from kinformer.core.state import concatenate, select
from kinformer.nn.depth.active_rows import can_read_some_rows, find_active_rows, on_rows
from kinformer.nn.depth.selected_tokens import (
    SelectedTokens,
    has_no_hooks,
    put_back,
    read_tokens,
    serves_tokens,
    tokens_at,
    worth_gathering,
)
from kinformer.nn.depth.step_keys import StepKeys
from kinformer.nn.depth.universal import Universal

Last = Literal["remainder", "probability"]
Halted = Literal["copied", "updated"]
Judged = Literal["input", "output"]
# (answer so far [... D], state of the step [... D], weight of the step [...]) to the answer after the step
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


def add_weighted(y: Tensor, s: Tensor, weight: Tensor) -> Tensor:
    """Add the step's state, times its weight, to the token's output so far: Graves' sum over steps.

    y: answer so far, [... D].
    s: state of the step, [... D].
    weight: weight of the step, [...].
    """
    return y + weight[..., None].to(s.dtype) * s


def interpolate_answer(y: Tensor, s: Tensor, weight: Tensor) -> Tensor:
    """Move the token's output toward the step's state by its weight, as in the Universal Transformer.

    Late steps weigh more than in `add_weighted`.

    y: answer so far, [... D].
    s: state of the step, [... D].
    weight: weight of the step, [...].
    """
    return torch.lerp(y, s.to(y.dtype), weight[..., None].to(y.dtype))  # autocast leaves s in a lower precision


class Halt(NamedTuple):
    """The halting state of each token in adaptive computation time (ACT).

    alive: True for tokens that still take steps.
    total: sum of halting probabilities so far.
    remainder: remainder R, 0 until the token stops.
    steps: number of steps N.
    """

    alive: Bool[Tensor, "*shape"]
    total: Float[Tensor, "*shape"]
    remainder: Float[Tensor, "*shape"]
    steps: Float[Tensor, "*shape"]

    def report(self) -> dict[str, Tensor]:
        """Return what a layer reports per token: ponder cost N + R, N, and R; only R has a gradient."""
        return {"ponder": self.steps + self.remainder, "steps": self.steps, "remainder": self.remainder}


class ActiveTokens(NamedTuple):
    """The tokens that `ACT` still computes, gathered from the batch.

    at: indices into the flattened batch.
    s: states, the inputs of the next step.
    y: outputs so far.
    halt: halting state.
    """

    at: Int[Tensor, " n"]
    s: Float[Tensor, "n D"]
    y: Float[Tensor, "n D"]
    halt: Halt


class Halting(nn.Module, KeywordHints):
    """A unit of adaptive computation time (ACT) that decides after each step which tokens stop.

    h = sigmoid(w.s + b), stop when the sum of h reaches 1 - epsilon

    The last step of a token weighs the remainder R = 1 - the sum before it; every other step weighs its h. All of this
    is computed in float32 or better. The cost "ponder" is N + R. N is a count and has no gradient. R trains the unit
    and, through its inputs, the steps and the layers below. Graves weighed the cost with 1e-4 to 1e-1.

    d: width of a state.
    epsilon: tolerance below a sum of 1, which lets a token stop after one step.
    bias: initial value of b (a large value stops early); None for no b.
    last: weight of the last possible step if the token has not stopped before. "remainder" makes all weights add up to
        1 (Graves). "probability" takes h instead of the remainder (the Universal Transformer's appendix,
        Tensor2Tensor).
    strict: True stops only if the sum exceeds 1 - epsilon, as the appendix and Tensor2Tensor do; False, as Graves, also
        stops if the sum equals it.

    Errors: ValueError for an epsilon outside [0, 1) and another `last`. Source: Graves, 2016, arXiv:1603.08983,
    equations 5 to 8.
    """

    def __init__(
        self, d: int, *, epsilon: float = 0.01, bias: float | None = 1.0, last: Last = "remainder", strict: bool = False
    ):
        super().__init__()
        self.epsilon, self.last = (
            check_in_range("epsilon", epsilon, 0, 1, open_end=True),
            check_option("last", last, Last),
        )
        self.strict = check_flag("strict", strict)
        self.unit = nn.Linear(check_at_least("d", d, 1), 1, bias=bias is not None)
        if bias is not None:
            nn.init.constant_(self.unit.bias, bias)

    def penalties(self) -> dict[str, Penalty]:
        return {"ponder": Penalty(tuple(self.unit.parameters()), reaches_x=True)}

    def start(self, real: Bool[Tensor, "*shape"], like: Tensor) -> Halt:
        """Return the halting state before the first step; all tokens that are `real` take this step.

        real: True for tokens, False for padding.
        like: a tensor with the dtype of the states.
        """
        zero = torch.zeros(real.shape, dtype=torch.promote_types(like.dtype, torch.float32), device=real.device)
        return Halt(real, zero, zero, zero)

    def forward(self, s: Float[Tensor, "*shape D"], halt: Halt, final: bool) -> tuple[Float[Tensor, "*shape"], Halt]:
        """Return the weights of a step, 0 for stopped tokens, and the halting state after it.

        s: states that the unit judges.
        halt: halting state before the step.
        final: True if no step can follow.
        """
        h = linear_float32(self.unit, s)[..., 0].sigmoid()
        stop = choice(lambda: halt.alive & self._is_enough(halt.total + h))
        if final and self.last == "remainder":
            stop = halt.alive
        on = halt.alive & ~stop
        rest = torch.where(stop, 1 - halt.total, 0.0)
        going_weight = torch.where(on, h, 0.0)
        return going_weight + rest, Halt(on, halt.total + going_weight, halt.remainder + rest, halt.steps + halt.alive)

    def _is_enough(self, total: Tensor) -> Tensor:
        return total > 1 - self.epsilon if self.strict else total >= 1 - self.epsilon


class ACT(Layer):
    """Adaptive computation over depth: each token repeats a block until a learned unit stops it.

    y = w s + (1 - w) y after each step, with weight w and state s

    Choose it if tokens need different amounts of computation. Choose `Universal` for a fixed number of steps. The layer
    reports per token the ponder cost `ponder`, the number of steps `steps` and the remainder `remainder`. Add `ponder`
    with a weight to the loss, or every token takes all steps. Other tokens still read halted tokens as keys.

    Costs: a step skips halted tokens, also in training, if that saves more than gathering the others costs
    (`worth_gathering`: from about 1,000 tokens of width 128 or 300 of width 256).

    With halted="copied" a step computes only the active tokens of all rows. The keys of halted tokens change only by
    the timing. With halted="updated" the hidden states of halted tokens change while a token of their row is active. So
    a step skips only whole rows, and in the last step of a row its halted tokens.

    In eager eval mode rows without active tokens are skipped as a whole. With "updated", a call with a decoding state
    skips none. Compiled code, and a call that asks for hidden states (`ctx.taps`), compute all steps of all rows.

    Skipping single tokens needs a block that begins with an `Attention` with a plain `Softmax`. The other sublayers
    must be feed-forward layers or cross-attention. Other blocks skip at most whole rows.

    universal: the repeated block and its largest number of steps.
    halting: decides when a token stops. The appendix uses `Halting(d, last="probability", strict=True)`.
    mix: combines the states into y: `interpolate_answer` as in the Universal Transformer's appendix, or `add_weighted`
        as in Graves.
    halted: "updated" keeps transforming the state of a halted token, as in the appendix and Tensor2Tensor, and other
        tokens read this state. "copied" copies the state to later steps, as the text of section 2.2 says.
    judged: input of the halting unit: a step's "input" (the appendix) or "output" (Graves).

    Errors: ValueError for another `halted` or `judged`. Source: Dehghani et al., 2018, arXiv:1807.03819, section 2.2
    and appendix; Graves, 2016, arXiv:1603.08983.
    """

    def __init__(
        self,
        universal: Universal,
        halting: Halting,
        *,
        mix: Mix = interpolate_answer,
        halted: Halted = "updated",
        judged: Judged = "input",
    ):
        super().__init__()
        self.universal = check_part("universal", universal, Universal, "repeated layers, such as Universal(block, 4)")
        self.halting = check_part("halting", halting, Halting, "a halting unit, such as Halting(d)")
        self.d, self.mix, self.wants = universal.d, mix, universal.wants
        self.halted, self.judged = check_option("halted", halted, Halted), check_option("judged", judged, Judged)
        self.divisible, self.by_tokens = can_read_some_rows(universal.block), serves_tokens(universal.block)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        return self.universal.start(batch, length, dtype=dtype, device=device)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        block, last = self.universal.block, self.universal.steps - 1
        collected = Collected(ctx.replace(remember=False) if ctx.remember else ctx, state, rising=True)
        halt, rows = self.halting.start(ctx.pos >= 0, x), None
        s, y = x, torch.zeros_like(x)
        may_gather = self._may_gather(x, state, ctx)
        for n in range(last + 1):
            z = self.universal.add_timing(s, n, ctx.position_ids)
            weight, halted = self.halting(z, halt, n == last) if self.judged == "input" else (None, None)
            asks = self._needs_state(halt, halted, n == last, x.shape[1]) if may_gather else None
            if asks is not None and worth_gathering(block, ctx.pos, int(asks.sum())):
                y, halt = self._read_tokens(n, s, y, halt, collected, ctx)
                break
            if n and not ctx.taps and (state is None or self.halted == "copied"):
                rows = find_active_rows(self, halt.alive, rows)
            if (rows is not None and not len(rows)) or (ctx.remember and n == last):
                if state is not None:
                    collected.remember(n, block, z)
                continue
            moving = halt.alive
            out = collected.call(n, on_rows(block, rows) if self.divisible else block, z, counts=moving)
            if weight is None or halted is None:
                weight, halted = self.halting(out.y, halt, n == last)
            y, halt = self.mix(y, out.y, weight), halted
            s = torch.where(moving[..., None], out.y, s) if self.halted == "copied" else out.y
        out = collected.make_out(y)
        return out._replace(aux={**out.aux, **halt.report()}, up={})

    def _needs_state(self, halt: Halt, after: Halt | None, final: bool, length: int) -> Bool[Tensor, "*shape"]:
        """Return which tokens need a next state; a halted one only if a later step changes or reads it."""
        if self.halted == "copied" or final:
            return halt.alive
        later = (halt if after is None else after).alive.reshape(-1, length).any(1, keepdim=True)
        return halt.alive | later.expand(-1, length).reshape(halt.alive.shape)

    def _may_gather(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> bool:
        """True if a step can skip single tokens, and skipping all tokens would save time."""
        block = self.universal.block
        if (
            torch.compiler.is_compiling()
            or not (self.by_tokens and x.numel() and are_plain_tensors(x))
            or ctx.taps
            or ctx.labels
        ):
            return False
        if state is not None and (self.halted == "updated" or x.shape[1] == 1):  # one token is a row, see `on_rows`
            return False
        assert isinstance(block, ResidualBlock)
        return worth_gathering(block, ctx.pos, 0) and has_no_hooks(block)

    def _read_tokens(
        self, first: int, s: Tensor, y: Tensor, halt: Halt, collected: Collected, ctx: Context
    ) -> tuple[Float[Tensor, "B T D"], Halt]:
        """Run the steps from `first` on with only the active tokens; return outputs and halting of all tokens."""
        batch, length = ctx.pos.shape
        at = torch.arange(batch * length, device=s.device)
        going = ActiveTokens(at, s.flatten(0, 1), y.flatten(0, 1), Halt(*(leaf.flatten() for leaf in halt)))
        keys = StepKeys(self.universal, ctx, s if self.halted == "copied" else None)
        left, tokens = list[ActiveTokens](), None
        for n in range(first, self.universal.steps):
            alive, row = going.halt.alive, going.at // length
            read = alive.new_zeros(batch).index_fill(0, row[alive], True)[row]  # rows with an active token
            if collected.old is not None:
                read = torch.ones_like(read)  # a state needs the keys of all rows
            keys.change(going.at[read], going.s[read])
            stays = alive if self.halted == "copied" else read
            if not bool(stays.all()):
                left.append(select(going, (~stays).nonzero()[:, 0]))
                going = select(going, stays.nonzero()[:, 0])
            # in training all processes must take equally many steps: sharded weights are gathered in each step
            if not (len(going.at) or self.training or collected.old is not None):
                break
            going, tokens = self._step(n, going, tokens, keys, collected, ctx)
        whole = concatenate([*left, going])
        whole = select(whole, whole.at.argsort())
        return whole.y.view_as(y), Halt(*(leaf.view(batch, length) for leaf in whole.halt))

    def _step(
        self,
        n: int,
        going: ActiveTokens,
        before: SelectedTokens | None,
        keys: StepKeys,
        collected: Collected,
        ctx: Context,
    ) -> tuple[ActiveTokens, SelectedTokens]:
        """Run step n and return the active tokens; with "updated", all tokens of active rows."""
        block, final = self.universal.block, n == self.universal.steps - 1
        assert isinstance(block, ResidualBlock)
        z = keys.add_timing(n, going.at, going.s)
        weight, halt = self.halting(z, going.halt, final) if self.judged == "input" else (None, None)
        asks = self._needs_state(going.halt, halt, final, ctx.pos.shape[1])
        asking = asks.nonzero()[: 0 if ctx.remember and final else None, 0]
        tokens = tokens_at(going.at[asking], ctx.pos, collected.old is not None, before)
        make = keys.at_step(n, tokens, z)
        counts = torch.zeros_like(ctx.pos, dtype=torch.bool).flatten().index_fill(0, going.at[going.halt.alive], True)

        def read(_: Tensor, state: State | None, ctx: Context) -> Out:
            out = block.read_apart(lambda x: read_tokens(block, x, tokens, make, state, ctx), z[None, asking])
            return out._replace(aux={name: put_back(value, tokens, ctx) for name, value in out.aux.items()})

        out = collected.call(n, read, z[None], counts=counts.view_as(ctx.pos))
        s = going.s.index_copy(0, asking, out.y[0].to(going.s.dtype))
        if weight is None or halt is None:
            weight, halt = self.halting(s, going.halt, final)
        return ActiveTokens(going.at, s, self.mix(going.y, s, weight), halt), tokens


def _example(halting: Halting, timed: bool, **options: object) -> ACT:

    block = kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16))
    return ACT(Universal(block, 4, kf.Timing(16) if timed else None), halting, **options)  # type: ignore[arg-type]


REPEATED = {"*universal.block": "every step applies the same block"}
EXAMPLES = (
    Example(lambda: _example(Halting(16, epsilon=0.1, bias=-0.5, last="probability", strict=True), True), {}, REPEATED),
    Example(lambda: _example(Halting(16, epsilon=0.1, bias=-0.5), True, halted="copied"), {}, REPEATED),
    Example(
        lambda: _example(Halting(16, epsilon=0.1, bias=-0.5), False, mix=add_weighted, judged="output"), {}, REPEATED
    ),
)
