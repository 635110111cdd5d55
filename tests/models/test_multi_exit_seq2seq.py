"""MultiExitSeq2Seq: its loss from the equations, the one exit of a row, what it teaches, and what it writes."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.token_positions import context_of_tokens
from kinformer.decoding.generate import generate
from kinformer.members.calm import calm
from kinformer.members.depth_adaptive import depth_adaptive
from kinformer.models.multi_exit_seq2seq import MultiExitSeq2Seq
from kinformer.models.seq2seq import frame_target
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.depth.stack import Stack
from kinformer.nn.exits.by_sequence import BySequence
from kinformer.nn.exits.confidence import SoftmaxResponse
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.multinomial import Multinomial
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.losses.exit_oracles import Correctness, Likelihood
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV

D, DEPTH, VOCAB = 8, 3, 5
SOURCE = torch.tensor([[3, 1, 4, 1, 0], [-1, 2, 4, 3, -1], [0, 0, 2, -1, -1]])
TARGET = torch.tensor([[3, 1, 4, 1], [-1, 2, 0, -1], [-1, -1, -1, -1]])


def build(rule: ExitRule, **keywords: object) -> MultiExitSeq2Seq:
    def block() -> PreNorm:
        layers = Attention(QKV(D, 2), Softmax(Causal())), Attention(QKV(D, 2), Softmax(Full()), cross=True)
        return PreNorm(*layers, MLP(D))

    encoder = PreNorm(Attention(QKV(D, 2), Softmax(Full())), MLP(D))
    norms = [LayerNorm(D) for _ in range(DEPTH)]
    model = MultiExitSeq2Seq(VOCAB, D, encoder, EarlyExit([block() for _ in norms], norms, rule), **keywords)
    for p in model.parameters():  # an untrained model would be sure of nothing, and its norms would be alike
        torch.nn.init.normal_(p)
    return model


@torch.no_grad()
def naive(model: MultiExitSeq2Seq, price: float, correct: bool) -> tuple[list[list[float]], list[float], list[int]]:
    """By exit its NLL of each target; for each target -log q of its row's best exit; and those exits, from 1."""
    nll: list[list[float]] = [[] for _ in range(DEPTH)]
    leaving, exits = [], []
    for source, target in zip(SOURCE[:2], TARGET[:2], strict=True):
        source, target = source[source >= 0], target[target >= 0]
        s = model.encoder(model.embedding(source)[None]).y
        read, targets = torch.cat([torch.tensor([VOCAB + 1]), target]), torch.cat([target, torch.tensor([VOCAB])])
        ctx = Context(torch.arange(len(read))[None], run=True, source=s, source_pos=torch.arange(len(source))[None])
        x, merits = model.embedding(read)[None], []
        for n in range(DEPTH):
            h = Stack(model.decoder.layers[: n + 1])(x, None, ctx).y[0]
            scores = (model.decoder.heads[n](h) @ model.embedding.weight.T)[:, : VOCAB + 1]  # begin is never written
            log_p = scores.log_softmax(-1)
            each = [float(log_p[t, y]) for t, y in enumerate(targets)]
            nll[n] += [-value for value in each]
            right = sum(int(log_p[t].argmax()) == int(y) for t, y in enumerate(targets))
            merits.append((right if correct else sum(each)) - price * (n + 1))
        best = merits.index(max(merits))
        unit, mean = model.decoder.rule.choice, s[0].sum(0) / len(source)
        logit = [float(unit.weight[n] @ mean + unit.bias[n]) for n in range(DEPTH)]
        log_q = logit[best] - math.log(sum(math.exp(value) for value in logit))
        leaving += [-log_q] * len(targets)
        exits.append(logit.index(max(logit)) + 1)
    return nll, leaving, exits


@pytest.mark.parametrize("correct", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_loss_is_that_of_all_exits_and_of_the_row_s_best(training: bool, correct: bool, float64: None) -> None:
    """Equations 4, 6 to 10 over rows without padding; a row without a target has no loss, padding changes nothing."""
    for price in (0.0, 0.7, 100.0):
        oracle = (Correctness if correct else Likelihood)(price)
        model = build(BySequence(D, DEPTH, oracle=oracle), weights="sqrt", alpha=0.3).train(training)
        with torch.no_grad():
            loss = model((SOURCE, TARGET))
        nll, leaving, _ = naive(model, price, correct)
        count, w = len(leaving), [math.sqrt(n + 1) for n in range(DEPTH)]
        exits = sum(w[n] * sum(exit_nll) for n, exit_nll in enumerate(nll)) / sum(w) / count
        assert int(loss.count) == count == 8
        assert float(loss.parts["exits"]) == pytest.approx(exits, rel=1e-12)
        assert float(loss.parts["nll"]) == pytest.approx(sum(nll[-1]) / count, rel=1e-12)
        assert float(loss.parts["leaving"]) == pytest.approx(sum(leaving) / count, rel=1e-12)
        assert float(loss.total) == pytest.approx(exits + 0.3 * sum(leaving) / count, rel=1e-12)


@torch.no_grad()
def test_smoothing_is_of_every_exit(float64: None) -> None:
    """A share of each target's probability is spread over all entries."""
    model = build(BySequence(D, DEPTH), smoothing=0.6)
    taps = tuple(map(str, range(DEPTH)))
    read, targets = frame_target(TARGET, (VOCAB + 1,), VOCAB)
    encoded, pos = model.encode(SOURCE)
    ctx = context_of_tokens(read).replace(source=encoded.y, source_pos=pos, taps=taps)
    out = model.logits(read, None, ctx)
    want = 0.0
    for n in range(DEPTH):
        log_p = model.head(model.decoder.heads[n](out.taps[str(n)])).log_softmax(-1)
        right = log_p.gather(-1, targets.clamp_min(0)[..., None])[..., 0]
        want -= float((0.4 * right + 0.6 * log_p.mean(-1))[targets >= 0].mean()) / DEPTH
    assert float(model((SOURCE, TARGET)).parts["exits"]) == pytest.approx(want, rel=1e-12)


def test_what_the_row_s_classifier_learns_from_reaches_the_encoder_and_no_decoder(float64: None) -> None:
    """The paper's exit loss is propagated to what it reads; the decoder is not read."""
    model = build(BySequence(D, DEPTH))
    leaving = model((SOURCE, TARGET)).parts["leaving"]
    for part, reached in ((model.decoder.rule, True), (model.encoder, True), (model.decoder.layers, False)):
        gradients = torch.autograd.grad(leaving, list(part.parameters()), allow_unused=True, retain_graph=True)
        assert any(g is not None and g.any() for g in gradients) is reached


def test_a_row_leaves_at_its_exit_in_one_call_and_token_by_token(float64: None) -> None:
    model, exits_seen = build(BySequence(D, DEPTH)), set()
    for seed in range(8):
        torch.manual_seed(seed)
        torch.nn.init.normal_(model.decoder.rule.choice.weight, std=3.0)
        if exits_seen == {1, 2, 3}:
            break
        exits = naive(model, 0.0, False)[2]
        model.eval()
        with torch.no_grad():
            out = model.logits(torch.full((2, 1), VOCAB + 1), source=SOURCE[:2])
        assert out.aux["exit"][:, 0].tolist() == exits
        exits_seen |= set(exits)
        rows = generate(model, None, 5, temperature=0, source=SOURCE[:2])
        assert torch.equal(rows, generate(model, None, 5, temperature=0, source=SOURCE[:2], recompute=True))
    assert exits_seen == {1, 2, 3}


def test_judged_are_the_bits_of_who_left_and_the_layers_that_were_taken(float64: None) -> None:
    model = build(ConfidenceThreshold(SoftmaxResponse(), 0.75)).eval()
    with torch.no_grad():
        judged = model.judge((SOURCE, TARGET)).totals
        read = torch.cat([torch.full((2, 1), VOCAB + 1), TARGET[:2]], 1)[:1]
        out = model.logits(read, source=SOURCE[:1])
    targets = torch.tensor([*TARGET[0], VOCAB])
    totals = model.judge((SOURCE[:1], TARGET[:1])).totals
    bits = -out.y[0].log_softmax(-1)[torch.arange(5), targets].sum() / math.log(2)
    assert list(judged) == ["bits per token", "layers"]
    assert torch.allclose(totals["bits per token"][0], bits) and totals["layers"][0] == out.aux["exit"].sum()
    assert judged["layers"][1] == 8 and 8 < judged["layers"][0] < 24


def test_who_is_sure_never_counts_what_is_never_written(float64: None) -> None:
    """The entry that is only read has the largest score of all, and takes no share of a probability."""
    model = build(ConfidenceThreshold(SoftmaxResponse(), 0.9)).eval()
    with torch.no_grad():
        want = model.logits(TARGET[:1], source=SOURCE[:1])
        before = want.aux["exit"]
        model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
        model.head.weight[-1] = 100 * model.head.weight[0].abs()
        out = model.logits(TARGET[:1], source=SOURCE[:1])
    assert torch.equal(out.aux["exit"], before) and torch.equal(out.y, want.y)


@pytest.mark.parametrize("rule", [lambda: BySequence(D, DEPTH), lambda: Multinomial(D, DEPTH)])
def test_padding_changes_nothing_of_the_loss(rule: Callable[[], ExitRule], float64: None) -> None:
    model = build(rule())
    wide = [torch.cat([torch.full((3, 1), -1), batch, torch.full((3, 2), -1)], 1) for batch in (SOURCE, TARGET)]
    with torch.no_grad():
        ours, theirs = model((SOURCE, TARGET)), model((wide[0], wide[1]))
    for name, part in ours.parts.items():
        torch.testing.assert_close(theirs.parts[name], part, msg=name)


def test_an_oracle_that_smooths_over_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^sigma=2.0 smooths over tokens[^\n]*$"):
        BySequence(D, DEPTH, oracle=Likelihood(sigma=2.0))
    with pytest.raises(ValueError, match="add form=encoder_decoder$"):
        depth_adaptive(d=16, heads=2, classifier="sequence")


def taught(seed: int, price: float) -> Tensor:
    """The layers that rows take, by whether their source begins with 0, after a training in which those are easy."""
    torch.manual_seed(seed)
    model = depth_adaptive(
        d=16, depth=3, heads=2, form="encoder_decoder", classifier="sequence", price=price, length=16, vocab=7
    )
    optimiser, g = torch.optim.Adam(model.parameters(), 1e-2), torch.Generator().manual_seed(seed)
    for _ in range(30):
        source = torch.randint(1, 7, (16, 4), generator=g)
        loss = model((source, source))
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
    layers, count = model.eval().judge((source, source)).totals["layers"]
    return layers / count


def test_rows_whose_layers_cost_more_take_fewer() -> None:
    assert float(taught(0, 1000.0)) == 1 < float(taught(0, 0.0))


@pytest.mark.parametrize("make", [calm, depth_adaptive])
def test_members_read_pairs(make: Callable) -> None:
    tiny = {"d": 16, "depth": 3, "heads": 2, "vocab": 7}
    model = make(**tiny, form="encoder_decoder", norm="post", position="sinusoidal")
    assert isinstance(model, MultiExitSeq2Seq) and model.reads == "pairs"
    assert model.encoder.layers[0].layers[0].mechanism.pattern == Full()
    windowed = make(**tiny, form="encoder_decoder", pattern="Band(2)")
    assert windowed.decoder.layers[0].layers[0].mechanism.pattern == (Causal() & Band(2))
