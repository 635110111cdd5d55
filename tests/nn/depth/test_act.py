"""ACT token by token, as Graves and the Universal Transformer's appendix write it; what may stop early; gradients."""

import copy
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.loss import penalties_of
from kinformer.core.patterns.causal import Causal
from kinformer.core.state import fork, leaves
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.act import ACT, Halting, Mix, add_weighted, interpolate_answer
from kinformer.nn.depth.universal import Universal
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.positions.timing import Timing
from kinformer.nn.projections.qkv import QKV

D, STEPS, EPSILON = 8, 5, 0.1
POS = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3]])
CTX = Context(POS, run=True)
Last = Literal["remainder", "probability"]
Halted = Literal["copied", "updated"]
Judged = Literal["input", "output"]


def build(
    bias: float = -0.8,
    last: Last = "remainder",
    mix: Mix = interpolate_answer,
    halted: Halted = "copied",
    judged: Judged = "input",
    spread: float = 2.0,
    strict: bool = False,
) -> ACT:
    block = PostNorm(Attention(QKV(D, 2), Softmax(Causal())), MLP(D))
    halting = Halting(D, epsilon=EPSILON, bias=bias, last=last, strict=strict)
    torch.nn.init.normal_(halting.unit.weight, std=spread)
    universal = Universal(block, STEPS, Timing(D))
    return ACT(universal, halting, mix=mix, halted=halted, judged=judged).double().eval()


def naive(layer: ACT, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y, R, N with a loop over tokens and numbers of Python, from the equations."""
    s, y = x, torch.zeros_like(x)
    total, remainder, count = ({(b, t): 0.0 for b in range(2) for t in range(6)} for _ in range(3))
    halted = {(b, t) for b in range(2) for t in range(6) if POS[b, t] < 0}
    for n in range(1, STEPS + 1):
        z = s + layer.universal.timing(POS, n - 1)
        new = layer.universal.block(z, None, CTX).y
        judged = layer.halting.unit(z if layer.judged == "input" else new)[..., 0].sigmoid()
        nxt = new.clone()
        for at in total:
            if at in halted:
                if layer.halted == "copied":
                    nxt[at] = s[at]
                continue
            h = float(judged[at])
            count[at] += 1
            out_of_steps = n == STEPS and layer.halting.last == "remainder"
            if total[at] + h >= 1 - EPSILON or out_of_steps:
                weight = remainder[at] = 1 - total[at]
                halted.add(at)
            else:
                weight = h
                total[at] += h
            y[at] = (
                weight * new[at] + (1 - weight) * y[at] if layer.mix is interpolate_answer else y[at] + weight * new[at]
            )
        s = nxt
    return y, *(torch.tensor([[v[b, t] for t in range(6)] for b in range(2)]).double() for v in (remainder, count))


@pytest.mark.parametrize("last", ["remainder", "probability"])
@pytest.mark.parametrize("mix", [interpolate_answer, add_weighted])
@pytest.mark.parametrize(("halted", "judged"), [("copied", "input"), ("copied", "output"), ("updated", "input")])
def test_equals_the_loop(last: Last, mix: Mix, halted: Halted, judged: Judged) -> None:
    layer = build(0.0 if judged == "output" else -0.8, last, mix, halted, judged)
    x = 4 * torch.randn(2, 6, D).double()
    with torch.no_grad():
        out, (y, remainder, count) = layer(x, None, CTX), naive(layer, x)
    assert len(set(count.flatten().tolist())) > 3, "tokens must stop at different steps for this to say anything"
    assert torch.allclose(out.y[POS >= 0], y[POS >= 0], atol=1e-12)
    assert torch.allclose(out.aux["remainder"], remainder, atol=1e-12)
    assert torch.equal(out.aux["steps"], count)
    assert torch.allclose(out.aux["ponder"], count + remainder, atol=1e-12)


def test_weights_sum_to_one() -> None:
    """With every state the same s, Graves' answer is s; the running one falls short, for it begins at 0."""
    for mix in (add_weighted, interpolate_answer):
        halting, s = Halting(D, bias=-1.0).double(), torch.randn(3, D).double()
        halt, y = halting.start(torch.ones(3, dtype=torch.bool), s), torch.zeros_like(s)
        for n in range(6):
            weight, halt = halting(s, halt, n == 5)
            y = mix(y, s, weight)
        assert not halt.alive.any() and torch.allclose(halt.total + halt.remainder, torch.ones(3).double())
        assert torch.allclose(y, s, atol=1e-13) is (mix is add_weighted)


def test_states_of_autocast_join_a_float32_answer() -> None:
    """On a GPU, autocast leaves the steps' states in bfloat16."""
    y, s, weight = torch.randn(3, D), torch.randn(3, D).bfloat16(), torch.rand(3)
    want = (1 - weight[:, None]) * y + weight[:, None] * s
    assert torch.allclose(interpolate_answer(y, s, weight), want, atol=1e-6)


@pytest.mark.parametrize("halted", ["copied", "updated"])
def test_stopping_early_changes_nothing(halted: Halted) -> None:
    """Eval mode leaves out what nobody takes; its state, aux and answers are those of all steps."""
    layer, x = build(3.0, halted=halted, spread=0.5), torch.randn(2, 6, D).double()
    calls: list[int] = []
    layer.universal.block.layers[1].register_forward_hook(lambda *_: calls.append(1))
    outputs = {}
    with torch.no_grad():
        for training in (False, True):
            layer.train(training)
            calls.clear()
            state = layer.start(2, 6, dtype=x.dtype)
            first = layer(x[:, :4], state, Context(POS[:, :4], True))
            second = layer(x[:, 4:], first.state, Context(POS[:, 4:], True))
            outputs[training] = [first.y, second.y, *second.aux.values(), *(leaf for _, leaf in leaves(second.state))]
            most = int(torch.cat([first.aux["steps"], second.aux["steps"]], 1).max())
            skips = not training and halted == "copied"
            assert most < STEPS and (len(calls) < 2 * STEPS if skips else len(calls) == 2 * STEPS)
    for early, fixed in zip(outputs[False], outputs[True], strict=True):
        assert torch.allclose(early, fixed, atol=1e-12)


def test_a_step_is_computed_for_the_rows_that_take_it() -> None:
    """Token after token, as in decoding: as many token-steps as are reported, and the result is that of all."""
    layer, x = build(0.5, halted="copied"), 4 * torch.randn(3, 6, D).double()
    pos, outputs, tokens = torch.arange(6).expand(3, 6), {}, []

    def count(part: nn.Module, inputs: tuple) -> None:
        tokens.append(inputs[0].shape[0] * inputs[0].shape[1])

    layer.universal.block.layers[1].register_forward_pre_hook(count)
    for training in (False, True):
        layer.train(training)
        tokens.clear()
        ys, steps, state = [], 0.0, layer.start(3, 6)
        for t in range(6):
            with torch.no_grad():
                out = layer(x[:, t : t + 1], state, Context(pos[:, t : t + 1], run=True))
            ys, steps, state = [*ys, out.y], steps + float(out.aux["steps"].sum()), out.state
        assert sum(tokens) == (3 * 6 * STEPS if training else steps) and steps < 3 * 6 * STEPS
        outputs[training] = [torch.cat(ys, 1), *(leaf for _, leaf in leaves(state))]
    for ours, theirs in zip(outputs[False], outputs[True], strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_without_a_state_no_step_is_taken_for_nobody() -> None:
    layer, x = build(3.0, halted="updated", spread=0.5), torch.randn(2, 6, D).double()
    calls: list[int] = []
    layer.universal.block.register_forward_hook(lambda *_: calls.append(1))
    out = layer(x, None, CTX)
    assert len(calls) == int(out.aux["steps"].max()) < STEPS


class Telling(Layer):
    """Reports 1 of each token at every step, and a price of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.d = D

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x.tanh(), state, {"told": torch.ones_like(x[..., 0]), "price": x.new_tensor(2.0)})


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("halted", ["copied", "updated"])
def test_what_a_halted_token_would_report_does_not_count(halted: Halted, training: bool) -> None:
    halting = Halting(D, epsilon=EPSILON, bias=-0.8)
    torch.nn.init.normal_(halting.unit.weight, std=2.0)
    layer = ACT(Universal(Telling(), STEPS), halting, halted=halted).double().train(training)
    out = layer(torch.randn(2, 6, D).double(), None, CTX)
    assert out.aux["steps"].unique().numel() > 2, "tokens halt after several numbers of steps"
    assert torch.equal(out.aux["told"], out.aux["steps"]) and out.aux["price"] == 2


def test_halted_tokens_stay_visible() -> None:
    """What a token that has halted holds is still read by those that go on."""
    layer, x = build(-0.8), torch.randn(1, 6, D).double().requires_grad_()
    out = layer(x, None, Context(POS[:1], True))
    steps = out.aux["steps"][0]
    early = int(steps[:-1].argmin())
    late = early + 1 + int(steps[early + 1 :].argmax())
    assert steps[early] < steps[late]
    (gradient,) = torch.autograd.grad(out.y[0, late].sum(), x)
    assert gradient[0, early].abs().max() > 0


def test_in_bfloat16_who_stops_is_decided_in_float32() -> None:
    """As in float64 by the same weights and states, in a model of low precision and under autocast."""
    g = torch.Generator().manual_seed(0)
    low = Halting(16, bias=0.5).bfloat16()
    steps = [torch.randn(4096, 16, generator=g).bfloat16() for _ in range(4)]
    high = copy.deepcopy(low).double()
    for unit, autocast in ((low, False), (copy.deepcopy(low).float(), True)):
        halts = [
            rule.start(torch.ones(4096, dtype=torch.bool), s)
            for rule, s in ((unit, steps[0]), (high, steps[0].double()))
        ]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            for n, s in enumerate(steps):
                _, halts[0] = unit(s if unit is low else s.float(), halts[0], n == 3)
                _, halts[1] = high(s.double(), halts[1], n == 3)
        assert halts[0].total.dtype == torch.float32
        same = halts[0].steps == halts[1].steps
        assert (~same).sum() <= 1 and len(halts[1].steps.unique()) > 1
        assert torch.allclose(halts[0].remainder.double()[same], halts[1].remainder[same], atol=1e-5)


def test_the_ponder_cost_is_differentiated_as_graves_says() -> None:
    """N has no gradient; d(N + R)/dh^n is -1 for n < N and 0 for the step that stops."""
    halting = Halting(1, epsilon=0.01, bias=None).double()
    halting.unit.weight.data.fill_(1.0)
    s = torch.tensor([0.0, -1.0, -0.5, 3.0], dtype=torch.float64, requires_grad=True)  # h = .5, .27, .38, ...
    halt = halting.start(torch.tensor([True]), s)
    for n in range(4):
        _, halt = halting(s[n].view(1, 1), halt, n == 3)
    assert halt.steps.tolist() == [3.0] and not halt.steps.requires_grad
    (gradient,) = torch.autograd.grad(halt.report()["ponder"].sum(), s)
    h = s.detach().sigmoid()
    assert torch.allclose(gradient, -h * (1 - h) * torch.tensor([1.0, 1.0, 0.0, 0.0]), atol=1e-14)


def test_at_least_and_more_than() -> None:
    """h is 1/2 twice: their sum is 1, which is at least 1 - 0 and not more."""
    for strict in (False, True):
        halting = Halting(1, epsilon=0.0, bias=None, strict=strict)
        halting.unit.weight.data.fill_(0.0)
        s = torch.zeros(1, 1)
        halt = halting.start(torch.tensor([True]), s)
        for n in range(3):
            _, halt = halting(s, halt, n == 2)
        assert halt.steps.tolist() == [3.0 if strict else 2.0]


def test_the_ponder_cost_declares_what_it_trains() -> None:
    layer = build()
    (penalty,) = penalties_of(layer)["ponder"]
    assert set(penalty.trains) == set(layer.halting.unit.parameters()) and penalty.reaches_x
    x = torch.randn(2, 6, D).double().requires_grad_()
    ponder = layer(x, None, CTX).aux["ponder"].sum()
    grads = torch.autograd.grad(ponder, [x, *layer.parameters()], allow_unused=True)
    assert all(g is not None and g.any() for g in grads)


def test_only_to_remember_gives_the_same_state() -> None:
    for halted in ("copied", "updated"):
        for training in (False, True):
            layer, x = build(halted=halted).train(training), torch.randn(2, 6, D).double()
            start = layer.start(2, 6)
            want = layer(x, fork(start), CTX).state
            actual = layer(x, start, CTX.replace(remember=True)).state
            for (_, ours), (_, theirs) in zip(leaves(actual), leaves(want), strict=True):
                assert torch.allclose(ours, theirs, atol=1e-12)


def test_a_word_that_is_none_of_the_options_is_refused() -> None:
    """Also where nothing checks annotations: they are as strings at run time."""
    for keywords, says in (({"halted": "copy"}, "'copied' or 'updated'"), ({"judged": "x"}, "'input' or 'output'")):
        with pytest.raises(ValueError, match=says):
            unchecked(ACT.__init__)(nn.Module.__new__(ACT), build().universal, Halting(D), **keywords)
    with pytest.raises(ValueError, match="'remainder' or 'probability'"):
        unchecked(Halting.__init__)(nn.Module.__new__(Halting), D, last="rest")


def unchecked(function: Callable) -> Callable:
    """A function as it is written, without the checks of its annotations."""
    return unchecked(function.__wrapped__) if hasattr(function, "__wrapped__") else function


@pytest.mark.parametrize("epsilon", [1.0, -0.1])
def test_an_epsilon_that_means_nothing_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match=f"epsilon={epsilon}: give a number from 0 to below 1"):
        Halting(D, epsilon=epsilon)
