"""The laws themselves: each one catches parts that are broken on purpose, and says what is wrong."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.block import Block
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.loss import Penalty
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.read import Read
from kinformer.core.state import KV
from kinformer.feedforward.mlp import MLP
from kinformer.laws import (
    any_length,
    batch_mates,
    chunk,
    compiles,
    dtype,
    empty_rows,
    learns,
    mutation,
    padding,
    peek,
    rows,
    save_load,
    targets,
)
from kinformer.laws.broken import Broken
from kinformer.laws.subject import Subject
from kinformer.laws.subjects import subjects
from kinformer.mechanisms.softmax import Softmax
from kinformer.members.gpt import gpt
from kinformer.models.lm import LM
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full


class Toy(Layer):
    """Each token adds a matrix's image of itself; a subclass spoils it."""

    def __init__(self) -> None:
        super().__init__()
        self.d = 16
        self.inside = nn.Linear(16, 16)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x + self.inside(x).tanh(), state)


class Count(NamedTuple):
    """The sum and number of tokens so far."""

    total: Tensor
    count: Tensor


class Mean(Toy):
    """The mean of all tokens up to each: a right layer with a state, which the subclasses below spoil."""

    def start(self, batch: int, length: int, *, dtype: Any = None, device: Any = None) -> State:
        return Count(torch.zeros(batch, 16, dtype=dtype), torch.zeros(batch, dtype=dtype))

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        real = (ctx.pos >= 0).to(x.dtype)
        before = self.start(len(x), 0, dtype=x.dtype) if state is None else state
        total = before.total[:, None] + (self.inside(x) * real[..., None]).cumsum(1)
        count = before.count[:, None] + real.cumsum(1)
        last = Count(total[:, -1], count[:, -1]) if x.shape[1] else before
        return Out(total / count.clamp_min(1)[..., None], None if state is None else self.kept(last, before))

    def kept(self, last: Count, before: Count) -> Count:
        return last


class Forgets(Mean):
    """Its state loses a little."""

    def kept(self, last: Count, before: Count) -> Count:
        return Count(last.total * 0.99, last.count)


class NoCount(Mean):
    """Its outputs are right, its last state is not what one call leaves."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        out = super().forward(x, state, ctx)
        return out if state is None else out._replace(state=Marked(*out.state[:2], state.calls + 1))

    def start(self, batch: int, length: int, *, dtype: Any = None, device: Any = None) -> State:
        return Marked(*super().start(batch, length, dtype=dtype), torch.zeros(batch))


class Marked(NamedTuple):
    """A count that also counts calls."""

    total: Tensor
    count: Tensor
    calls: Tensor


class Grows(Mean):
    """Its start makes too little room."""

    def start(self, batch: int, length: int, *, dtype: Any = None, device: Any = None) -> State:
        return Count(torch.zeros(batch, 1, dtype=dtype), torch.zeros(batch, dtype=dtype))


class Pays(Mean):
    """It makes a state where none was asked for."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return super().forward(x, self.start(len(x), 0, dtype=x.dtype) if state is None else state, ctx)


class Unhelpful(Toy):
    """It has no state and does not say what to do."""

    def start(self, batch: int, length: int, *, dtype: Any = None, device: Any = None) -> State:
        raise NoState("no state")


class ChunkAux(Toy):
    """What it reports depends on where it was cut."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x, state, {"size": torch.arange(x.shape[1]).to(x).expand(len(x), -1)})


class Peeks(Toy):
    """It adds the next token."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x + torch.cat([x[:, 1:], x[:, :1] * 0], 1), state)


class ChoosesByFuture(Toy):
    """A hard choice by what comes later: its Jacobian is zero above the diagonal."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        later = torch.where((ctx.pos >= 0)[..., None], x, 0.0).flip(1).cumsum(1).flip(1)
        return Out(torch.where(later[..., :1] > 0, x, -x), state)


class PeeksInAux(Toy):
    """Its output is right; what it reports is not."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x, state, {"next": torch.where(ctx.pos >= 0, x[..., 0], 0.0).flip(1).cumsum(1).flip(1)})


class Constant(Toy):
    """It reads nothing."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(self.inside(torch.ones_like(x)) + 0 * x, state)


class Blind(Mean):
    """It has a state and never looks back."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(self.inside(x), state)


class Leaks(Toy):
    """Padding counts in its mean."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x + self.inside(x).mean(1, keepdim=True), state)


class LeaksGradient(Toy):
    """Padding has no effect on values but trains the weights."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        extra = self.inside(x).sum(1, keepdim=True)
        return Out(x + self.inside(x) + extra - extra.detach(), state)


class ByColumn(Toy):
    """It counts columns, not positions."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x + torch.arange(x.shape[1])[:, None].to(x), state)


class BatchMean(Toy):
    """It subtracts the mean of the batch."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x - x.mean(0, keepdim=True), state)


class BatchMeanInTraining(Toy):
    """It subtracts the mean of the batch in train mode."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x - x.mean(0, keepdim=True) if self.training else x, state)


class Coarse(Toy):
    """It loses digits where they are few."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out((x + 100) - 100, state)


class Overflows(Toy):
    """Its numbers leave float16."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x * 1e5 / 1e5, state)


class Widens(Toy):
    """It answers in another precision."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x.float() if x.dtype != torch.float64 else x, state)


class Unsaved(Toy):
    """A random draw that its state_dict does not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("draw", torch.randn(16), persistent=False)

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x * self.draw, state)


class Even(Toy):
    """It wants an even number of tokens."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x.unflatten(1, (-1, 2)).flip(2).flatten(1, 2), state)


class LastToken(Toy):
    """It needs a token."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x + 0 * x[:, [-1]], state)


class Counts(Toy):
    """Its forward changes a buffer, in train mode alone."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        if self.training:
            self.calls += 1
        return Out(self.inside(x), state)


class Hoards(Toy):
    """Its forward leaves a tensor on the module."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        self.last = x.detach()
        return Out(self.inside(x), state)


class InPlace(Toy):
    """It writes to its input."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        with torch.no_grad():
            x.mul_(2)
        return Out(self.inside(x), state)


class WritesBelow(Toy):
    """It writes to what came from below."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        ctx.below["seen"] = x  # type: ignore[index]
        return Out(self.inside(x), state)


class WritesAux(Block):
    """It adds to the mapping that its sublayer returned."""

    def __init__(self) -> None:
        super().__init__([Reports()], [], [])

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        out = self.layers[0](x, state, ctx)
        out.aux["more"] = x[..., 0]
        return out


class Reports(Toy):
    """It reports a number per token."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(self.inside(x), state, {"size": x[..., 0]})


class StatsInEval(Toy):
    """It counts in eval mode too."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(self.inside(x), state, stats={"seen": x.sum()})


class AttachedStats(Toy):
    """Its counts keep the graph alive."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        y = self.inside(x)
        return Out(y, state, stats={"seen": y.sum()} if self.training else {})


class Sticky(Mean):
    """A reset leaves its count, which counts down and starts at 100."""

    def start(self, batch: int, length: int, *, dtype: Any = None, device: Any = None) -> State:
        return Count(torch.zeros(batch, 16, dtype=dtype), torch.full((batch,), 100.0, dtype=dtype))


class Sideways(Mean):
    """One count for all rows."""

    def start(self, batch: int, length: int, *, dtype: Any = None, device: Any = None) -> State:
        return Count(torch.zeros(batch, 16, dtype=dtype), torch.zeros(1, dtype=dtype))


class Shares(Mean):
    """Every state it makes stands on the module too, so a fork does not free it."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        self.__dict__.setdefault("seen", torch.zeros(()))
        out = super().forward(x, state, ctx)
        self.__dict__["seen"] = self.__dict__["seen"] + 1
        return out._replace(y=out.y + self.__dict__["seen"])


class Naive(Mechanism):
    """softmax over allowed scores without care for queries that have none."""

    def start(self, batch: int, length: int, key_heads: int, k_dim: int, v_dim: int, **kind: Any) -> State:
        raise NoState("no state; use Softmax")

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, k_pos: Tensor, state: State | None, ctx: Context, sides: Any
    ) -> Out:
        mask = torch.where(k_pos < 0, -torch.inf, 0.0)[:, None, None]
        return Out(Read(self.weigh(q @ k.transpose(-1, -2) + mask) @ v, None))

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class Uniform(Naive):
    """Very negative instead of -inf: a query without keys reads the mean of what it may not read."""

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.clamp_min(-1e9).softmax(-1)


class NaNGradient(Naive):
    """Right values by nan_to_num; the gradient of a row without keys is NaN."""

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).nan_to_num(0.0)


class Overwrites(Softmax):
    """A cache that writes at pos mod its size, whatever is there."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, k_pos: Tensor, state: Any, ctx: Context, sides: Any) -> Out:
        out = super().forward(q, k, v, k_pos, state, ctx, sides)
        return (
            out
            if state is None
            else out._replace(
                state=KV(
                    *(
                        leaf[:, :, -5:] if leaf.dim() == 4 else leaf[:, -5:] if leaf.dim() == 2 else leaf
                        for leaf in out.state
                    )
                )
            )
        )


def toy(make: Callable[[], Any], **more: Any) -> Subject:
    return Subject("toy", make, **more)


def mechanism(make: Callable[[], Any]) -> Subject:
    return Subject("toy", lambda: Attention(16, 2, make()))


def unmasked() -> LM:
    """A language model that has no state, because it reads what it should predict."""
    return LM(8, 16, PreNorm(Attention(16, 2, Softmax(Full()))))


CAUGHT = [
    (chunk, toy(Forgets), "cut into chunks"),
    (chunk, toy(NoCount), "state calls"),
    (chunk, toy(Pays), "pay for a cache"),
    (chunk, toy(Unhelpful), "not what to do instead"),
    (chunk, toy(Grows), "made too little room"),
    (chunk, toy(ChunkAux), "aux 'size'"),
    (chunk, mechanism(lambda: Overwrites(Causal())), "cut into chunks"),
    (peek, toy(Peeks), "start() says that it can decode"),
    (peek, toy(ChoosesByFuture), "changes it"),
    (peek, toy(PeeksInAux), "aux 'next'"),
    (peek, Subject("toy", unmasked, vocab=8), "it learns to say what comes next"),
    (peek, toy(Constant), "depends on none"),
    (peek, toy(Blind), "depends on an earlier one"),
    (peek, Subject("toy", lambda: Attention(16, 2, Softmax(Causal() & Band(2))), pattern=Causal()), "does not read"),
    (peek, Subject("toy", lambda: Attention(16, 2, Softmax(Full())), pattern=Band(2)), "does not allow"),
    (padding, toy(Leaks), "padding"),
    (padding, toy(LeaksGradient), "padding"),
    (padding, toy(ByColumn), "padding left"),
    (batch_mates, toy(BatchMean), "by themselves"),
    (batch_mates, toy(BatchMeanInTraining), "by themselves"),
    (dtype, toy(Coarse), "relative error"),
    (dtype, toy(Overflows), "not finite in float16"),
    (dtype, toy(Widens), "comes out"),
    (save_load, toy(Unsaved), "saved and loaded"),
    (any_length, toy(Even), "fails at 1 tokens"),
    (any_length, toy(LastToken), "a row of no tokens"),
    (mutation, toy(Counts), "train mode changes calls"),
    (mutation, toy(Hoards), "changes .last"),
    (mutation, toy(InPlace), "inputs"),
    (mutation, toy(WritesBelow), "ctx.below"),
    (mutation, toy(WritesAux), "mapping aux"),
    (mutation, toy(StatsInEval), "none is given in eval"),
    (mutation, toy(AttachedStats), "detach them"),
    (rows, toy(Sticky), "a reset row"),
    (rows, toy(Sideways), "batch first"),
    (rows, toy(Shares), "go on otherwise"),
    (empty_rows, mechanism(Naive), "Naive"),
    (empty_rows, mechanism(Uniform), "instead of 0"),
    (empty_rows, mechanism(NaNGradient), "the gradient of"),
]


@pytest.mark.parametrize(
    ("law", "subject", "says"),
    CAUGHT,
    ids=[
        f"{law.__name__.rpartition('.')[2]}-{s.build().__class__.__name__}-{n}" for n, (law, s, _) in enumerate(CAUGHT)
    ],
)
def test_a_law_catches(law: Any, subject: Subject, says: str) -> None:
    with pytest.raises(Broken) as caught:
        law.check(subject)
    assert says in str(caught.value)


def test_the_smallest_example_is_told() -> None:
    with pytest.raises(Broken, match=r"chunks of \[1, 1\], 2 tokens"):
        chunk.check(toy(Forgets))


@pytest.mark.parametrize("law", [chunk, peek, padding, batch_mates, save_load, any_length, mutation, rows])
@pytest.mark.parametrize("make", [Toy, Mean])
def test_a_right_layer_keeps_the_law(law: Any, make: Any) -> None:
    law.check(toy(make))


class Reaching(MLP):
    """It reports two sizes, one of which moves nothing."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return (
            super()
            .forward(x, state, ctx)
            ._replace(aux={"weight": self.up.weight.square().sum(), "still": x.new_ones(())})
        )


@pytest.mark.parametrize(
    ("penalty", "says"),
    [
        (Penalty("weight", lambda name: name.startswith("up.")), "declares ['up.bias'] without moving"),
        (Penalty("weight", lambda name: name == "down.weight"), "moves ['up.weight'] without declaring"),
        (Penalty("weight", lambda name: False), "declares none"),
        (Penalty("still", lambda name: True), "depends on no parameter"),
    ],
)
def test_targets_are_exact(penalty: Penalty, says: str) -> None:
    subject = toy(lambda: Reaching(16))
    assert targets.reports(subject, penalty) and not targets.reports(toy(Toy), penalty)
    with pytest.raises(Broken) as caught:
        targets.check(subject, penalty)
    assert says in str(caught.value)


def test_targets_that_are_right() -> None:
    targets.check(toy(lambda: Reaching(16)), Penalty("weight", lambda name: name == "up.weight"))


def member_subject() -> Subject:
    return subjects("members", "members.gpt.0", lambda: gpt(d=16, depth=1, heads=2, length=32, vocab=8))[0]


def test_a_member_that_cannot_learn_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learns, "STEPS", 20)
    with pytest.raises(Broken, match="copies from 3 back with accuracy"):
        learns.check(member_subject())


def test_a_member_that_copies_without_reading_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = learns.copy_at_distance
    monkeypatch.setattr(learns, "copy_at_distance", lambda *a: (tokens := honest(*a)[0], tokens))
    with pytest.raises(Broken, match="while each token reads itself alone"):
        learns.check(member_subject())


def test_what_does_not_compile_is_caught() -> None:
    class Asks(Toy):
        def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
            return Out(x if float(x.detach().sum()) > 0 else self.inside(x), state)

    with pytest.raises(Broken, match="does not compile as one graph"):
        compiles.check(toy(Asks))


def test_save_load_sees_a_tie_that_came_apart() -> None:
    class Tied(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.outside = nn.Linear(16, 16)
            if not seeds:
                self.outside.weight = self.inside.weight
            seeds.append(1)

        def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
            return Out(self.outside(self.inside(x)), state)

    seeds: list[int] = []
    with pytest.raises(Broken, match="shared by"):
        save_load.check(toy(Tied))
