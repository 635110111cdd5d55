"""Exit rules and confidences against their equations."""

import copy
import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.layer import Context, Layer, Out, State
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.exits.by_sequence import BySequence, SequenceExitState
from kinformer.nn.exits.confidence import Confidence, Probe, Saturation, SoftmaxProbability, SoftmaxResponse
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.decaying_threshold import DecayingThreshold
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.exits_at import ExitsAt
from kinformer.nn.exits.geometric import Geometric
from kinformer.nn.exits.linear_shortcut import LinearShortcut
from kinformer.nn.exits.multinomial import Multinomial
from kinformer.nn.exits.never_exit import NeverExit
from kinformer.nn.exits.tuned_lens import TunedLens
from kinformer.nn.exits.uniform_exit import UniformExit
from kinformer.nn.norms.layer import LayerNorm

D, DEPTH = 6, 4
POS = torch.arange(5).expand(2, 5)
CTX = Context(POS)


def states() -> list[Tensor]:
    return [3 * torch.randn(2, 5, D) for _ in range(DEPTH)]


@pytest.mark.parametrize("shared", [True, False])
def test_geometric_is_the_product_of_not_stopping_before(shared: bool, float64: None) -> None:
    rule, hs = Geometric(D, DEPTH, shared=shared).requires_grad_(False), states()
    q = rule.log_q(hs).exp()
    assert len(rule.stop) == (1 if shared else DEPTH - 1)
    for b in range(2):
        for t in range(5):
            on = 1.0
            for n in range(DEPTH):
                unit = rule.stop[0 if shared else min(n, DEPTH - 2)]
                x = float(torch.sigmoid(unit(hs[n][b, t]))) if n < DEPTH - 1 else 1.0
                assert math.isclose(float(q[b, t, n]), on * x, rel_tol=1e-10)
                if n < DEPTH - 1:
                    assert bool(rule(hs[: n + 1], CTX, ())[b, t]) is (x > 0.5)
                on *= 1 - x


def test_multinomial_leaves_at_the_likeliest_by_the_first_state(float64: None) -> None:
    rule, hs = Multinomial(D, DEPTH), states()
    likeliest = rule.log_q(hs).exp().argmax(-1) + 1
    assert len(likeliest.unique()) > 1
    assert torch.allclose(rule.log_q(hs).exp(), (hs[0] @ rule.choice.weight.T + rule.choice.bias).softmax(-1))
    for n in range(1, DEPTH):
        assert torch.equal(rule(hs[:n], CTX, ()), likeliest <= n)


def test_by_sequence_reads_the_mean_of_the_source_and_keeps_its_choice(float64: None) -> None:
    rule, hs, source = BySequence(D, DEPTH), states(), 3 * torch.randn(2, 7, D)
    source_pos = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [-1, -1, 0, 1, 2, -1, -1]])
    mean = torch.stack([source[0].mean(0), source[1, 2:5].mean(0)])
    expected = (mean @ rule.choice.weight.T + rule.choice.bias).softmax(-1)
    assert torch.allclose(rule.log_q(source, source_pos).exp(), expected)
    state = rule.begin_call(rule.start(2), Context(POS, source=source, source_pos=source_pos), hs[0])
    assert torch.equal(state.exit, expected.argmax(-1) + 1)
    assert rule.begin_call(state, Context(POS), hs[0]) is state
    for n in range(1, DEPTH):
        assert torch.equal(rule(hs[:n], CTX, state), (state.exit <= n)[:, None].expand(2, 5))
    with pytest.raises(ValueError, match="got no source"):
        rule.begin_call(SequenceExitState(torch.tensor([2, 0])), Context(POS), hs[0])


def test_confidences(float64: None) -> None:
    hs = states()
    head = nn.Linear(D, 9)
    best = head(hs[1]).softmax(-1).sort(-1).values
    for read in (SoftmaxResponse(head)(hs[:2]), SoftmaxResponse()(hs[:2], head)):
        assert torch.allclose(read, best[..., -1] - best[..., -2])
    for read in (SoftmaxProbability(head)(hs[:2]), SoftmaxProbability()(hs[:2], head)):
        assert torch.allclose(read, best[..., -1])
    with pytest.raises(ValueError, match=r"Pass a head: SoftmaxProbability\(head\)"):
        SoftmaxProbability()(hs)
    dot = (hs[1] * hs[0]).sum(-1) / (hs[1].norm(dim=-1) * hs[0].norm(dim=-1))
    assert torch.allclose(Saturation()(hs[:2]), dot)
    assert (Saturation()(hs[:1]) == -torch.inf).all(), "the first possible exit is layer 2"
    probe = Probe(D)
    assert torch.allclose(probe(hs[:2]), torch.sigmoid(hs[1] @ probe.unit.weight[0] + probe.unit.bias))


def test_leaving_at_the_threshold_or_above_it() -> None:
    at = torch.tensor([[[0.25, 0.5, 0.75]]]).logit()[..., None][0]  # the probabilities 0.25, 0.5, 0.75 of one row

    class Itself(SoftmaxResponse):
        def forward(self, states: list[Tensor], head: object = None) -> Tensor:
            return states[-1][..., 0].sigmoid()

    sure, ctx = Itself(nn.Identity()), Context(torch.arange(3)[None])
    assert ConfidenceThreshold(sure, 0.5)([at], ctx, ()).tolist() == [[False, True, True]]
    assert ConfidenceThreshold(sure, 0.5, strict=True)([at], ctx, ()).tolist() == [[False, False, True]]
    assert ConfidenceThreshold(sure, DecayingThreshold(0.5, 10))([at], ctx, ()).tolist() == [[False, False, True]]


def test_a_threshold_that_decays() -> None:
    pos = torch.tensor([[-1, 0, 5, 20]])
    for form, most in (("paper", 1.0), ("code", 0.6)):
        expected = [0.54 + 0.1 * most * math.exp(-4 * t / 20) for t in (0, 0, 5, 20)]
        assert DecayingThreshold(0.6, 20, form=form)(pos)[0].tolist() == pytest.approx(expected)
    assert DecayingThreshold(1.2, 20)(pos).max() == 1.0


def test_in_bfloat16_who_is_sure_is_decided_in_float32() -> None:
    """Confidences near 1 are one number in bfloat16: those leave that do in float64."""
    g = torch.Generator().manual_seed(0)
    low = torch.randn(64, 64, 2, generator=g).bfloat16()
    logits, at = torch.cat([low + 3.0, low.flip(-1) - 3.0], -1).bfloat16(), Context(torch.arange(64).expand(64, -1))
    for confidence, states in (
        (SoftmaxResponse(nn.Identity()), [logits]),
        (Saturation(), [logits, (logits + 0.05 * torch.randn(logits.shape, generator=g)).bfloat16()]),
        (Probe(4).bfloat16(), [logits]),
    ):
        exact = copy.deepcopy(confidence).double()([state.double() for state in states]).detach()
        sure, threshold = confidence(states), float(exact.quantile(0.35))
        assert sure.dtype == torch.float32
        assert torch.allclose(sure.double(), exact, atol=1e-6)
        leaving, clear = ConfidenceThreshold(confidence, threshold)(states, at, ()), (exact - threshold).abs() > 1e-5
        assert clear.double().mean() > 0.9
        assert torch.equal(leaving[clear], (exact >= threshold)[clear])


def test_logits_of_a_softmax_response_are_computed_in_float32() -> None:
    """A norm and a head in bfloat16, and under autocast: as in float64, by the same weights and states."""
    g = torch.Generator().manual_seed(0)
    norm, head, state = LayerNorm(32), nn.Linear(32, 64), 3 * torch.randn(8, 64, 32, generator=g)
    for low in (True, False):
        if low:
            norm, head, state = norm.bfloat16(), head.bfloat16(), state.bfloat16()
        read = [copy.deepcopy(norm), copy.deepcopy(head)]
        exact = SoftmaxResponse()([state.double()], nn.Sequential(*(part.double() for part in read))).detach()
        body = EarlyExit(
            [Same(32)] * 2, norm, ConfidenceThreshold(SoftmaxResponse(), float(exact.quantile(0.35)))
        ).eval()
        probabilities: list[Tensor] = []
        body.rule.confidence.register_forward_hook(
            lambda _, inputs, sure, probabilities=probabilities: probabilities.append(sure)
        )
        ctx = Context(torch.arange(64).expand(8, -1), run=True, head=head)
        with torch.autocast("cpu", torch.bfloat16, enabled=not low):
            body(state, None, ctx)
            probabilities.append(SoftmaxResponse(nn.Sequential(norm, head))([state]))
        for sure in probabilities:
            assert sure.dtype == torch.float32 and torch.allclose(sure.double(), exact, atol=1e-5)
        norm, head, state = norm.float(), head.float(), state.float()


class Same(Layer):
    """Gives back what it gets."""

    def __init__(self, d: int):
        super().__init__()
        self.d = d

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        return Out(x, state)


def test_a_threshold_for_each_layer() -> None:
    sure = [torch.tensor([[0.3, 0.6, 0.9]])[..., None].logit()] * 3
    probe = Probe(1).requires_grad_(False)
    probe.unit.weight.fill_(1.0)
    probe.unit.bias.fill_(0.0)
    by_layer = ConfidenceThreshold(probe, (0.8, 0.5))
    stop = Geometric(1, 3, threshold=(0.8, 0.5))
    stop.stop[0].load_state_dict(probe.unit.state_dict())
    ctx = Context(torch.arange(3)[None])
    for rule in (by_layer, stop):
        assert rule(sure[:1], ctx, ()).tolist() == [[False, False, True]]
        assert rule(sure[:2], ctx, ()).tolist() == [[False, True, True]]
        with pytest.raises(ValueError, match="^no exit threshold for layer 3: got 2 thresholds, expected at least 3"):
            rule(sure, ctx, ())
    with pytest.raises(ValueError, match=r"threshold\[1\]=2.0"):
        Geometric(1, 3, threshold=(0.8, 2.0))


def test_decisions_are_made_in_float32_under_autocast() -> None:
    state = torch.randn(2, 5, D)
    for rule in (Geometric(D, DEPTH), Multinomial(D, DEPTH)):
        plain = rule.log_q([state] * DEPTH)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(rule.log_q([state] * DEPTH), plain)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"form": "spec"}, "'paper' or 'code'"),
        ({"threshold": -1.0}, "threshold=-1.0"),
        ({"length": 0}, "length=0"),
        ({"temperature": -2.0}, "temperature=-2.0"),
    ],
)
def test_a_threshold_that_means_nothing_is_refused(keywords: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DecayingThreshold.__post_init__(SimpleNamespace(**{**vars(DecayingThreshold(0.9, 20)), **keywords}))


@pytest.mark.parametrize("confidence", [SoftmaxResponse, SoftmaxProbability, lambda: Probe(D), Saturation])
def test_a_threshold_that_a_confidence_cannot_reach_is_refused(confidence: Callable[[], Confidence]) -> None:
    for threshold in (1.5, (0.5, 1.5), -3.0, DecayingThreshold(1.5, 10)):
        with pytest.raises(ValueError, match=r"^threshold.*: give a number from (-1|0) to 1$"):
            ConfidenceThreshold(confidence(), threshold)
    ConfidenceThreshold(confidence(), (0.0, 1.0))
    ConfidenceThreshold(Saturation(), -1.0)


def test_one_token_alone_has_no_rival() -> None:
    assert (SoftmaxResponse(nn.Linear(D, 1))(states()[:1]) == 1).all()


@pytest.mark.parametrize("rule", [BySequence, ConfidenceThreshold, Geometric, Multinomial, NeverExit, UniformExit])
def test_a_rule_is_always_given_its_state(rule: type[ExitRule]) -> None:
    assert inspect.signature(rule.forward).parameters["rule_state"].default is inspect.Parameter.empty


def test_exits_at_asks_its_rule_only_after_the_given_layers(float64: None) -> None:
    inner, hs = ConfidenceThreshold(Saturation(), 0.1), states()
    rule = ExitsAt(inner, (2, 3))
    rule.check_sizes(D, DEPTH)
    for n in range(1, DEPTH):
        leaves, sure = rule(hs[:n], CTX, ()), rule.compute_confidence(hs[:n])
        if n in (2, 3):
            assert torch.equal(leaves, inner(hs[:n], CTX, ()))
            assert torch.equal(sure, inner.compute_confidence(hs[:n]))
        else:
            assert not leaves.any()
            assert (sure == -torch.inf).all()
    rule.leave_at(-1.0)
    assert rule(hs[:2], CTX, ()).all()
    assert not rule(hs[:1], CTX, ()).any()
    assert rule.grid(5) == inner.grid(5)


def test_exits_at_refuses_layers_that_do_not_exist() -> None:
    inner = ConfidenceThreshold(Saturation(), 0.1)
    for layers in ((), (0, 2)):
        with pytest.raises(ValueError, match="wrong layers for exits"):
            ExitsAt(inner, layers)
    with pytest.raises(ValueError, match=f"got {DEPTH}, expected numbers from 1 to {DEPTH - 1}"):
        ExitsAt(inner, (DEPTH,)).check_sizes(D, DEPTH)


def test_a_tuned_lens_starts_as_its_norm_and_takes_a_map(float64: None) -> None:
    norm, h = LayerNorm(D), torch.randn(3, D)
    for rank in (None, 2):
        lens = TunedLens(D, norm, rank=rank)
        assert torch.equal(lens(h), norm(h))
        matrix, bias = torch.randn(D, 2) @ torch.randn(2, D), torch.randn(D)
        lens.translator.set_map(matrix, bias, torch.randn(D, D))
        assert torch.allclose(lens(h), norm(h) + norm(h) @ matrix.T + bias, atol=1e-10)


def test_a_shortcut_of_low_rank_is_the_nearest_in_its_metric(float64: None) -> None:
    matrix, metric = torch.randn(D, D), torch.randn(D, D)

    def error(a: Tensor) -> float:
        return float((metric @ (a - matrix)).square().sum())

    shortcut = LinearShortcut(D, rank=2)
    shortcut.set_map(matrix, torch.zeros(D), metric)
    best = error((shortcut.map.weight @ shortcut.low.weight).detach())
    singular = torch.linalg.svdvals(metric @ matrix)
    assert math.isclose(best, float(singular[2:].square().sum()), rel_tol=1e-9)
