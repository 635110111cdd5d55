"""MultiExit: its loss from the equation, what it teaches, and who leaves when it is asked to write."""

import math
from collections.abc import Callable

import pytest
import torch

from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.patterns.causal import Causal
from kinformer.decoding.generate import generate
from kinformer.members.calm import calm
from kinformer.models.lm import LM
from kinformer.models.multi_exit import MultiExit
from kinformer.models.multi_exit_seq2seq import MultiExitSeq2Seq
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.act import ACT, Halting
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.depth.stack import Stack
from kinformer.nn.depth.universal import Universal
from kinformer.nn.exits.by_sequence import BySequence
from kinformer.nn.exits.confidence import Probe, SoftmaxResponse
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.geometric import Geometric
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV
from tests.nn.depth.test_act import unchecked
from tests.nn.depth.test_early_exit import DEPTH, D, blocks

BATCH = torch.tensor([[3, 1, 4, 1, 5, 2, 6], [-1, -1, 2, 6, 5, 3, -1]])


def build(rule: ExitRule, **keywords: object) -> MultiExit:
    norms = [LayerNorm(D) for _ in range(DEPTH)]
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
    return MultiExit(7, D, EarlyExit(blocks(), norms, rule), **keywords)  # type: ignore[arg-type]


@torch.no_grad()
def naive(model: MultiExit) -> tuple[list[list[float]], list[list[float]]]:
    """By exit and target: its NLL, and how the probe is wrong about agreeing with the last exit."""
    nll: list[list[float]] = [[] for _ in range(DEPTH)]
    wrong: list[list[float]] = [[] for _ in range(DEPTH - 1)]
    for row in BATCH:
        tokens = row[row >= 0]
        ctx = Context(torch.arange(len(tokens) - 1)[None], run=True)
        x = model.embedding(tokens[None, :-1])
        states = [Stack(model.body.layers[: n + 1])(x, None, ctx).y[0] for n in range(DEPTH)]
        logits = [model.head(norm(h)) for norm, h in zip(model.body.heads, states, strict=True)]
        for t, target in enumerate(tokens[1:]):
            for n in range(DEPTH):
                nll[n].append(-float(logits[n][t].log_softmax(-1)[target]))
            for n in range(DEPTH - 1):
                sure = float(torch.sigmoid(model.body.rule.confidence.unit(states[n][t])))
                agrees = int(logits[n][t].argmax()) == int(logits[-1][t].argmax())
                wrong[n].append(-math.log(sure if agrees else 1 - sure))
    return nll, wrong


@pytest.mark.parametrize("training", [False, True])
def test_the_loss_is_that_of_all_exits_and_of_the_probe(training: bool, float64: None) -> None:
    model = build(ConfidenceThreshold(Probe(D), 0.5), weights="linear", alpha=0.3).train(training)
    with torch.no_grad():
        loss, (nll, wrong) = model(BATCH), naive(model)
    count = len(nll[0])
    exits = sum((n + 1) * sum(exit_nll) for n, exit_nll in enumerate(nll)) / count / 10
    leaving = sum(sum(exit_nll) for exit_nll in wrong) / count / (DEPTH - 1)
    assert int(loss.count) == count == 9
    assert float(loss.parts["exits"]) == pytest.approx(exits, rel=1e-12)
    assert float(loss.parts["nll"]) == pytest.approx(sum(nll[-1]) / count, rel=1e-12)
    assert float(loss.parts["leaving"]) == pytest.approx(leaving, rel=1e-12)
    assert float(loss.total) == pytest.approx(exits + 0.3 * leaving, rel=1e-12)


def test_the_probe_learns_and_teaches_nothing_beneath(float64: None) -> None:
    model = build(ConfidenceThreshold(Probe(D), 0.5))
    parts = model(BATCH).parts
    own = list(model.body.rule.parameters())
    frozen = [p for p in model.parameters() if all(p is not weight for weight in own)]
    gradients = torch.autograd.grad(parts["leaving"], own + frozen, allow_unused=True, retain_graph=True)
    assert all(g is not None and g.any() for g in gradients[: len(own)])
    assert all(g is None for g in gradients[len(own) :])
    gradients = torch.autograd.grad(parts["exits"], [layer.layers[1].up.weight for layer in model.body.layers])
    assert all(g.any() for g in gradients), "every layer learns by the exits above it"


def test_a_balanced_probe_weighs_each_layer_s_classes_by_the_other_s_share(float64: None) -> None:
    states, logits = [torch.randn(2, 5, D) for _ in range(3)], [torch.randn(2, 5, 3) for _ in range(3)]
    targets = torch.tensor([[0, 1, 2, 0, -1], [1, 2, -1, -1, -1]])
    plain, balanced = Probe(D), Probe(D, balance=True, depth=3)
    balanced.load_state_dict(plain.state_dict(), strict=False)
    first, last = balanced.loss(states, logits, targets), logits[-1].argmax(-1)
    agrees = [exit_logits.argmax(-1) == last for exit_logits in logits[:2]]
    shares = [float(exit_logits[targets >= 0].double().mean()) for exit_logits in agrees]
    torch.testing.assert_close(first, plain.loss(states, logits, targets) / 2)  # before the first step both count alike
    with torch.no_grad():
        balanced.after_step(0.0, balanced.stats(logits, targets))
    losses = balanced.loss(states, logits, targets)
    assert 0 < shares[0] < 1 and 0 < shares[1] < 1 and shares[0] != shares[1]
    for b, t in (targets >= 0).nonzero().tolist():
        total = 0.0
        for n in range(2):
            sure, yes = float(plain([states[n]])[b, t].detach()), bool(agrees[n][b, t])
            total -= (1 - shares[n]) * math.log(sure) if yes else shares[n] * math.log(1 - sure)
        assert float(losses[b, t].detach()) == pytest.approx(total / 2, rel=1e-12)


@torch.no_grad()
def test_the_shares_of_a_balanced_probe_are_a_running_mean_over_whole_batches(float64: None) -> None:
    probe, pieces = Probe(D, balance=True, depth=3), []
    for count in (2, 6):  # the first batch comes in two pieces, the second at once
        logits = [torch.randn(count, 5, 3) for _ in range(3)]
        targets = torch.randint(-1, 3, (count, 5))
        halves = [slice(0, 1), slice(1, None)] if count == 2 else [slice(None)]
        stats = [
            probe.stats([exit_logits[rows] for exit_logits in logits], targets[rows])["agreeing"] for rows in halves
        ]
        probe.after_step(0.0, {"agreeing": torch.stack(stats).sum(0)})
        agrees = [
            (exit_logits.argmax(-1) == logits[-1].argmax(-1))[targets >= 0].double().mean()
            for exit_logits in logits[:2]
        ]
        pieces.append(torch.stack(agrees))
    torch.testing.assert_close(probe.share, 0.9 * pieces[0] + 0.1 * pieces[1])
    before = probe.share.clone()
    probe.after_step(0.0, probe.stats(logits, torch.full_like(targets, -1)))  # no targets
    assert torch.equal(probe.share, before)
    with pytest.raises(ValueError, match=r"Probe\(depth=3\) does not fit .*: got 2 layers, expected 3. Pass depth=2"):
        probe.loss([torch.zeros(6, 5, D)] * 2, logits[:2], targets)
    with pytest.raises(ValueError, match=r"balance=True needs the number of layers: got depth=None, .* Pass depth="):
        Probe(D, balance=True)


def test_the_loss_of_a_rule_is_weighed_by_alpha_alone() -> None:
    with pytest.raises(ValueError, match=r"'leaving' has another keyword for its weight; give alpha=2.0"):
        build(ConfidenceThreshold(Probe(D), 0.5), penalties={"leaving": 2.0})


def test_in_training_nobody_leaves_an_lm_either(float64: None) -> None:
    """The loss of the last exit goes through all layers, not through those that a token happened to take."""
    body = EarlyExit(blocks(), LayerNorm(D), ConfidenceThreshold(SoftmaxResponse(), 0.0))
    model = LM(7, D, body)
    model(BATCH).total.backward()
    assert all(layer.layers[1].up.weight.grad.any() for layer in body.layers)
    assert float(model(BATCH).parts["exit"]) == DEPTH and float(model.eval()(BATCH).parts["exit"]) == 1


def test_judged_are_the_bits_of_who_left_and_the_layers_that_were_taken(float64: None) -> None:
    model = build(ConfidenceThreshold(SoftmaxResponse(), 0.2)).eval()
    with torch.no_grad():
        judged, out = model.judge(BATCH).totals, model.logits(BATCH[:, :-1])
    real = BATCH[:, 1:].masked_fill(BATCH[:, :-1] < 0, -1) >= 0
    bits = -out.y.log_softmax(-1).gather(-1, BATCH[:, 1:].clamp_min(0)[..., None])[..., 0] / math.log(2)
    assert list(judged) == ["bits per byte", "layers"]
    assert torch.allclose(judged["bits per byte"][0], bits[real].sum())
    assert judged["layers"][0] == out.aux["exit"][real].sum() and judged["layers"][1] == real.sum()
    assert DEPTH < judged["layers"][0] / judged["layers"][1] * DEPTH < DEPTH * DEPTH


@torch.no_grad()
def test_beyond_its_learned_positions_it_is_judged_in_windows(float64: None) -> None:
    """Each time the table is full its last half is read again from position 0; the layers of both are counted."""
    model = calm(d=16, depth=3, heads=2, threshold=0.9, temperature=None, length=4, vocab=7).eval()
    model.embedding.weight.mul_(0.4 / model.embedding.weight.std())
    batch = torch.randint(0, 7, (2, 8))
    with pytest.warns(UserWarning, match="more than the 4 positions"):
        judged = model.judge(batch).totals
    bits, layers = 0.0, 0.0
    for first, last in ((0, 4), (2, 6), (4, 8)):
        out = model.logits(batch[:, first : min(last, 7)])
        new = slice(0 if first == 0 else 2, None)
        log_p = out.y.log_softmax(-1)[:, new]
        targets = batch[:, first + 1 :][:, : out.y.shape[1]][:, new]
        bits -= float(log_p.gather(-1, targets[..., None]).sum()) / math.log(2)
        layers += float(out.aux["exit"][:, new].sum())
    assert float(judged["bits per byte"][0]) == pytest.approx(bits) and float(judged["layers"][0]) == layers
    assert 14 < layers < 3 * 14 and int(judged["layers"][1]) == 14


def test_a_body_without_exits_and_other_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="^body is of the type Stack; give an EarlyExit"):
        unchecked(MultiExit.__init__)(torch.nn.Module.__new__(MultiExit), 7, D, Stack(blocks()))
    with pytest.raises(ValueError, match="alpha=-1.0"):
        build(ConfidenceThreshold(SoftmaxResponse(), 0.2), alpha=-1.0)


@pytest.mark.parametrize("training", [False, True])
def test_padding_behind_a_row_changes_nothing_of_the_loss(training: bool, float64: None) -> None:
    """What the layers report of a token that predicts none, a row's last one, is as if it had not been read."""
    torch.manual_seed(0)
    block = PostNorm(Attention(QKV(D, 2), Softmax(Causal())), MLP(D))
    layers = [ACT(Universal(block, 3), Halting(D, bias=-1.0)) for _ in range(2)]
    body = EarlyExit(layers, LayerNorm(D), ConfidenceThreshold(Probe(D), 0.5))
    model = MultiExit(7, D, body, penalties={"ponder": 0.5}).train(training)
    behind = torch.cat([BATCH, torch.full((2, 3), -1)], 1)
    with torch.no_grad():
        ours, theirs = model(BATCH), model(behind)
    assert float(ours.parts["ponder"]) > 0
    for name, part in ours.parts.items():
        torch.testing.assert_close(theirs.parts[name], part, msg=name)
    torch.testing.assert_close(theirs.total, ours.total)


class Around(Layer):
    """A body with a part inside, which it does not read."""

    def __init__(self, part: Layer):
        super().__init__()
        self.d, self.part = part.d, part

    def forward(self, x: torch.Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x, state)


@pytest.mark.parametrize("rule", [lambda: ConfidenceThreshold(Probe(D), 0.5), lambda: Geometric(D, DEPTH)])
def test_a_rule_that_a_model_would_leave_untrained_is_refused(rule: Callable[[], ExitRule]) -> None:
    body, plain, named = EarlyExit(blocks(), LayerNorm(D), rule()), Stack(blocks()), type(rule()).__name__
    with pytest.raises(ValueError, match=f"^MultiExitSeq2Seq does not train {named}"):
        MultiExitSeq2Seq(7, D, body, EarlyExit(blocks(), LayerNorm(D), ConfidenceThreshold(SoftmaxResponse(), 0.5)))
    with pytest.raises(ValueError, match=rf"^LM does not train {named}.*; use MultiExit instead$"):
        LM(7, D, Around(body))
    for encoder, decoder in ((body, plain), (plain, body)):
        with pytest.raises(ValueError, match=f"^Seq2Seq does not train {named}.*; use MultiExitSeq2Seq instead$"):
            Seq2Seq(7, D, encoder, decoder)
    inside = EarlyExit([Around(body)] * 2, LayerNorm(D), ConfidenceThreshold(SoftmaxResponse(), 0.5))
    with pytest.raises(ValueError, match=f"^MultiExit does not train {named}"):
        MultiExit(7, D, inside)
    MultiExit(7, D, body)
    body.rule.requires_grad_(False)
    LM(7, D, body)


def test_a_rule_that_reads_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^MultiExit has no source, which BySequence reads[^\n]*$"):
        build(BySequence(D, DEPTH))


@pytest.mark.parametrize("confidence", ["softmax_response", "saturation", "probe"])
def test_calm_writes_the_same_with_and_without_a_state(confidence: str) -> None:
    model = calm(d=16, depth=4, heads=2, confidence=confidence, threshold=0.3, temperature=4.0, length=20, vocab=11)
    model, prompt = model.double(), torch.tensor([[3, 1, 4], [-1, 1, 5]])
    rows = generate(model, prompt, 8, temperature=0)
    assert torch.equal(rows, generate(model, prompt, 8, temperature=0, recompute=True))
