"""GlobalTokens under ETC's attention against the paper's four pieces, pair by pair, and what a batch may limit."""

import functools
import math
from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.layer import Context, Layer, Out, PerToken, State
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.laws import batch_mates, dtype, empty_rows, mutation, padding
from kinformer.laws.support.subject import Subject
from kinformer.nn.aggregations.by_stream import OutByStream
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.biases.etc_labels import ETCLabels
from kinformer.nn.depth.global_tokens import GlobalTokens
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.four_pieces import FourPieces
from kinformer.nn.mechanisms.global_softmax import GlobalSoftmax
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.marked import MarkedKeys
from kinformer.nn.patterns.pieces import Pieces
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.by_stream import ByStream
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")
N, RADIUS, CLIP, HEADS, SIZE = 3, 2, 2, 2, 4
D = HEADS * SIZE
SEGMENT = torch.tensor(
    [[0, 0, 0, 1, 1, 1, 1, 2, 2, 3], [0, 0, 1, 1, 1, 1, 1, -1, -1, -1], [-1, -1, 0, 0, 0, 0, 0, 0, 0, 0]]
)
POS = torch.tensor([list(range(10)), [*range(7), -1, -1, -1], [-1, -1, *range(8)]])


HARD = ("g2l", "l2g")
FORMS = ("reader", "four", "shared", "own")


def layer(hard: tuple[str, ...] = (), order: bool = False, form: str = "reader") -> GlobalTokens:
    near, labels = Band(RADIUS) | Tokens(N), ETCLabels(HEADS, SIZE, N, CLIP, order=order)
    mechanism: Mechanism = Softmax(near | Rows(N), labels)
    if form == "reader":
        mechanism = GlobalSoftmax(near, Rows(N), labels, copied=False)
    elif form == "four":
        mechanism = FourPieces(near, N, labels)
    projection = ByStream(N, QKV(D, HEADS), QKV(D, HEADS)) if form == "own" else QKV(D, HEADS)
    outs = OutByStream(N, *(OutProjection(HEADS, SIZE, D) for _ in range(2)))
    return GlobalTokens(Attention(projection, mechanism, aggregation=outs), N, hard=hard)


def clipped(distance: int) -> int:
    return max(-CLIP, min(CLIP, distance)) + CLIP


def matrices(attention: Attention, form: str) -> dict[str, tuple[Tensor, Tensor]]:
    """The weight and bias of "g.q", "l.q", and of "k" and "v" of every piece."""
    projection = attention.projection
    if form in ("shared", "own"):
        streams = {"g": projection.wide, "l": projection.long} if form == "own" else {"g": projection, "l": projection}
        queries = {f"{i}.q": streams[i].matrix("q") for i in "gl"}
        return {**queries, **{f"{i}2{j}.{name}": streams[j].matrix(name) for i in "gl" for j in "gl" for name in "kv"}}
    (k, v), side = (projection.matrix(name) for name in "kv"), attention.key_side
    further = list(zip(side.weight.split(D), side.bias.split(D), strict=True))
    query_matrices = {"g.q": (attention.side.weight, attention.side.bias), "l.q": projection.matrix("q")}
    if form == "reader":
        keys = {"l2l": (k, v), "l2g": (k, v), "g2l": further, "g2g": further}
    else:
        keys = {"l2l": (k, v), "g2l": further[:2], "l2g": further[2:4], "g2g": further[4:]}
    return {
        **query_matrices,
        **{f"{piece}.{name}": pair[n] for piece, pair in keys.items() for n, name in enumerate("kv")},
    }


def etc(
    layer: GlobalTokens, x: Tensor, row: int, allowed: Callable[[tuple, tuple], bool], order: bool, form: str
) -> dict[tuple[str, int], Tensor]:
    """softmax over [g2g | g2l] and [l2g | l2l] of x_i W_Q (x_j W_K + P_ij) / sqrt(K) for one row, l2l in a band.

    Labels: 2 CLIP + 1 for l2l, as many for g2g, then those of l2g and of g2l, own first, then others.
    """
    attention, table = layer.layer, layer.layer.mechanism.near.bias.keys if form in FORMS[:2] else None
    table = layer.layer.mechanism.bias.keys if table is None else table
    weights = matrices(attention, form)
    at = [
        (t, p, min(s, N - 1))
        for t, (p, s) in enumerate(zip(POS[row].tolist(), SEGMENT[row].tolist(), strict=True))
        if p >= 0
    ]
    segments = sorted({s for _, _, s in at})
    tokens = [("g", g, g, layer.node) for g in segments] + [("l", p, s, x[row, t]) for t, p, s in at]
    across = 2 * (2 * CLIP + 1)
    other_labels = 2 if order else 1

    def label(i: tuple, j: tuple) -> int:
        if i[0] == j[0]:
            return clipped(j[1] - i[1]) + (2 * CLIP + 1) * (i[0] == "g")
        other = 0 if i[2] == j[2] else 2 if order and j[2] > i[2] else 1
        return across + (1 + other_labels) * (i[0] == "g") + other

    def projected(name: str, token: tuple) -> Tensor:
        return F.linear(token[3], *weights[name]).unflatten(-1, (HEADS, SIZE))

    outputs = {}
    for i in tokens:
        read = [j for j in tokens if (f"{i[0]}2{j[0]}" != "l2l" or abs(i[1] - j[1]) <= RADIUS) and allowed(i, j)]
        y, q = [], projected(f"{i[0]}.q", i)
        for h in range(HEADS):
            keys = [projected(f"{i[0]}2{j[0]}.k", j)[h] + table[h, label(i, j)] for j in read]
            values = [projected(f"{i[0]}2{j[0]}.v", j)[h] for j in read]
            e = torch.stack([q[h].dot(key) / math.sqrt(SIZE) for key in keys])
            y.append(e.softmax(0) @ torch.stack(values))
        out = attention.aggregation.wide if i[0] == "g" else attention.aggregation.long
        outputs[i[:2]] = out.linear(torch.cat(y))
    return outputs


def compare(layer: GlobalTokens, ctx: Context, allowed: Callable[..., bool], order: bool, form: str) -> None:
    """Every global and every long token of what the layer reads, against the loop."""
    x, recorded = torch.randn(3, 10, D), []
    layer.layer.register_forward_hook(lambda part, inputs, out: recorded.append(out.y))
    out = layer(x, None, ctx)
    assert out.state is None and torch.equal(out.y, recorded[0][:, N:])
    for row in range(3):
        for (stream, at), y in etc(layer, x, row, functools.partial(allowed, row), order, form).items():
            place = at if stream == "g" else N + POS[row].tolist().index(at)
            torch.testing.assert_close(recorded[0][row, place], y, rtol=0, atol=1e-12)


LABELS = {"segment": SEGMENT}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("hard", [(), ("g2l",), ("l2g", "l2l"), ("g2g", "g2l", "l2g", "l2l")], ids=str)
def test_the_four_pieces(hard: tuple[str, ...], order: bool, form: str) -> None:
    def allowed(row: int, i: tuple, j: tuple) -> bool:
        return f"{i[0]}2{j[0]}" not in hard or i[2] == j[2]

    compare(layer(hard, order, form), Context(POS, run=True, labels=LABELS), allowed, order, form)


@pytest.mark.parametrize("limits", [False, True])
@pytest.mark.parametrize("hard", [(), ("g2l",)], ids=str)
def test_four_masks_of_a_batch(hard: tuple[str, ...], limits: bool) -> None:
    """A15: each direction has a mask of its own, by row; others that a batch brings limit long tokens too."""
    real = torch.rand(3, 10) < 0.7
    marks = {"g2g": real[:, :N], "g2l": real, "l2g": real[:, :N].flip(1), "l2l": real.flip(1)}
    for name in ("g2g", "l2g"):
        marks[name][:, 0] = True
    masks = {name: MarkedKeys(mask) | Band(0) for name, mask in marks.items()}
    only: Pattern = Pieces(N, **masks)
    if limits:
        only = only & Pieces(N, l2l=Causal())

    def allowed(row: int, i: tuple, j: tuple) -> bool:
        if hard == ("g2l",) and i[0] + j[0] == "gl" and i[2] != j[2]:
            return False
        if limits and i[0] + j[0] == "ll" and j[1] > i[1]:
            return False
        return bool(marks[f"{i[0]}2{j[0]}"][row, j[1]]) or i[1] == j[1]

    compare(layer(hard), Context(POS, run=True, labels=LABELS, only=only), allowed, False, "reader")


def test_masks_of_another_number_of_global_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match=r"is made for 2 global tokens, expected 3\. Pass Pieces with that n"):
        layer()(torch.randn(3, 10, D), None, Context(POS, labels=LABELS, only=Pieces(2)))


@pytest.mark.parametrize("hard", [(), ("g2l",)], ids=str)
def test_what_global_tokens_read(hard: tuple[str, ...]) -> None:
    """Two layers: a far token is seen through a global one, with a hard mask through the global one of its segment."""
    pattern = Band(0) | Tokens(N) | Rows(N)
    layer = GlobalTokens(Attention(QKV(D, HEADS), Softmax(pattern)), N, hard=hard)
    x = torch.randn(3, 10, D)
    recorded: list[Tensor] = []
    layer.layer.register_forward_hook(lambda part, inputs, out: recorded.append(out.y[:, :N]))
    layer(x, None, Context(POS, labels={"segment": SEGMENT}))
    x[0, 0] += 1.0
    layer(x, None, Context(POS, labels={"segment": SEGMENT}))
    changed = (recorded[1] - recorded[0]).abs().amax(-1) > 1e-9
    assert changed[0].tolist() == ([True, False, False] if hard else [True, True, True])
    assert not changed[1:].any()


def test_without_segments_all_is_one() -> None:
    module, x = layer(), torch.randn(3, 10, D)
    segment = torch.where(POS >= 0, 0, -1)
    assert torch.equal(module(x, None, Context(POS)).y, module(x, None, Context(POS, labels={"segment": segment})).y)


def test_under_limits_of_a_batch_no_global_token_is_read() -> None:
    """Two documents in a row, two layers: what global tokens took from one never reaches the other."""
    pattern = Band(RADIUS) | Tokens(N) | Rows(N)
    layer = GlobalTokens(Stack([Attention(QKV(D, HEADS), Softmax(pattern)) for _ in range(2)]), N)
    pos, ids = torch.arange(10)[None], torch.tensor([[0] * 4 + [1] * 6])
    x = torch.randn(1, 10, D)
    changed = torch.cat([x[:, :4], torch.randn(1, 6, D)], 1)
    for only, same in ((Document(ids), True), (None, False)):
        ctx = Context(pos, only=only, labels={"segment": SEGMENT[:1]})
        before, after = layer(x, None, ctx).y, layer(changed, None, ctx).y
        assert torch.equal(before[:, :4], after[:, :4]) is same
        assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_what_a_batch_adds_is_read() -> None:
    layer = GlobalTokens(Attention(QKV(D, HEADS), Softmax(Band(0))), N)
    x, pos = torch.randn(1, 10, D), torch.arange(10)[None]
    plain = Attention(QKV(D, HEADS), Softmax(Band(0)))
    plain.load_state_dict(layer.layer.state_dict())
    also = Causal() & Band(3)
    torch.testing.assert_close(
        layer(x, None, Context(pos, also=also)).y, plain(x, None, Context(pos, also=also)).y, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("law", [batch_mates, dtype, empty_rows, mutation, padding])
def test_laws_with_labels_and_hard_masks(law) -> None:
    subject = Subject(layer(HARD, True), lambda: layer(HARD, True), width=D)
    assert list(law.judge(subject)) == []


class Seeing(Layer):
    """Keeps the context that it is called with, and reports values per token and taps."""

    d = D

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        self.ctx = ctx
        return Out(x, None, {"told": ctx.pos * 1.0, "price": x.new_tensor(2.0)}, {}, {}, {"0": x})


def test_what_comes_from_outside_is_handed_in_whole() -> None:
    """Every field of the context: of the row's own tokens as it came, of global tokens nothing but their segments.

    At padding of x and of the source stand zeros.
    """
    seeing = Seeing()
    layer, x = GlobalTokens(seeing, N), torch.randn(3, 10, D)
    source, head, per_token = torch.randn(3, 4, D), torch.nn.Linear(D, 2), torch.randn(3, 10, 5)
    labels = {"segment": SEGMENT, "stream": torch.full((3, 10), 7)}
    arguments = {"source": source, "source_pos": POS[:, :4], "head": head, "taps": ("0",)}
    out = layer(x, None, Context(POS, True, False, labels=labels, below={"task": PerToken(per_token)}, **arguments))
    ctx = seeing.ctx
    assert (ctx.head is head, ctx.taps) == (True, ("0",)) and not ctx.run and not ctx.full
    assert torch.equal(ctx.source, torch.where((POS[:, :4] >= 0)[..., None], source, 0.0))
    assert torch.equal(ctx.pos[:, N:], torch.where(POS >= 0, POS + N, -1))
    assert ctx.pos[:, :N].tolist() == [[0, 1, 2], [0, 1, -1], [0, -1, -1]]
    assert torch.equal(ctx.labels["segment"][:, N:], torch.where(POS >= 0, SEGMENT.clamp(max=N - 1), -1))
    assert ctx.labels["segment"][:, :N].tolist() == ctx.pos[:, :N].tolist()
    assert torch.equal(ctx.labels["stream"][:, N:], labels["stream"])
    assert torch.equal(ctx.below["task"].value[:, N:], per_token) and not ctx.below["task"].value[:, :N].any()
    assert torch.equal(out.aux["told"], ctx.pos[:, N:] * 1.0) and out.aux["price"] == 2
    assert torch.equal(out.taps["0"], torch.where((POS >= 0)[..., None], x, 0.0))


def test_it_does_not_decode() -> None:
    with pytest.raises(NoState, match="Use a causal layer"):
        layer().start(1, 4)
