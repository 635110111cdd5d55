"""Layers and mechanisms that are broken on purpose, each in one way, for the laws to catch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, PerToken, State
from kinformer.core.loss import Loss, Penalty
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.model import EvaluationSums
from kinformer.core.pair_map import PairMap
from kinformer.core.pattern import Index, Pattern, pair_mask
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.segment import Segment
from kinformer.core.request import Request
from kinformer.core.residual_block import ResidualBlock
from kinformer.models.lm import LM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNormJoin
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.split import SplitHeads
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV


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

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        kind = {"dtype": dtype or self.inside.weight.dtype}
        return Count(torch.zeros(batch, 16, **kind), torch.zeros(batch, **kind))

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        real = (ctx.pos >= 0).to(x.dtype)
        before = Mean.start(self, len(x), 0, dtype=x.dtype) if state is None else state
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

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        state = super().start(batch, length, dtype=dtype)
        return Marked(*state, torch.zeros_like(state.count))


class Marked(NamedTuple):
    """A count that also counts calls."""

    total: Tensor
    count: Tensor
    calls: Tensor


class Grows(Mean):
    """Its start makes too little room."""

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        state = super().start(batch, length, dtype=dtype)
        return state._replace(total=state.total[:, :1])


class Single(Mean):
    """Its state is single precision, whatever the layer is."""

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        return super().start(batch, length, dtype=dtype or torch.float32)


class Ends(Mean):
    """It holds as many tokens as it was told of, and no more."""

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        state = super().start(batch, length, dtype=dtype)
        return Marked(*state, torch.full_like(state.count, length))

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        if state is not None and bool((state.count + x.shape[1] > state.calls).any()):
            raise IndexError("the row is longer than start was told")
        out = super().forward(x, state, ctx)
        return out if state is None else out._replace(state=Marked(*out.state[:2], state.calls))


class Pays(Mean):
    """It makes a state where none was asked for."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return super().forward(x, self.start(len(x), 0, dtype=x.dtype) if state is None else state, ctx)


class Unhelpful(Toy):
    """It has no state and does not say what to do."""

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        raise NoState("no state, because it has none")


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


class Lowered(Toy):
    """A product of large numbers, of which only a small difference counts."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x + self.inside(x + 100) - self.inside(torch.full_like(x, 100)), state)


class StopsLowered(Toy):
    """What a lowered product made teaches nothing."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        y = self.inside(x)
        return Out(x + (y.detach() if y.dtype == torch.bfloat16 else y), state)


class ForgetsLowered(Mean):
    """Its state loses a little where products are lowered."""

    def kept(self, last: Count, before: Count) -> Count:
        return last._replace(total=last.total * (0.9 if torch.is_autocast_enabled("cpu") else 1))


class KeepsLittle(Toy):
    """What it keeps is near 1, and only the distance from 1 counts; where products are lowered it is rounded."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        keep = 1 - self.inside.bias.sigmoid() / 1000
        return Out(x * (1 - (keep.bfloat16().to(x.dtype) if torch.is_autocast_enabled("cpu") else keep)), state)


class ReportsLowered(Toy):
    """A report is made of a lowered product."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        size = self.inside(x + 100).mean() - self.inside(torch.full_like(x, 100)).mean()
        return Out(x, state, {"size": size})


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


class WritesAux(ResidualBlock):
    """It adds to the mapping that its sublayer returned."""

    def __init__(self) -> None:
        super().__init__([Reports()], [PreNormJoin()], [nn.Identity()])

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

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        state = super().start(batch, length, dtype=dtype)
        return state._replace(count=state.count + 100)


class Sideways(Mean):
    """One count for all rows."""

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        state = super().start(batch, length, dtype=dtype)
        return state._replace(count=state.count[:1])


class Shares(Mean):
    """Every state it makes stands on the module too, so a fork does not free it."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        self.__dict__.setdefault("seen", torch.zeros(()))
        out = super().forward(x, state, ctx)
        self.__dict__["seen"] = self.__dict__["seen"] + 1
        return out._replace(y=out.y + self.__dict__["seen"])


class Shared(NamedTuple):
    """A `Count` that gives its own tensors to a branch, as a cache does."""

    total: Tensor
    count: Tensor

    def branch(self) -> "Shared":
        return self


class WritesWhatABranchShares(Mean):
    """It writes to numbers that a branch of the state shares."""

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        return Shared(*super().start(batch, length, dtype=dtype))

    def kept(self, last: Count, before: Count) -> Any:
        return Shared(before.total.copy_(last.total), last.count)


class CutsTheGraph(Mean):
    """It detaches its state, so that where a row is cut decides what is trained."""

    def kept(self, last: Count, before: Count) -> Count:
        return Count(last.total.detach(), last.count)


class Naive(Mechanism):
    """softmax over allowed scores without care for queries that have none."""

    def start(self, spec: StateSpec, sizes: HeadSizes) -> State:
        raise NoState("no state; use Softmax")

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out:
        assert keys is not None
        mask = torch.where(keys.pos < 0, -torch.inf, 0.0)[:, :, None]
        return Out(AttentionOutput(self.weigh(queries.q @ keys.k.mT + mask) @ keys.v, None))

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
    """Its cache keeps five slots, whatever is in them."""

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out:
        out = super().forward(queries, keys, state, ctx)
        if state is None:
            return out
        kv = out.state
        return out._replace(state=kv._replace(k=kv.k[:, :, -5:], v=kv.v[:, :, -5:], pos=kv.pos[:, -5:], labels={}))


class OwnMass(Softmax):
    """Right values; its lse is that of the keys of the call alone, without those that it kept."""

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out:
        out = super().forward(queries, keys, state, ctx)
        return out._replace(y=out.y._replace(lse=super().forward(queries, keys, None, ctx).y.lse))


class MassAtOnce(Softmax):
    """Right values; a step gives no lse."""

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out:
        out = super().forward(queries, keys, state, ctx)
        return out._replace(y=out.y._replace(lse=out.y.lse if queries.q.shape[2] > 1 else None))


class Temperatures(Softmax):
    """A temperature for each of two heads; fewer heads take the first ones."""

    def __init__(self) -> None:
        super().__init__(Causal())
        self.rate = nn.Parameter(torch.ones(2))

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out:
        heads = queries.q.shape[1]
        if heads > 2:
            raise ValueError(f"two temperatures for {heads} heads; use Softmax")
        return super().forward(queries._replace(q=queries.q * self.rate[:heads, None, None]), keys, state, ctx)


class Broadcasts(Temperatures):
    """Nobody asks how many heads there are."""

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out:
        return Softmax.forward(self, queries._replace(q=queries.q * self.rate[:, None, None]), keys, state, ctx)


class IgnoresGroups(Softmax):
    """Head h reads key head h mod G, where it should read h // (H / G)."""

    def read(self, request: Request) -> Out[AttentionOutput]:
        keys, each = request.keys, request.queries.q.shape[1] // request.keys.k.shape[1]
        return super().read(
            request.replace(keys=keys._replace(k=keys.k.repeat(1, each, 1, 1), v=keys.v.repeat(1, each, 1, 1)))
        )


class ByTheQueries(Naive):
    """Each query reads the keys of its own block of three; which key is in which it tells by the queries' positions."""

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out:
        assert keys is not None
        if keys.k.shape[2] != queries.q.shape[2]:
            raise ValueError("as many keys as queries are wanted")
        pos = queries.pos[:, 0]
        inside = (pos[:, :, None] // 3 == pos[:, None, :] // 3) & (pos >= 0)[:, None, :] & (pos >= 0)[:, :, None]
        each = queries.q.shape[1] // keys.k.shape[1]
        k, v = keys.k.repeat_interleave(each, 1), keys.v.repeat_interleave(each, 1)
        scores = (queries.q @ k.mT).masked_fill(~inside[:, None], -torch.inf)
        has_any = inside.any(-1)[:, None, :, None]
        return Out(AttentionOutput(torch.where(has_any, torch.where(has_any, scores, 0.0).softmax(-1), 0.0) @ v, None))


class PicksByAll(Naive):
    """As ProbSparse: queries that stand out over all keys attend, the others read the mean of what they may read.

    Its pattern reaches 0 ahead, it has no state, and the choice, a hard one, looks at later keys.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pattern = Causal()

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out:
        assert keys is not None
        if ctx.only is not None or ctx.also is not None or not keys.own:
            raise ValueError("reads its own row, without ctx.only and ctx.also; use Softmax")
        each = queries.q.shape[1] // keys.k.shape[1]
        k, v = keys.k.repeat_interleave(each, 1), keys.v.repeat_interleave(each, 1)
        scores, real = queries.q @ k.mT, (keys.pos >= 0)[:, :, None]
        may = pair_mask(self.pattern, queries.pos, keys.pos, range(queries.q.shape[1]))
        stands_out = scores.masked_fill(~real, -torch.inf).amax(-1) > 2
        has_any = may.any(-1, keepdim=True)
        chosen = torch.where(stands_out[..., None], scores, 0.0).masked_fill(~may, -torch.inf)
        return Out(AttentionOutput(torch.where(has_any, torch.where(has_any, chosen, 0.0).softmax(-1), 0.0) @ v, None))


class FlowsOn(Softmax):
    """It says that nothing flows out of a segment of three, and detaches nothing."""

    gradient_stops = ~Segment(3, 0)


class ReadsUnsaid(Toy):
    """It reads something from below that it does not name."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        hint = ctx.below.get("hint")
        return Out(self.inside(x) + (hint.value if isinstance(hint, PerToken) else 0), state)


class SendsUnsaid(Toy):
    """It sends something up that it does not name."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(self.inside(x), state, up={"hint": PerToken(x)})


class Hints(SendsUnsaid):
    """It says what it sends."""

    sends = frozenset({"hint"})


class Reaching(MLP):
    """It reports two sizes, one of which moves nothing."""

    declared: dict[str, Penalty]

    def penalties(self) -> dict[str, Penalty]:
        return self.declared

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        out = super().forward(x, state, ctx)
        aux = {"weight": self.up.weight.square().sum(), "still": x.new_ones(()), "hidden": self.up(x).mean(-1)}
        return out._replace(aux=aux)


class Sized(MLP):
    """A right layer that reports the size of a matrix."""

    def penalties(self) -> dict[str, Penalty]:
        return {"size": Penalty((self.up.weight,))}

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return super().forward(x, state, ctx)._replace(aux={"size": self.up.weight.square().sum()})


# What comes of a step: gradients, chance, precision, training -------------------------------------------------------


class Detached(Toy):
    """Its matrix has no gradient, though values depend on it."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x + F.linear(x, self.inside.weight.detach(), self.inside.bias), state)


class Drops(Toy):
    """A right layer that drops, which those below spoil."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = 0.0

    def dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x + self.dropped(self.inside(x)), state)


class DropsAlways(Drops):
    """It drops in eval mode too."""

    def dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout)


class DropsNever(Drops):
    """It forgets its dropout."""

    def dropped(self, x: Tensor) -> Tensor:
        return x


class DropsOthers(Drops):
    """Computed again in the backward, it drops other numbers than the forward did."""

    def dropped(self, x: Tensor) -> Tensor:
        inner = super().dropped
        return checkpoint(inner, x, use_reentrant=False, preserve_rng_state=False)


class Blurred(Toy):
    """It knows positions in its own precision, which cannot tell 1000 from 1001."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x + ctx.pos[..., None].to(x.dtype).sin(), state)


class CountsSteps(Toy):
    """It changes after each second step, and does not save how many there were."""

    steps = 0

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        self.steps += 1
        if self.steps % 2 == 0:
            self.inside.weight.data.mul_(0.5)


class MeanStats(Toy):
    """Its stats are means over the batch."""

    def stats(self, x: Tensor, ctx: Context) -> Tensor:
        return x.detach().mean(0).sum()

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(self.inside(x), state, stats={"seen": self.stats(x, ctx)} if self.training else {})


class PaddedStats(MeanStats):
    """Its stats count columns, padding too."""

    def stats(self, x: Tensor, ctx: Context) -> Tensor:
        return x.new_tensor(x.shape[1] * len(x))


# What a call is asked for beside its values --------------------------------------------------------------------------


class Oblivious(Softmax):
    """A call that only remembers remembers nothing."""

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out:
        out = super().forward(queries, keys, None if ctx.remember else state, ctx)
        return out._replace(state=state) if ctx.remember else out


class ForgetsAtWork(Mean):
    """Where nothing learns, as in decoding, it keeps what it had."""

    def kept(self, last: Count, before: Count) -> Count:
        return last if torch.is_grad_enabled() else before


class Unlimited(Softmax):
    """It reads what a batch shuts out."""

    def batch_pattern(self, ctx: Context) -> Pattern:
        return self.pattern


class CountsFromZero(SplitHeads):
    """Each of its parts numbers its heads from 0."""

    def _queries_of(self, queries: Queries, n: int) -> Queries:
        return super()._queries_of(queries, n)._replace(head=0)


class TapsInputs(Stack):
    """Asked for what a sublayer gave, it hands back what that got."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        out = super().forward(x, state, ctx)
        return out._replace(taps={name: out.taps[f"{name.partition('.')[0]}.input"] for name in out.taps})


class TakesAnothers(Toy):
    """It looks up what it has found out under a name that others use."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        half = ctx.memo.get(lambda: ctx.pos / 2, "by head", ctx.pos)
        return Out(x + half.flatten(1)[..., None].to(x), state)


@dataclass(frozen=True, eq=False, repr=False)
class Ending(Pattern):
    """A table that fails beyond its end."""

    ids: Tensor

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return self.ids[b, q] == self.ids[b, k]


@dataclass(frozen=True)
class Loose(Band):
    """A window that says true things of itself, one of them looser than need be."""

    of: str = ""

    def period(self) -> int | None:
        return 2 if self.of == "period" else super().period()

    def reach(self) -> tuple[float, float]:
        return self.left, self.ahead + (self.of == "reach")

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return k >= now - self.left - int(self.of == "live")

    def capacity(self, length: int) -> int:
        return min(length, super().capacity(length) + (self.of == "capacity"))

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        some_read, every = super().cover(q_lo, q_hi, k_lo, k_hi)
        if self.of == "some":
            some_read = super().cover(q_lo - 1, q_hi, k_lo, k_hi + 1)[0]
        return some_read, every & (q_lo != q_hi) if self.of == "every" else every


# Models --------------------------------------------------------------------------------------------------------------


class Judges(LM):
    """It measures each piece of a text as if it were the first."""

    def judge(self, batch: Tensor, state: State | None = None) -> EvaluationSums:
        return super().judge(batch, None)._replace(state=state)


class ForgetsItsEncoder(Seq2Seq):
    """What its encoder reports enters no loss."""

    def _with_source(self, *arguments: Any) -> tuple[Out, Context]:
        encoded, ctx = super()._with_source(*arguments)
        return encoded._replace(aux={}), ctx


class FirstForLast(LM):
    """Asked for the last logits, it gives the first."""

    def logits(
        self, tokens: Tensor, state: State | None = None, ctx: Context | None = None, *, last: bool = False
    ) -> Out:
        out = super().logits(tokens, state, ctx)
        return out._replace(y=out.y[:, :1]) if last else out


class CountsRows(LM):
    """Its loss is said to be the mean over rows."""

    def forward(self, batch: Tensor, state: State | None = None, progress: float = 0.0) -> Loss:
        return super().forward(batch, state)._replace(count=torch.tensor(len(batch) + 1))


class SumsRows(LM):
    """Its loss grows with the batch."""

    def forward(self, batch: Tensor, state: State | None = None, progress: float = 0.0) -> Loss:
        out = super().forward(batch, state)
        return out._replace(total=out.total * len(batch))


class CountsPadding(LM):
    """Its loss is over all columns."""

    def forward(self, batch: Tensor, state: State | None = None, progress: float = 0.0) -> Loss:
        out = super().forward(batch, state)
        return out._replace(total=out.total * out.count / (batch.numel() - len(batch)))


class LearnsLowered(LM):
    """A loss that lowered products make larger, in training alone."""

    def forward(self, batch: Any, state: State | None = None, progress: float = 0.0) -> Loss:
        out = super().forward(batch, state, progress)
        lowered = self.training and torch.is_autocast_enabled("cpu")
        return out._replace(total=out.total * (1.1 if lowered else 1.0))


class OneProjection(Stack):
    """Its two layers of attention have one projection."""

    def __init__(self) -> None:
        projection = QKV(16, 2)
        super().__init__([Attention(projection, Softmax(Causal())) for _ in range(2)])


class OneMemory(Stack):
    """The parameters of its two layers are two objects over the same numbers."""

    def __init__(self) -> None:
        lower, upper = Toy(), Toy()
        upper.inside.weight = nn.Parameter(lower.inside.weight.data)
        super().__init__([lower, upper])


class Again(Toy):
    """It applies one layer twice to each token, and another one to halves of the row."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = Toy(), Toy()

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        half = x.shape[1] // 2
        y = self.inner(self.inner(x, None, ctx).y, None, ctx).y
        pieces = ((0, half), (half, x.shape[1]))
        return Out(torch.cat([self.outer(y[:, lo:hi], None, ctx.columns(lo, hi)).y for lo, hi in pieces], 1), state)


class RoundsApart(Explicit):
    """Each query reads the key that fits it best; of equal keys the one whose product is rounded up."""

    def __init__(self, pattern: Pattern) -> None:
        super().__init__(pattern, before=BestAlone())


class BestAlone(PairMap):
    """Scores below the highest become -inf, also where rounding alone tells them apart."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x if mask is None else x.masked_fill(~mask, -torch.inf)
        return x.masked_fill(x < x.detach().amax(-1, keepdim=True), -torch.inf)


class ChoosesAcross(Toy):
    """Each token keeps to itself, and the first token of the row chooses its sign."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        first = torch.where(ctx.pos == 0, x[..., 0], 0.0).sum(1)[:, None, None]
        return Out(torch.where(first > 0, self.inside(x), -self.inside(x)), state)


class PeeksInTraining(Mean):
    """It adds the next token, in train mode alone."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        out = super().forward(x, state, ctx)
        return out._replace(y=out.y + torch.cat([x[:, 1:], x[:, :1] * 0], 1)) if self.training else out


class SumsLowered(Toy):
    """A mean of all tokens so far, whose sum is kept as precise as a token: in bfloat16 it stops growing."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        y, total, means = self.inside(x).sigmoid(), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            total = total + y[:, t] * (ctx.pos[:, t, None] >= 0)
            means.append(total / (ctx.pos[:, t, None] + 1).clamp_min(1))
        return Out(torch.stack(means, 1) if means else x, state)


class MixesHeads(Softmax):
    """What a head reads goes into its neighbour too, so no weights of a head tell what was read."""

    def read(self, request: Request) -> Out[AttentionOutput]:
        out = super().read(request)
        return out._replace(y=out.y._replace(y=out.y.y + out.y.y.roll(1, 1)))


class HasAPlace(Softmax):
    """A right mechanism with a weight called `place`."""

    def __init__(self, pattern: Pattern) -> None:
        super().__init__(pattern)
        self.place = nn.Parameter(torch.zeros(3))


class RoundsAhead(Mean):
    """A right layer in which two terms of later tokens cancel but for rounding, which no large token makes large."""

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        real = torch.where((ctx.pos >= 0)[..., None], x.tanh(), 0.0)
        later = (0.1 * real * 3 - 0.3 * real).flip(1).cumsum(1).flip(1)
        out = super().forward(x, state, ctx)
        return out if state is not None else out._replace(y=out.y + later)


class StopsAhead(Softmax):
    """Attention both ways, which says that nothing flows out of a segment of three."""

    stops = ~Segment(3, 0)

    def __init__(self) -> None:
        super().__init__(Full())


class Silent(Band):
    """A window that says nothing of itself."""

    reach, period, live, capacity, cover = Pattern.reach, Pattern.period, Pattern.live, Pattern.capacity, Pattern.cover


class FewLse(Explicit):
    """It gives the lse of some of its heads alone."""

    def forward(self, *arguments: Any) -> Out:
        out = super().forward(*arguments)
        return out._replace(y=out.y._replace(lse=None if out.y.lse is None else out.y.lse[:, :2]))
