"""Evolving and predictive attention: their equations by loops over positions, cuts, orders of columns, and refusals."""

import inspect
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context, PerPair, State
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
from kinformer.core.state import leaves, reset
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.convolved_scores import ConvolvedScores
from kinformer.nn.mechanisms.evolving import EvolvingAttention
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.predictive import PredictiveAttention
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")

PLAIN = torch.arange(7).repeat(3, 1)
PADDED = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [-1, -1, 0, 1, 2, 3, 4], [0, 1, 2, 3, -1, -1, -1]])
KINDS = {"evolving": EvolvingAttention, "predictive": PredictiveAttention}
STEPS = {
    "centred": (range(-1, 2), range(-1, 2)),
    "causal": (range(-2, 1), range(-2, 1)),
    "cross": (range(-2, 1), range(-1, 2)),
}
READ = {"causal": Causal(), "window": Causal() & Band(2), "strided": Causal() & Strided(2), "full": Full()}


def naive(
    part: ConvolvedScores, q: Tensor, k: Tensor, below: Tensor, q_pos: Tensor, k_pos: Tensor, kernel: str
) -> Tensor:
    """The scores of the equations, pair by pair; a neighbour that is not there, or not to be read, counts as 0."""
    heads, (of_queries, of_keys) = q.shape[0], STEPS[kernel]
    evolving = isinstance(part, EvolvingAttention)
    allowed = part.pattern.matrix(10)
    at_q, at_k = ({p: n for n, p in enumerate(pos.tolist()) if p >= 0} for pos in (q_pos, k_pos))
    own = torch.stack([q[h] @ k[h].T / math.sqrt(q.shape[-1]) for h in range(heads)])
    inputs = part.alpha * below + (1 - part.alpha) * own if evolving else below
    weight, bias = part.convolution.conv.weight, part.convolution.conv.bias
    outputs = torch.zeros_like(own)
    for o, i, j in ((o, i, j) for o in range(heads) for i in at_q for j in at_k):
        total = bias[o].clone()
        for n, a in enumerate(of_queries):
            for m, b in enumerate(of_keys):
                is_inside = i + a in at_q and j + b in at_k and allowed[i + a, j + b]
                if is_inside and allowed[i, j + b] and (a == 0 or kernel == "cross" or allowed[i, i + a]):
                    total = total + weight[o, :, n, m] @ inputs[:, at_q[i + a], at_k[j + b]]
        g = total if total > 0 else part.convolution.slope * total
        mine, theirs = own[o, at_q[i], at_k[j]], inputs[o, at_q[i], at_k[j]]
        blended = part.beta * g + (1 - part.beta) * theirs if evolving else part.alpha * mine + (1 - part.alpha) * g
        outputs[o, at_q[i], at_k[j]] = blended
    return outputs


def draw_inputs(n_q: int, n_k: int, rows: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(rows, 2, n_q, 4), torch.randn(rows, 2, n_k, 4), torch.randn(rows, 2, n_q, n_k)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", ["centred", "causal"])
@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("ordered", [True, False])
def test_the_equation(kind: str, kernel: str, read: str, ordered: bool) -> None:
    """In the order of positions, and with columns in any order."""
    part = KINDS[kind](READ[read], 2, alpha=0.3, kernel=kernel, slope=0.2)
    q, k, below = draw_inputs(7, 7)
    pos = PADDED if ordered else PADDED[:, torch.randperm(7)]
    ctx = Context(pos, run=ordered)
    ctx = ctx.replace(below={"scores": PerPair(below, ctx.by_head, ctx.by_head)})
    out = part(Queries(q, ctx.by_head), Keys(k, k, ctx.by_head), None, ctx)
    for b in range(3):
        want = naive(part, q[b], k[b], below[b], pos[b], pos[b], kernel)
        where = part.pattern.matrix(10)[pos[b].clamp_min(0)][:, pos[b].clamp_min(0)] & (pos[b] >= 0)
        where &= (pos[b] >= 0)[:, None]
        torch.testing.assert_close(
            torch.where(where, out.up["scores"].scores[b], 0), torch.where(where, want, 0), rtol=0, atol=1e-12
        )
        weights = want.masked_fill(~where, -torch.inf).softmax(-1).nan_to_num(0)
        torch.testing.assert_close(out.y.y[b], weights @ k[b], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_across_sequences_with_a_state_and_without(kind: str) -> None:
    """Queries come in pieces and keep two rows of scores; keys are a source of another length."""
    part = KINDS[kind](Full(), 2, alpha=0.3, kernel="cross")
    layer = Attention(QKV(8, 2), part, cross=True, aggregation=Concat())
    x, source, below = torch.randn(2, 6, 8), torch.randn(2, 4, 8), torch.randn(2, 2, 6, 4)
    pos, source_pos = torch.arange(6).repeat(2, 1), torch.tensor([[0, 1, 2, 3], [-1, 0, 1, 2]])

    def call(lo: int, hi: int, state: State | None, is_told: bool):
        arguments = {"source": source, "source_pos": source_pos} if is_told else {}
        sent = {"scores": PerPair(below[:, :, lo:hi], pos[:, None, lo:hi], source_pos[:, None])}
        return layer(x[:, lo:hi], state, Context(pos[:, lo:hi], run=True, below=sent, **arguments))

    whole = call(0, 6, None, True)
    q, k = layer.projection.queries(x, pos).q, layer.projection.keys(source, source_pos).k
    for b in range(2):
        want = naive(part, q[b], k[b], below[b], pos[b], source_pos[b], "cross")
        real = source_pos[b] >= 0
        scores_of_row = whole.up["scores"].scores[b]
        torch.testing.assert_close(scores_of_row[..., real], want[..., real], rtol=0, atol=1e-12)
    state, parts = layer.start(2, 6), []
    for n, (lo, hi) in enumerate([(0, 1), (1, 4), (4, 5), (5, 6)]):
        out = call(lo, hi, state, not n)
        state, parts = out.state, [*parts, out.y]
    torch.testing.assert_close(torch.cat(parts, 1), whole.y, rtol=0, atol=1e-12)


def stack(pattern: Pattern, kind: str = "evolving", kernel: str = "causal", lowest: bool = True) -> Stack:
    def mechanism(n: int) -> Explicit | ConvolvedScores:
        return Explicit(pattern, up=True) if lowest and not n else KINDS[kind](pattern, 2, alpha=0.4, kernel=kernel)

    return Stack([PreNorm(Attention(QKV(16, 2), mechanism(n))) for n in range(2)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", ["centred", "causal"])
@pytest.mark.parametrize("read", ["causal", "window", "strided"])
def test_a_stack_can_be_cut_anywhere(kind: str, kernel: str, read: str) -> None:
    """Beneath its cache a layer keeps rows of scores; a row that is reset begins as a fresh one."""
    layers, x = stack(READ[read], kind, kernel), torch.randn(3, 7, 16)
    whole, real = layers(x, None, Context(PADDED, run=True)).y, PADDED >= 0
    for cuts in ([1] * 7, [2, 5]):
        state, parts = layers.start(3, 7), []
        for piece, pos in zip(x.split(cuts, 1), PADDED.split(cuts, 1), strict=True):
            out = layers(piece, state, Context(pos))
            state, parts = out.state, [*parts, out.y]
        torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real], rtol=0, atol=1e-12)
    state = reset(state, torch.tensor([True, False, False]))
    next_x, pos = torch.randn(3, 2, 16), torch.tensor([[0, 1], [5, 6], [4, 5]])
    after, fresh = layers(next_x, state, Context(pos)).y, layers(next_x, layers.start(3, 7), Context(pos)).y
    torch.testing.assert_close(after[0], fresh[0], rtol=0, atol=1e-12)
    assert not torch.allclose(after[1], fresh[1])


def test_the_rows_that_are_kept_are_few_and_are_needed() -> None:
    """Two rows of scores, of the keys that the cache keeps; without them the next token reads otherwise."""
    layers, x = stack(READ["window"], lowest=False), torch.randn(2, 7, 16)
    state = layers(x[:, :6], layers.start(2, 7), Context(PLAIN[:2, :6], run=True)).state
    score_leaves = [leaf for name, leaf in leaves(state) if name == "scores"]
    assert [leaf.shape for leaf in score_leaves] == [(2, 2, 2, 3)] * 2 and all(
        leaf.abs().sum() > 0 for leaf in score_leaves
    )
    without = tuple(((attention._replace(scores=0 * attention.scores),)) for (attention,) in state)
    step = x[:, 6:], Context(PLAIN[:2, 6:], run=True)
    assert not torch.allclose(
        layers(step[0], without, step[1]).y, layers(x, None, Context(PLAIN[:2], run=True)).y[:, 6:]
    )


def test_documents_hear_nothing_of_each_other() -> None:
    """The convolution stops at their borders, in both directions and in both kernels."""
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    for layers in (stack(Full(), kernel="centred"), stack(Causal())):
        x = torch.randn(1, 7, 16)
        y = layers(x, None, Context(PLAIN[:1], run=True, only=Document(ids))).y
        alone = layers(x[:, 3:], None, Context(PLAIN[:1, :4], run=True)).y
        torch.testing.assert_close(y[:, 3:], alone, rtol=0, atol=1e-12)


def test_what_a_bias_beneath_shut_out_stays_out_and_gives_no_nan() -> None:
    for kind in KINDS.values():
        part = kind(Full(), 2, alpha=1.0)
        q, k, below = (tensor.requires_grad_() for tensor in draw_inputs(5, 5, rows=1))
        out = torch.rand(1, 2, 5, 5) < 0.4
        out[0, :, 2] = True
        ctx = Context(torch.arange(5)[None], run=True)
        ctx = ctx.replace(below={"scores": PerPair(below.masked_fill(out, -torch.inf), ctx.by_head, ctx.by_head)})
        out_part = part(Queries(q, ctx.by_head), Keys(k, k, ctx.by_head), None, ctx)
        assert torch.equal(out_part.up["scores"].scores == -torch.inf, out) and (out_part.y.y[0, :, 2] == 0).all()
        gradients = torch.autograd.grad(out_part.y.y.sin().sum(), [q, k, below, *part.parameters()])
        assert all(g.isfinite().all() for g in gradients)


def test_a_plain_convolution_is_torch_s() -> None:
    part = EvolvingAttention(Full(), 2, beta=1.0, size=5, slope=1.0)
    q, k, _ = draw_inputs(7, 7)
    ctx = Context(PLAIN, run=True)
    scores = part(Queries(q, ctx.by_head), Keys(k, k, ctx.by_head), None, ctx).up["scores"].scores
    conv = part.convolution.conv
    want = F.conv2d(q @ k.mT / 2, conv.weight, conv.bias, padding=2)
    torch.testing.assert_close(scores, want, rtol=0, atol=1e-12)


def test_refusals() -> None:
    q, k, _ = draw_inputs(7, 7)
    bundles = Queries(q, PLAIN[:, None]), Keys(k, k, PLAIN[:, None])
    with pytest.raises(ValueError, match=r"the convolution was made for 4 heads, but got 2\. Create it with heads=2"):
        EvolvingAttention(Full(), 4)(*bundles, None, Context(PLAIN))
    for keywords, words in (
        ({"size": 2}, r"size=2 is even, so the kernel has no middle\. Pass an odd size, or kernel='causal'"),
        ({"size": 0}, "size=0"),
        ({"alpha": 1.5}, "alpha=1.5"),
        ({"slope": -1.0}, "slope=-1.0"),
    ):
        for kind in KINDS.values():
            with pytest.raises(ValueError, match=f"^{words}"):
                inspect.unwrap(kind.__init__)(kind.__new__(kind), Full(), 2, **keywords)
    with pytest.raises(ValueError, match="belong to other pairs than this layer's 2 x 7 x 7 pairs"):
        sent = {"scores": PerPair(torch.randn(3, 4, 7, 7), PLAIN[:, None], PLAIN[:, None])}
        EvolvingAttention(Full(), 2)(*bundles, None, Context(PLAIN, below=sent))
    with pytest.raises(ValueError, match="Put each document into a row of its own"):
        keys = bundles[1]._replace(own=False)
        EvolvingAttention(Full(), 2)(bundles[0], keys, None, Context(PLAIN, only=Causal()))
    with pytest.raises(NoState, match="kernel='cross'"):
        Attention(QKV(16, 2), EvolvingAttention(Full(), 2), cross=True).start(1, 4)
    with pytest.raises(NoState, match="reads up to"):
        Attention(QKV(16, 2), EvolvingAttention(Full(), 2, kernel="causal")).start(1, 4)
