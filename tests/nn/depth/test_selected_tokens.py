"""Tokens that are gathered: what comes of them is what comes of all tokens, and what is computed is of them alone."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from kinformer.core.kv_cache import KV
from kinformer.core.layer import Context, Layer, State
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
from kinformer.core.state import fork, leaves, map_state
from kinformer.lab.train.activation_checkpointing import checkpointed
from kinformer.members.universal_transformer import universal_transformer
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth import selected_tokens as some_tokens
from kinformer.nn.depth.act import ACT, Halting, Mix, add_weighted, interpolate_answer
from kinformer.nn.depth.recurrent_act import RecurrentACT
from kinformer.nn.depth.selected_tokens import serves_tokens, worth_gathering
from kinformer.nn.depth.universal import Universal
from kinformer.nn.feedforward.mlp import MLP, GatedMLP
from kinformer.nn.feedforward.separable_conv import SeparableConv
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.rms import RMSNorm
from kinformer.nn.patterns.band import Band
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.positions.timing import Timing
from kinformer.nn.projections.qkv import QKV
from tests.nn.depth.test_act import CTX, EPSILON, POS, STEPS, Telling, build, naive

D, LENGTH = 8, 9
Halted = Literal["copied", "updated"]
Judged = Literal["input", "output"]
ALWAYS, NEVER = -math.inf, math.inf


def attention(pattern: Any, **projection: Any) -> Attention:
    return Attention(QKV(D, 2, **projection), Softmax(pattern, lse=False))


BLOCKS: dict[str, Callable[[], PostNorm | PreNorm]] = {
    "decoder": lambda: PostNorm(attention(Causal()), MLP(D)),
    "encoder": lambda: PostNorm(attention(Full(), bias=False), GatedMLP(D)),
    "window": lambda: PostNorm(attention(Causal() & Band(3), key_heads=1), MLP(D)),
    "rotary": lambda: PostNorm(attention(Causal(), rotation=Rotary(4)), MLP(D)),
    "norm first": lambda: PreNorm(attention(Causal()), MLP(D), norm=RMSNorm),
    "reads a source": lambda: PostNorm(attention(Causal()), Attention(QKV(D, 2), Softmax(Full()), cross=True), MLP(D)),
}


def make_layer(block: str, halted: Halted, judged: Judged = "input", timed: bool = True, bias: float = 0.0) -> ACT:
    halting = Halting(D, epsilon=EPSILON, bias=bias, last="probability" if judged == "input" else "remainder")
    torch.nn.init.normal_(halting.unit.weight, std=1.0)
    universal = Universal(BLOCKS[block](), STEPS, Timing(D) if timed else None)
    return ACT(universal, halting, halted=halted, judged=judged).double()


def padded(rows: int = 4) -> Context:
    """Rows of all lengths, one of a single token, one of none; the source likewise."""
    pos = torch.arange(LENGTH).expand(rows, -1).clone()
    pos[0, 6:], pos[1], pos[2, 1:] = -1, -1, -1
    source_pos = torch.arange(5).expand(rows, -1).clone()
    source_pos[3, 2:] = -1
    return Context(pos, run=True, source=torch.randn(rows, 5, D).double(), source_pos=source_pos)


def gradients(layer: ACT, x: Tensor, ctx: Context) -> list[Tensor]:
    """What a layer gives, and the gradients of all that it is computed from."""
    x = x.clone().requires_grad_()
    out = layer(x, None, ctx)
    loss = (out.y * torch.linspace(-1, 1, out.y.numel()).view_as(out.y)).sum() + out.aux["ponder"].square().sum()
    return [out.y, *out.aux.values(), *torch.autograd.grad(loss, [x, *layer.parameters()])]


def both_ways(monkeypatch: pytest.MonkeyPatch, call: Callable[[], list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    """The same call where tokens are always gathered, and where they never are."""
    results = []
    for price in (ALWAYS, NEVER):
        monkeypatch.setattr(some_tokens, "GATHERING", price)
        torch.manual_seed(7)
        results.append(call())
    return results[0], results[1]


def close(results: tuple[list[Tensor], list[Tensor]], atol: float = 1e-12) -> None:
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, rtol=atol, atol=atol), float((ours - theirs).abs().max())


def computed(layer: Layer) -> list[int]:
    """How many tokens each call of a block's feed-forward layer reads."""
    counts: list[int] = []
    layer.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].shape[0] * inputs[0].shape[1]))
    return counts


@pytest.mark.parametrize("mix", [interpolate_answer, add_weighted])
@pytest.mark.parametrize(("halted", "judged"), [("copied", "input"), ("copied", "output"), ("updated", "input")])
def test_equals_the_loop(mix: Mix, halted: Halted, judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token from the equations; "copied" computes what it reports, and not a token more."""
    monkeypatch.setattr(some_tokens, "GATHERING", ALWAYS)
    layer = build(0.0 if judged == "output" else -0.8, "probability", mix, halted, judged)
    x, tokens = 4 * torch.randn(2, 6, D).double(), computed(layer.universal.block.layers[1])
    for training in (True, False):
        tokens.clear()
        with torch.no_grad():
            out = layer.train(training)(x, None, CTX)
            counted = sum(tokens)
            y, remainder, count = naive(layer, x)
        assert len(set(count.flatten().tolist())) > 3, "tokens must stop at different steps for this to say anything"
        assert torch.allclose(out.y[POS >= 0], y[POS >= 0], atol=1e-12) and not out.y[POS < 0].any()
        assert torch.allclose(out.aux["remainder"], remainder, atol=1e-12)
        assert torch.equal(out.aux["steps"], count)
        assert counted == count.sum() if halted == "copied" else count.sum() < counted < POS.numel() * STEPS


@pytest.mark.parametrize("judged", ["input", "output"])
@pytest.mark.parametrize("halted", ["copied", "updated"])
@pytest.mark.parametrize("block", BLOCKS)
def test_values_and_gradients_are_those_of_all_tokens(
    block: str, halted: Halted, judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    for timed in (True, False):
        layer, x, ctx = make_layer(block, halted, judged, timed), 2 * torch.randn(4, LENGTH, D).double(), padded()
        close(both_ways(monkeypatch, lambda layer=layer, x=x, ctx=ctx: gradients(layer, x, ctx)))


@pytest.mark.parametrize("halted", ["copied", "updated"])
@pytest.mark.parametrize("form", ["decoder", "encoder_decoder"])
def test_so_are_those_of_members(form: Any, halted: Halted, monkeypatch: pytest.MonkeyPatch, float64: None) -> None:
    model = universal_transformer(d=D, depth=4, heads=2, vocab=11, form=form, halted=halted, bias=0.0)
    batch = model.sample(4, LENGTH, 1)

    def call() -> list[Tensor]:
        loss = model(batch)
        return [loss.total, *loss.parts.values(), *torch.autograd.grad(loss.total, list(model.parameters()))]

    close(both_ways(monkeypatch, call))


@pytest.mark.parametrize("halted", ["copied", "updated"])
def test_packed_documents_stay_apart(halted: Halted, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.tensor([[0] * 2 + [1] * 7, [0] * 5 + [1] * 4, [0] * 9])
    ctx = Context(torch.arange(LENGTH).expand(3, -1), run=True, full=True, only=Document(ids))
    layer, x = make_layer("decoder", halted), 2 * torch.randn(3, LENGTH, D).double()
    close(both_ways(monkeypatch, lambda: gradients(layer, x, ctx)))
    alone = [
        layer(document, None, Context(torch.arange(len(document[0]))[None], run=True)).y
        for document in x[:1].split([2, 7], 1)
    ]
    monkeypatch.setattr(some_tokens, "GATHERING", ALWAYS)
    assert torch.allclose(layer(x, None, ctx).y[:1], torch.cat(alone, 1), atol=1e-12)


def state_tensors(state: State) -> list[Tensor]:
    """All that a state holds, but for keys of padding, which nobody reads."""

    def real(part: Any) -> list[Tensor] | None:
        if not isinstance(part, KV):
            return None
        is_real = (part.pos >= 0)[:, None, :, None]
        return [part.k * is_real, part.v * is_real, part.pos.clone(), part.now.clone()]

    return [leaf for _, leaf in leaves(map_state(lambda _, leaf: leaf.clone(), state, at=real))]


@pytest.mark.parametrize("block", ["decoder", "rotary", "window", "reads a source"])
def test_a_state_goes_on_as_if_all_tokens_had_been_computed(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt, a chunk, a token: answers, and whatever is kept; where only the state is wanted too."""
    layer, x, whole = make_layer(block, "copied").eval(), 2 * torch.randn(4, LENGTH, D).double(), padded()

    def call() -> list[Tensor]:
        state, outputs = layer.start(4, LENGTH), list[Tensor]()
        for lo, hi in ((0, 4), (4, 8), (8, 9)):
            new = {} if lo else {"source": whole.source, "source_pos": whole.source_pos}
            ctx = Context(whole.pos[:, lo:hi], run=True, **new)
            remembered = layer(x[:, lo:hi], fork(state), ctx.replace(remember=True)).state
            out = layer(x[:, lo:hi], state, ctx)
            state = out.state
            outputs += [out.y, out.aux["ponder"], *state_tensors(remembered), *state_tensors(state)]
        return outputs

    with torch.no_grad():
        close(both_ways(monkeypatch, call))


@pytest.mark.parametrize("bias", [30.0, -30.0])
@pytest.mark.parametrize("halted", ["copied", "updated"])
def test_all_halt_at_once_or_none_does(halted: Halted, bias: float, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = make_layer("decoder", halted, bias=bias), torch.randn(4, LENGTH, D).double()
    torch.nn.init.zeros_(layer.halting.unit.weight)
    running, at_once = Context(torch.tensor([[-1, -1, 0, -1]]), run=True), Context(torch.zeros(4, 0, dtype=torch.long))
    for training in (True, False):
        layer.train(training)
        close(both_ways(monkeypatch, lambda: gradients(layer, x, padded())))
        close(both_ways(monkeypatch, lambda: gradients(layer, x[:1, :4], running)))
        close(both_ways(monkeypatch, lambda: [layer(x[:, :0], None, at_once).y]))


def drop(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout whose chance is a function of the numbers themselves, so that the same number meets the same chance."""
    share = (x.detach() * 1e6).sin().mul(43758.5453).frac().abs()
    return torch.where(share < p, 0.0, x / (1 - p)) if training and p else x


@pytest.mark.parametrize("halted", ["copied", "updated"])
def test_a_token_that_goes_on_meets_the_same_chance(halted: Halted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "dropout", drop)
    model = universal_transformer(d=D, depth=4, heads=2, vocab=11, dropout=0.3, halted=halted, bias=0.0).double()
    model.body.universal.block.layers[0].mechanism.impl = "reference"
    batch = model.sample(4, LENGTH, 1)

    def call() -> list[Tensor]:
        loss = model(batch)
        return [loss.total, *torch.autograd.grad(loss.total, list(model.parameters()))]

    results = both_ways(monkeypatch, call)
    close(results, 1e-9)
    assert not torch.equal(results[0][0], model.eval()(batch).total)


@pytest.mark.parametrize("halted", ["copied", "updated"])
@pytest.mark.parametrize("form", ["decoder", "encoder_decoder"])
def test_computed_again_it_is_the_same(form: Any, halted: Halted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of tokens and their dropout; of what is inside a block nothing is kept."""
    monkeypatch.setattr(some_tokens, "GATHERING", ALWAYS)
    model = universal_transformer(
        d=D, depth=4, heads=2, vocab=11, form=form, dropout=0.3, halted=halted, bias=0.0
    ).double()
    batch, gradients, saved_bytes = model.sample(4, 16, 1), [], []

    def pack(x: Tensor) -> Tensor:
        saved_bytes[-1] += x.numel() * x.element_size()
        return x

    for once in (nullcontext, lambda: checkpointed(model)):
        torch.manual_seed(3)
        saved_bytes.append(0)
        with once(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = model(batch).total
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    close((list(gradients[0]), list(gradients[1])))
    assert saved_bytes[1] < saved_bytes[0] / 2


def test_in_low_precision_it_is_as_near(monkeypatch: pytest.MonkeyPatch) -> None:
    model = universal_transformer(d=32, depth=4, heads=2, vocab=11, halted="copied", bias=0.0)
    batch = model.sample(4, 32, 1)

    def call() -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return [model.logits(batch).y.detach().float()]

    (gathered, whole), exact = both_ways(monkeypatch, call), model.logits(batch).y.detach()
    errors = [float((y[0] - exact).abs().mean() / exact.abs().mean()) for y in (gathered, whole)]
    assert 0 < errors[0] < 1.5 * errors[1] < 0.03


class Halts(Halting):
    """Halts each token after as many steps as its own x says, whatever the state has become."""

    def forward(self, s: Tensor, halt: Any, final: bool) -> tuple[Tensor, Any]:
        weight, now = super().forward(s, halt, final)
        return weight, now._replace(
            alive=halt.alive & (now.steps + 0.5 < halt.remainder) & (not final), remainder=halt.remainder
        )

    def start(self, real: Tensor, like: Tensor) -> Any:
        return super().start(real, like)._replace(remainder=self.steps)


def of_steps(steps: Tensor, d: int = 32, depth: int = 10) -> ACT:
    """Tokens that take these steps, of a block that is counted."""
    halting = Halts(d)
    halting.steps = steps.float()
    block = PostNorm(Attention(QKV(d, 2), Softmax(Causal(), lse=False)), MLP(d))
    return ACT(Universal(block, depth, Timing(d)), halting, halted="copied")


SPREAD = torch.rand(4, 64, generator=torch.Generator().manual_seed(0)) < 0.05
STEPS_TAKEN = {
    "anywhere": torch.where(SPREAD, 10.0, 1.0),
    "in one row": torch.where(torch.arange(4)[:, None] == 2, 10.0, 1.0).expand(4, 64),
    "fewer and fewer": torch.randint(1, 11, (4, 64), generator=torch.Generator().manual_seed(1)).float(),
}


@pytest.mark.parametrize("name", STEPS_TAKEN)
def test_multiplications_fall_with_the_steps_that_are_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of queries, output and feed-forward exactly; keys are made of states that have changed, and of no others."""
    steps, d, tokens = STEPS_TAKEN[name], 32, 4 * 64
    layer = of_steps(steps)
    weights = 2 * d * d  # of a query and of its answer; a feed-forward layer has four times as many
    steps_taken = float(steps.sum())
    x, flops = torch.randn(4, 64, d), dict[float, int]()
    for price in (ALWAYS, NEVER):
        monkeypatch.setattr(some_tokens, "GATHERING", price)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            out = layer(x)
        assert torch.equal(out.aux["steps"], steps)
        counts = counter.get_flop_counts()["Global"]
        flops[price] = sum(n for op, n in counts.items() if "mm" in str(op)) // 2
    assert flops[NEVER] >= tokens * 10 * 6 * weights
    halting, timing = 2 * d * steps_taken, 10 * weights
    # a token has a state more than it takes steps; each is multiplied by the matrix of keys and values at most once
    assert steps_taken * 5 * weights <= flops[ALWAYS] <= (steps_taken * 6 + tokens) * weights + halting + timing


def test_rows_of_unlike_need_are_asked_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose tokens all go on adds no queries to rows with a few."""
    row_counts: list[int] = []
    layer = of_steps(torch.where((SPREAD | (torch.arange(4)[:, None] == 2)), 10.0, 1.0))
    first = layer.universal.block.layers[0]
    read_with_aux = first.mechanism.read_with_aux
    monkeypatch.setattr(some_tokens, "GATHERING", ALWAYS)
    monkeypatch.setattr(
        first.mechanism,
        "read_with_aux",
        lambda attending: (row_counts.append(attending.queries.q.shape[:3:2].numel()), read_with_aux(attending))[1],
    )
    with torch.no_grad():
        layer(torch.randn(4, 64, 32))
    few = [int(row.sum()) for n, row in enumerate(SPREAD) if n != 2]
    assert sum(row_counts[-2:]) == 64 + len(few) * max(few)


@pytest.mark.parametrize("halted", ["copied", "updated"])
def test_what_a_gathered_token_reports_counts(halted: Halted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(some_tokens, "GATHERING", ALWAYS)
    halting = Halting(D, epsilon=EPSILON, bias=-0.8)
    torch.nn.init.normal_(halting.unit.weight, std=2.0)
    layer = ACT(Universal(PostNorm(attention(Causal()), Telling()), STEPS), halting, halted=halted).double()
    out = layer(torch.randn(4, LENGTH, D).double(), None, padded())
    assert out.aux["steps"].unique().numel() > 2, "tokens halt after several numbers of steps"
    assert torch.equal(out.aux["1.told"], out.aux["steps"]) and out.aux["1.price"] == 2


def test_who_looks_on_at_attention_finds_it_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(some_tokens, "GATHERING", ALWAYS)
    layer, calls = make_layer("decoder", "copied"), []
    layer.universal.block.layers[0].register_forward_hook(lambda *_: calls.append(1))
    out = layer(torch.randn(4, LENGTH, D).double(), None, padded())
    assert len(calls) == STEPS > out.aux["steps"].max() - 1


def test_blocks_that_mix_tokens_twice_are_computed_whole() -> None:
    assert all(serves_tokens(make()) for make in BLOCKS.values())
    own = lambda: attention(Causal())  # noqa: E731
    for block in (PostNorm(own(), own()), PostNorm(MLP(D), own()), PostNorm(own(), SeparableConv(D)), MLP(D)):
        assert not serves_tokens(block)


def test_it_is_worth_it_from_a_size_on() -> None:
    """By sizes alone: a tenth of 1,024 tokens of width 256 is, of 128 or of width 32 it is not, and all never are."""
    wide, narrow = (PostNorm(Attention(QKV(d, 4), Softmax(Causal())), MLP(d)) for d in (256, 32))
    many, few = torch.arange(128).expand(8, -1), torch.arange(128).expand(1, -1)
    assert worth_gathering(wide, many, 102) and worth_gathering(wide, torch.arange(1024)[None], 102)
    assert not worth_gathering(wide, few, 12) and not worth_gathering(narrow, many, 102)
    assert not worth_gathering(wide, many, 1024)
    assert worth_gathering(wide, many, 700) >= worth_gathering(wide, many, 900)


def test_rows_of_a_recurrent_cell_are_gathered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for cell in (torch.nn.RNNCell(D + 1, D), torch.nn.LSTMCell(D + 1, D)):
        layer = RecurrentACT(D, STEPS, Halting(D, epsilon=EPSILON, bias=-0.5), cell=cell).double()
        torch.nn.init.normal_(layer.halting.unit.weight, std=3.0)
        rows, outputs, x = list[int](), [], 2 * torch.randn(4, LENGTH, D).double().requires_grad_()
        layer.cell.register_forward_pre_hook(lambda _, inputs, rows=rows: rows.append(len(inputs[0])))
        for price in (ALWAYS, NEVER):
            monkeypatch.setattr("kinformer.nn.depth.recurrent_act.GATHERING", price)
            rows.clear()
            out = layer(x, layer.start(4, LENGTH, dtype=x.dtype), padded())
            loss = out.y.square().sum() + out.aux["ponder"].sum()
            grads = torch.autograd.grad(loss, [x, *layer.parameters()])
            outputs.append([out.y, *out.aux.values(), *(leaf for _, leaf in leaves(out.state)), *grads])
            if price == ALWAYS:  # a token of padding takes the first step, as it cannot be told from others there
                assert sum(rows) == out.aux["steps"].sum() + (padded().pos < 0).sum()
        close((outputs[0], outputs[1]))
