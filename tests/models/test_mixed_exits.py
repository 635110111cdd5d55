"""Mixed training, scaled gradients and a classifier for each exit: by loops over tokens from the paper's equations."""

import math
from unittest import mock

import pytest
import torch
from torch import Tensor

from kinformer.core.choice import run_checkpointed
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.decoding.generate import generate
from kinformer.members.depth_adaptive import depth_adaptive
from kinformer.models.multi_exit import MultiExit
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.depth.stack import Stack
from kinformer.nn.exits.confidence import SoftmaxResponse
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.multinomial import Multinomial
from kinformer.nn.exits.per_exit_classifier import PerExit
from kinformer.nn.exits.uniform_exit import UniformExit
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV
from tests.nn.depth.test_early_exit import DEPTH, D, blocks
from tests.nn.depth.test_exits_by_hand import ByHand

BATCH = torch.tensor([[3, 1, 4, 1, 5, 2, 6], [-1, -1, 2, 6, 5, 3, -1]])
ROWS = torch.tensor([[3, 1, 4, 1, 5], [2, 6, 5, 3, 0]])


def build(rule: ExitRule, draws_exits: bool = False, gamma: float | None = None, **keywords: object) -> MultiExit:
    norms = [LayerNorm(D) for _ in range(DEPTH)]
    body = EarlyExit(blocks(), norms, rule, chance=UniformExit(DEPTH) if draws_exits else None, gamma=gamma)
    model = MultiExit(7, D, body, **keywords)  # type: ignore[arg-type]
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.7)
    return model


def head(model: MultiExit, n: int) -> torch.nn.Module:
    return model.head.each[n] if isinstance(model.head, PerExit) else model.head


class Watched(UniformExit):
    """What was drawn: by reading, the exit of each token."""

    def __init__(self) -> None:
        super().__init__(DEPTH)
        self.exits: list[Tensor] = []

    def begin_call(self, state: object, ctx: Context, x: Tensor) -> Tensor:
        self.exits.append(super().begin_call(state, ctx, x))
        return self.exits[-1]


def mixed(model: MultiExit, exits: Tensor) -> float:
    """Equation 5 token by token: each reads the states of those before it, copied above their exits."""
    total, count = 0.0, 0
    for row, exit_of in zip(BATCH, exits, strict=True):
        at = [n for n, token in enumerate(row[:-1].tolist()) if token >= 0]
        tokens, exit_of = row[row >= 0], exit_of[at]
        h = model.embedding(tokens)[None]
        levels = [h[:, : len(tokens)]]
        x = levels[0]
        states = [x]
        for n in range(DEPTH):
            new = Stack([model.body.layers[n]])(x, None, Context(torch.arange(len(tokens))[None], run=True)).y
            has_left = torch.tensor([int(e) <= n for e in exit_of] + [False] * (len(tokens) - len(exit_of)))
            x = torch.where(has_left[None, :, None], x, new)
            states.append(x)
        for t, target in enumerate(tokens[1:]):
            n = int(exit_of[t]) - 1
            logits = head(model, n)(model.body.heads[n](states[n + 1][0, t]))
            total -= float(logits.log_softmax(-1)[target])
            count += 1
    return total / count


@pytest.mark.parametrize("outputs", ["shared", "each"])
@pytest.mark.parametrize("learns", [False, True])
def test_mixed_training_is_the_mean_over_drawn_exits(learns: bool, outputs: str, float64: None) -> None:
    rule = Multinomial(D, DEPTH) if learns else ConfidenceThreshold(SoftmaxResponse(), 0.5)
    model = build(rule, True, paths=3, outputs=outputs, tie=False, alpha=0.4).train()
    model.body.chance = Watched()
    loss = model(BATCH)
    exits = model.body.chance.exits
    assert len(exits) == 3 and len(torch.stack(exits).unique()) == DEPTH
    with torch.no_grad():
        want = sum(mixed(model, exit_drawn) for exit_drawn in exits) / 3
    assert float(loss.parts["exits"].detach()) == pytest.approx(want, rel=1e-12)
    exit_loss = 0.0
    if learns:  # its oracle asks for the likelihood at every exit, which only a reading in which nobody leaves has
        model.body.chance = None
        exit_loss = 0.4 * float(model(BATCH).parts["leaving"].detach())
        assert exit_loss > 0
    assert float(loss.total.detach()) == pytest.approx(want + exit_loss, rel=1e-12)
    loss.total.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.body.layers.parameters())


class Forced(ByHand):
    """A row whose tokens leave where they are told."""

    exits: list[int]

    def leaves(self, states: list[Tensor]) -> bool:
        return len(states) == self.exits[len(self.own[0]) - 1]


def test_mixed_training_behind_an_encoder_is_the_mean_over_drawn_exits(float64: None) -> None:
    """Token by token with keys and values in lists, those of skipped layers from the state of the exit."""
    tiny = {"d": D, "depth": DEPTH, "heads": 2, "length": 16, "vocab": 7}
    model = depth_adaptive(**tiny, form="encoder_decoder", classifier="probability", paths=2, outputs="each")
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.7)
    source, target = torch.tensor([[3, 1, 4], [2, 6, -1]]), torch.tensor([[5, 1, 0, 2], [-1, 4, 4, -1]])
    model.decoder.chance = Watched()
    with torch.no_grad():
        loss = model.train()((source, target)).parts["exits"]
    total, count = 0.0, 0
    (read, targets), exits_drawn = model.framed_targets((source, target)), model.decoder.chance.exits
    assert len(exits_drawn) == 2 and len(torch.stack(exits_drawn).unique()) == DEPTH
    for exits in exits_drawn:
        for b in range(2):
            at = (read[b] >= 0).nonzero()[:, 0].tolist()
            row = Forced(model.eval(), source[b][source[b] >= 0])
            row.exits = exits[b][at].tolist()
            for t, column in enumerate(at):
                with torch.no_grad():
                    scores, _ = row.step(int(read[b, column]), t)
                total, count = total - float(scores.log_softmax(-1)[targets[b, column]]), count + 1
    assert count == 2 * 8 and float(loss) == pytest.approx(total / count, rel=1e-12)


def test_in_eval_mode_the_loss_is_that_of_all_exits(float64: None) -> None:
    model = build(ConfidenceThreshold(SoftmaxResponse(), 0.5), True, paths=2).eval()
    with torch.no_grad():
        want = model(BATCH).total
        model.body.chance = None
        assert torch.equal(model(BATCH).total, want)


def test_exits_depend_on_neither_padding_nor_other_rows() -> None:
    rule, x, pos = UniformExit(DEPTH), torch.randn(3, 8, D), torch.arange(8).expand(3, 8)

    def draw(x: Tensor, pos: Tensor) -> Tensor:
        torch.manual_seed(0)
        return rule.begin_call((), Context(pos), x)

    exits = draw(x, pos)
    padded_x, padded_pos = torch.cat([torch.randn(3, 2, D), x], 1), torch.cat([torch.full((3, 2), -1), pos], 1)
    assert torch.equal(draw(padded_x, padded_pos)[:, 2:], exits)
    assert torch.equal(draw(x[[2, 0]], pos[[2, 0]]), exits[[2, 0]])
    assert torch.equal(draw(x[:, 3:], pos[:, 3:]), exits[:, 3:])
    assert not torch.equal(rule.begin_call((), Context(pos), x), exits)


def test_exits_are_drawn_evenly() -> None:
    rule, pos = UniformExit(DEPTH), torch.arange(200).expand(100, 200)
    exits_told = rule.begin_call((), Context(pos), torch.randn(100, 200, D))
    exits, states = torch.full(pos.shape, DEPTH), [pos[..., None].double()] * DEPTH
    for n in range(DEPTH, 0, -1):
        exits = torch.where(rule(states[:n], Context(pos), exits_told), n, exits)
    share = torch.bincount(exits.flatten(), minlength=DEPTH + 1)[1:] / 20000
    assert (share - 1 / DEPTH).abs().max() < 5 * math.sqrt(0.25 * 0.75 / 20000)


def test_what_is_computed_again_has_the_same_exits_and_drops_the_same(float64: None) -> None:
    layers = [PreNorm(Attention(QKV(D, 2), Softmax(Causal(), dropout=0.3)), MLP(D)) for _ in range(DEPTH)]
    body = EarlyExit(
        layers, LayerNorm(D), ConfidenceThreshold(SoftmaxResponse(), 0.5), chance=UniformExit(DEPTH)
    ).train()
    x, ctx, grads = torch.randn(2, 5, D), Context(torch.arange(5).expand(2, 5), run=True), []
    for call in (lambda z: body(z, None, ctx).y, lambda z: run_checkpointed(lambda z: body(z, None, ctx).y, z)):
        torch.manual_seed(0)
        inputs = x.clone().requires_grad_()
        grads.append(torch.autograd.grad(call(inputs).sin().sum(), inputs)[0])
    assert torch.equal(*grads)


def test_mixed_training_carries_no_state() -> None:
    model = build(ConfidenceThreshold(SoftmaxResponse(), 0.5), True)
    with pytest.raises(ValueError, match=r"^mixed training reads each row several times[^\n]*$"):
        model(BATCH, model.start(2, 7))
    with pytest.raises(
        ValueError, match="^gamma=0.5 must be a finite number above 0, and cannot be combined with chance"
    ):
        EarlyExit(
            blocks(), LayerNorm(D), ConfidenceThreshold(SoftmaxResponse(), 0.5), chance=UniformExit(DEPTH), gamma=0.5
        )
    with pytest.raises(ValueError, match=r"^UniformExit\(3\) does not fit 4 layers\. Pass UniformExit\(4\)$"):
        EarlyExit(blocks(), LayerNorm(D), ConfidenceThreshold(SoftmaxResponse(), 0.5), chance=UniformExit(3))
    with pytest.raises(ValueError, match="give tie=False$"):
        build(ConfidenceThreshold(SoftmaxResponse(), 0.5), outputs="each")


def test_scaled_gradients_are_those_of_algorithm_1(float64: None) -> None:
    """By hand: SCALE(x, g) = g x + (1 - g) stop(x), of the logits by g_n, of what goes up by 1 / g_(n+1)."""
    gamma, weights = 0.3, [math.sqrt(n + 1) for n in range(DEPTH)]
    model = build(ConfidenceThreshold(SoftmaxResponse(), 0.5), gamma=gamma, weights="sqrt").train()
    scale = [gamma * (DEPTH - n) for n in range(1, DEPTH)] + [1.0]

    def scaled(x: Tensor, by: float) -> Tensor:
        return by * x + (1 - by) * x.detach()

    h, ctx, total = model.embedding(ROWS[:, :-1]), Context(torch.arange(4).expand(2, 4), run=True), 0.0
    for n in range(DEPTH):
        h = model.body.layers[n](h, None, ctx).y
        log_p = scaled(model.head(model.body.heads[n](h)), scale[n]).log_softmax(-1)
        total = total - weights[n] * log_p.gather(-1, ROWS[:, 1:, None]).mean() / sum(weights)
        if n < DEPTH - 1:
            h = scaled(h, 1 / scale[n + 1])
    names = [name for name, _ in model.named_parameters()]
    want = dict(zip(names, torch.autograd.grad(total, list(model.parameters())), strict=True))
    loss = model(ROWS).total
    torch.testing.assert_close(loss, total)
    for name, actual in zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(actual, want[name], msg=name)
    (plain,) = torch.autograd.grad(model.eval()(ROWS).total, [model.body.layers[0].layers[1].up.weight])
    scaled_up = want["body.layers.0.layers.1.up.weight"]
    assert not torch.allclose(plain, scaled_up, rtol=0.01), "in eval mode gradients are those of the values"


@torch.no_grad()
def test_each_exit_is_read_by_its_own_classifier_and_asked_by_it(float64: None) -> None:
    model = build(ConfidenceThreshold(SoftmaxResponse(), 0.86), outputs="each", tie=False).eval()
    states = model.logits(ROWS, None, Context(torch.arange(5).expand(2, 5), run=True, taps=("0",))).taps["0"]
    best = model.head.each[0](model.body.heads[0](states)).softmax(-1).sort(-1).values
    out = model.logits(ROWS)
    exits = out.aux["exit"].long()
    assert torch.equal(exits == 1, best[..., -1] - best[..., -2] >= 0.86) and len(exits.unique()) > 1
    body = model.body(model.embedding(ROWS), None, Context(torch.arange(5).expand(2, 5), run=True, head=model.head)).y
    for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(5)).tolist():
        torch.testing.assert_close(out.y[b, t], model.head.each[int(exits[b, t]) - 1](body[b, t]))
    torch.testing.assert_close(model.logits(ROWS, last=True).y, out.y[:, -1:])
    with mock.patch("torch.compiler.is_compiling", lambda: True):
        torch.testing.assert_close(model.head(body, out.aux["exit"]), out.y)
    rows = generate(model, ROWS[:, :2], 4, temperature=0)
    assert torch.equal(rows, generate(model, ROWS[:, :2], 4, temperature=0, recompute=True))


def test_they_are_keywords_of_the_member() -> None:
    tiny = {"d": 16, "depth": 3, "heads": 2, "length": 32, "vocab": 7}
    plain = depth_adaptive(**tiny)
    assert plain.body.chance is None and plain.body.gammas == (1.0,) * 3 and plain.head.weight is plain.embedding.weight
    model = depth_adaptive(**tiny, paths=4, outputs="each")
    assert isinstance(model.body.chance, UniformExit) and model.paths == 4 and len(model.head.each) == 3
    assert depth_adaptive(**tiny, gamma=0.5).body.gammas == (1.0, 0.5, 1.0)
    pairs = depth_adaptive(**tiny, form="encoder_decoder", outputs="each", paths=2)
    assert torch.isfinite(pairs(pairs.sample(2, 5, 0)).total)
    with pytest.raises(ValueError, match=r"^gamma=0.5 has no effect with paths=2"):
        depth_adaptive(**tiny, paths=2, gamma=0.5)
