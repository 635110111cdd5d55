"""GlobalTokens under ETC's attention against the paper's four pieces, pair by pair, and what a batch may limit."""

import math

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.attention import Attention
from kinformer.biases.etc_labels import ETCLabels
from kinformer.core.layer import Context, Layer, Out, PerToken, State
from kinformer.core.mechanism import NoState
from kinformer.depth.global_tokens import GlobalTokens
from kinformer.depth.stack import Stack
from kinformer.laws import batch_mates, dtype, empty_rows, mutation, padding
from kinformer.laws.support.subject import Subject
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.document import Document
from kinformer.patterns.rows import Rows
from kinformer.patterns.tokens import Tokens
from kinformer.projections.by_stream import ByStream
from kinformer.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")
N, RADIUS, CLIP, HEADS, SIZE = 3, 2, 2, 2, 4
D = HEADS * SIZE
SEGMENT = torch.tensor(
    [[0, 0, 0, 1, 1, 1, 1, 2, 2, 3], [0, 0, 1, 1, 1, 1, 1, -1, -1, -1], [-1, -1, 0, 0, 0, 0, 0, 0, 0, 0]]
)
POS = torch.tensor([list(range(10)), [*range(7), -1, -1, -1], [-1, -1, *range(8)]])


def layer(hard: bool, order: bool) -> GlobalTokens:
    projection = ByStream(N, QKV(D, HEADS), QKV(D, HEADS))
    mechanism = Softmax(Band(RADIUS) | Tokens(N) | Rows(N), ETCLabels(HEADS, SIZE, N, CLIP, order=order))
    return GlobalTokens(Attention(projection, mechanism), N, hard=hard)


def clipped(distance: int) -> int:
    return max(-CLIP, min(CLIP, distance)) + CLIP


def etc(made: GlobalTokens, x: Tensor, row: int, hard: bool, order: bool) -> Tensor:
    """softmax over [g2g | g2l] and [l2g | l2l] of x_i W_Q (x_j W_K + P_ij) / sqrt(K) for one row, l2l in a band.

    Labels: 2 CLIP + 1 for l2l, as many for g2g, then those of l2g and of g2l, own first, then others.
    """
    attention, table = made.layer, made.layer.mechanism.bias.keys
    at = [
        (t, p, min(s, N - 1))
        for t, (p, s) in enumerate(zip(POS[row].tolist(), SEGMENT[row].tolist(), strict=True))
        if p >= 0
    ]
    segments = sorted({s for _, _, s in at})
    both = [("g", g, g, made.token) for g in segments] + [("l", p, s, x[row, t]) for t, p, s in at]
    across = 2 * (2 * CLIP + 1)
    others = 2 if order else 1

    def allowed(i: tuple, j: tuple) -> bool:
        g2g = i[0] == j[0] == "g"
        g2l = i[0] == "g" and j[0] == "l" and (not hard or i[2] == j[2])
        l2g = i[0] == "l" and j[0] == "g"
        l2l = i[0] == j[0] == "l" and abs(i[1] - j[1]) <= RADIUS
        return g2g or g2l or l2g or l2l

    def label(i: tuple, j: tuple) -> int:
        if i[0] == j[0]:
            return clipped(j[1] - i[1]) + (2 * CLIP + 1) * (i[0] == "g")
        other = 0 if i[2] == j[2] else 2 if order and j[2] > i[2] else 1
        return across + (1 + others) * (i[0] == "g") + other

    def projected(name: str, one: tuple) -> Tensor:
        stream = attention.projection.wide if one[0] == "g" else attention.projection.long
        return F.linear(one[3], *stream.matrix(name)).unflatten(-1, (HEADS, SIZE))

    y = torch.zeros(x.shape[1], HEADS, SIZE)
    for i in (one for one in both if one[0] == "l"):
        for h in range(HEADS):
            read = [j for j in both if allowed(i, j)]
            e = [projected("q", i)[h].dot(projected("k", j)[h] + table[h, label(i, j)]) / math.sqrt(SIZE) for j in read]
            place = POS[row].tolist().index(i[1])
            y[place, h] = torch.stack(e).softmax(0) @ torch.stack([projected("v", j)[h] for j in read])
    return attention.aggregation(y.transpose(0, 1)[None], POS[row][None])[0]


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_the_four_pieces(hard: bool, order: bool) -> None:
    made, x = layer(hard, order), torch.randn(3, 10, D)
    out = made(x, None, Context(POS, run=True, labels={"segment": SEGMENT}))
    assert out.state is None and out.y.shape == x.shape
    for row in range(3):
        real = POS[row] >= 0
        torch.testing.assert_close(out.y[row][real], etc(made, x, row, hard, order)[real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("hard", [False, True])
def test_what_global_tokens_read(hard: bool) -> None:
    """Two layers: a far token is seen through a global one, with a hard mask through the global one of its segment."""
    pattern = Band(0) | Tokens(N) | Rows(N)
    made = GlobalTokens(Attention(QKV(D, HEADS), Softmax(pattern)), N, hard=hard)
    x = torch.randn(3, 10, D)
    seen: list[Tensor] = []
    made.layer.register_forward_hook(lambda part, inputs, out: seen.append(out.y[:, :N]))
    made(x, None, Context(POS, labels={"segment": SEGMENT}))
    x[0, 0] += 1.0
    made(x, None, Context(POS, labels={"segment": SEGMENT}))
    moved = (seen[1] - seen[0]).abs().amax(-1) > 1e-9
    assert moved[0].tolist() == ([True, False, False] if hard else [True, True, True])
    assert not moved[1:].any()


def test_without_segments_all_is_one() -> None:
    made, x = layer(False, False), torch.randn(3, 10, D)
    ones = torch.where(POS >= 0, 0, -1)
    assert torch.equal(made(x, None, Context(POS)).y, made(x, None, Context(POS, labels={"segment": ones})).y)


def test_under_limits_of_a_batch_no_global_token_is_read() -> None:
    """Two documents in a row, two layers: what global tokens took from one never reaches the other."""
    pattern = Band(RADIUS) | Tokens(N) | Rows(N)
    made = GlobalTokens(Stack([Attention(QKV(D, HEADS), Softmax(pattern)) for _ in range(2)]), N)
    pos, ids = torch.arange(10)[None], torch.tensor([[0] * 4 + [1] * 6])
    x = torch.randn(1, 10, D)
    changed = torch.cat([x[:, :4], torch.randn(1, 6, D)], 1)
    for only, same in ((Document(ids), True), (None, False)):
        ctx = Context(pos, only=only, labels={"segment": SEGMENT[:1]})
        before, after = made(x, None, ctx).y, made(changed, None, ctx).y
        assert torch.equal(before[:, :4], after[:, :4]) is same
        assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_what_a_batch_adds_is_read() -> None:
    made = GlobalTokens(Attention(QKV(D, HEADS), Softmax(Band(0))), N)
    x, pos = torch.randn(1, 10, D), torch.arange(10)[None]
    plain = Attention(QKV(D, HEADS), Softmax(Band(0)))
    plain.load_state_dict(made.layer.state_dict())
    also = Causal() & Band(3)
    torch.testing.assert_close(
        made(x, None, Context(pos, also=also)).y, plain(x, None, Context(pos, also=also)).y, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("law", [batch_mates, dtype, empty_rows, mutation, padding])
def test_laws_with_labels_and_hard_masks(law) -> None:
    subject = Subject(layer(True, True), lambda: layer(True, True), width=D)
    assert list(law.judge(subject)) == []


class Seeing(Layer):
    """Keeps the context that it is called with, and reports values per token and taps."""

    d = D

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        self.ctx = ctx
        return Out(x, None, {"told": ctx.pos * 1.0, "price": x.new_tensor(2.0)}, {}, {}, {"0": x})


def test_what_comes_from_outside_is_handed_in_whole() -> None:
    """Every field of the context: of the row's own tokens as it came, of global tokens nothing but their segments."""
    seeing = Seeing()
    made, x = GlobalTokens(seeing, N), torch.randn(3, 10, D)
    source, head, per_token = torch.randn(3, 4, D), torch.nn.Linear(D, 2), torch.randn(3, 10, 5)
    labels = {"segment": SEGMENT, "stream": torch.full((3, 10), 7)}
    given = {"source": source, "source_pos": POS[:, :4], "head": head, "taps": ("0",)}
    out = made(x, None, Context(POS, True, False, labels=labels, below={"task": PerToken(per_token)}, **given))
    ctx = seeing.ctx
    assert (ctx.source is source, ctx.head is head, ctx.taps) == (True, True, ("0",)) and not ctx.run and not ctx.full
    assert torch.equal(ctx.pos[:, N:], torch.where(POS >= 0, POS + N, -1))
    assert ctx.pos[:, :N].tolist() == [[0, 1, 2], [0, 1, -1], [0, -1, -1]]
    assert torch.equal(ctx.labels["segment"][:, N:], torch.where(POS >= 0, SEGMENT.clamp(max=N - 1), -1))
    assert ctx.labels["segment"][:, :N].tolist() == ctx.pos[:, :N].tolist()
    assert torch.equal(ctx.labels["stream"][:, N:], labels["stream"])
    assert torch.equal(ctx.below["task"].value[:, N:], per_token) and not ctx.below["task"].value[:, :N].any()
    assert torch.equal(out.aux["told"], ctx.pos[:, N:] * 1.0) and out.aux["price"] == 2
    assert torch.equal(out.taps["0"], x)


def test_it_does_not_decode() -> None:
    with pytest.raises(NoState, match="use a causal layer"):
        layer(False, False).start(1, 4)
