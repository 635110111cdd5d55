"""ACT: each token takes as many steps of one block as it needs, and pays for them."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.attention import Attention
from kinformer.blocks.post_norm import PostNorm
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.depth.universal import Universal, added, beneath, idle, summed
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.causal import Causal
from kinformer.positions.sinusoidal import Timing

# what steps have made of the answer so far [... D], a step's state [... D], its weight [...]: the answer after the step
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


def weighted(y: Tensor, s: Tensor, weight: Tensor) -> Tensor:
    """Graves' answer: the sum over steps of weight times state."""
    return y + weight[..., None].to(s.dtype) * s


def running(y: Tensor, s: Tensor, weight: Tensor) -> Tensor:
    """The Universal Transformer's answer: a step moves it toward the state by the weight, so late steps weigh more."""
    return torch.lerp(y, s, weight[..., None].to(s.dtype))


class Halt(NamedTuple):
    """Who still takes steps, the sum of halting probabilities, the remainder R, and the number of steps N."""

    alive: Bool[Tensor, "*shape"]
    total: Float[Tensor, "*shape"]
    remainder: Float[Tensor, "*shape"]
    steps: Float[Tensor, "*shape"]

    def report(self) -> dict[str, Tensor]:
        """What a layer tells in aux: the ponder cost N + R, of which only R has a gradient, and both by themselves."""
        return {"ponder": self.steps + self.remainder, "steps": self.steps, "remainder": self.remainder}


class Halting(nn.Module):
    """When to stop: h = sigmoid(w.s + b) at each step; a token stops once the sum of its h reaches 1 - epsilon.

    Its last step weighs the remainder R = 1 - the sum before, every other step h. `bias` is b at first (large stops
    early; None is no b). `last` says what the last possible step of a token weighs that has not stopped: "remainder",
    so that all weights add up to 1 (Graves), or "probability", its h and no remainder (Tensor2Tensor).

    Sums are kept in float32 or better. Errors: ValueError for an epsilon outside [0, 1). Source: Graves, 2016,
    arXiv:1603.08983, equations 5 to 8.
    """

    def __init__(
        self,
        d: int,
        *,
        epsilon: float = 0.01,
        bias: float | None = 1.0,
        last: Literal["remainder", "probability"] = "remainder",
    ):
        super().__init__()
        if not 0 <= epsilon < 1:
            raise ValueError(
                f"epsilon is what may be missing from a sum of 1: it must be in [0, 1), and {epsilon} came"
            )
        self.epsilon, self.last = epsilon, last
        self.unit = nn.Linear(d, 1, bias=bias is not None)
        if bias is not None:
            nn.init.constant_(self.unit.bias, bias)

    def start(self, real: Bool[Tensor, "*shape"], like: Tensor) -> Halt:
        """Before the first step: who is real takes it."""
        zero = torch.zeros(real.shape, dtype=torch.promote_types(like.dtype, torch.float32), device=real.device)
        return Halt(real, zero, zero, zero)

    def forward(self, s: Float[Tensor, "*shape D"], halt: Halt, final: bool) -> tuple[Float[Tensor, "*shape"], Halt]:
        """The weights of a step, 0 for who has stopped, and what holds after it; `final` where no step can follow."""
        h = self.unit(s)[..., 0].to(halt.total.dtype).sigmoid()
        stop = halt.alive & (halt.total + h >= 1 - self.epsilon)
        if final and self.last == "remainder":
            stop = halt.alive
        on = halt.alive & ~stop
        rest = torch.where(stop, 1 - halt.total, 0.0)
        kept = torch.where(on, h, 0.0)
        return kept + rest, Halt(on, halt.total + kept, halt.remainder + rest, halt.steps + halt.alive)


class ACT(Layer):
    """Adaptive computation over depth: a token takes steps of a `Universal` until its halting unit says stop.

    Its y is the `mix` of its states: `running` or `weighted`. It reports `ponder`, `steps` and `remainder` per token;
    weigh the first in the loss, or every token takes all steps. Halted tokens stay visible as keys: with `halted`
    "copied" their state is copied to later steps, as the paper says, with "updated" they go on being transformed, as
    in Tensor2Tensor. `judged` says what halting is read from: a step's "input" (both of these) or "output" (Graves).

    All steps are computed in training and when compiled. In eager eval mode steps that no token takes are not: with
    "copied" their states are filled by `remember`, with "updated" a call with a state cannot leave out any.

    Source: Dehghani et al., 2018, arXiv:1807.03819, section 2.2 and appendix; Graves, 2016, arXiv:1603.08983.
    """

    def __init__(
        self,
        universal: Universal,
        halting: Halting,
        *,
        mix: Mix = running,
        halted: Literal["copied", "updated"] = "copied",
        judged: Literal["input", "output"] = "input",
    ):
        super().__init__()
        self.d, self.universal, self.halting, self.mix = universal.d, universal, halting, mix
        self.halted, self.judged = halted, judged

    def start(
        self, batch: int, length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> State:
        return self.universal.start(batch, length, dtype=dtype, device=device)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        block, steps = self.universal.block, self.universal.steps
        halt = self.halting.start(ctx.pos >= 0, x)
        s, y = x, torch.zeros_like(x)
        states: list[State] = []
        up: dict[str, Tensor] = {}
        aux: dict[str, Tensor] = {}
        stats: dict[str, Tensor] = {}
        for n in range(steps):
            z, seen = self.universal.placed(s, n, ctx), beneath(ctx, up)
            if n and idle(self, halt.alive) and (state is None or self.halted == "copied"):
                states.append(None if state is None else block.remember(z, state[n], seen))
                continue
            out = block(z, None if state is None else state[n], seen)
            moving = halt.alive
            weight, halt = self.halting(z if self.judged == "input" else out.y, halt, n == steps - 1)
            y = self.mix(y, out.y, weight)
            s = torch.where(moving[..., None], out.y, s) if self.halted == "copied" else out.y
            up = {**up, **out.up}
            states.append(out.state)
            aux, stats = summed(aux, out.aux, moving), added(stats, out.stats)
        return Out(y, None if state is None else tuple(states), {**aux, **halt.report()}, {}, stats)


def _example(last: Literal["remainder", "probability"], timing: Timing | None) -> tuple[Universal, Halting]:
    block = PostNorm(Attention(16, 2, Softmax(Causal())), MLP(16))
    return Universal(block, 4, timing), Halting(16, epsilon=0.1, bias=-0.5, last=last)


EXAMPLES = (
    lambda: ACT(*_example("remainder", Timing(16))),
    lambda: ACT(*_example("remainder", None), mix=weighted, judged="output"),
    lambda: ACT(*_example("probability", Timing(16)), halted="updated"),
)
COMPILES = True
