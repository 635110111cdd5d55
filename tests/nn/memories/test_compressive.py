"""The two queues against the paper's algorithm written as loops; positions, limits of a batch, decoding."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.layer import Context, Out
from kinformer.core.memo import Memo
from kinformer.core.memory_compression import Compression
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.segment import Segment
from kinformer.core.state import share_positions
from kinformer.nn.attention import Attention
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.depth.stack import Stack
from kinformer.nn.losses.compression import AttentionReconstruction, AutoEncoding, CompressionLoss
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.compressed_positions import BySlots, ByTokens, CompressedPositions
from kinformer.nn.memories.compression import DilatedConv, MaxPool, MeanPool, MostUsed, StridedConv
from kinformer.nn.memories.compressive import Compressive, CompressiveStates
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")
D, HEADS, LENGTH = 6, 2, 23
WAYS: dict[str, Callable[[int], Compression]] = {
    "mean": MeanPool,
    "max": MaxPool,
    "conv": lambda rate: StridedConv(D, rate),
    "dilated": lambda rate: DilatedConv(D, rate),
    "most_used": MostUsed,
}
# length, memory, compressed, rate: as in the paper; a memory shorter than a segment, no multiple of it, of the rate
SIZES = [(4, 4, 3, 2), (6, 2, 2, 3), (3, 7, 1, 3), (2, 0, 4, 2), (4, 5, 2, 4)]
PLACED = [(places, scheme) for places in (BySlots, ByTokens) for scheme in WAYS]
# each way with one of the sizes; in the long run with all
CASES = [
    pytest.param(places, scheme, sizes, marks=[] if m == n % len(SIZES) else pytest.mark.prove)
    for n, (places, scheme) in enumerate(PLACED)
    for m, sizes in enumerate(SIZES)
]
FURTHER = [pytest.param(cuts, marks=pytest.mark.prove) for cuts in ((5, 10, 15), tuple(range(1, LENGTH)))]
Kept = list[tuple[int, Tensor]]  # states with their positions


def attention(
    length: int,
    memory: int,
    compressed: int,
    compression: Compression,
    loss: CompressionLoss | None = None,
    places: CompressedPositions | None = None,
) -> Attention:
    learns = any(True for _ in compression.parameters())
    loss = AttentionReconstruction() if learns and loss is None else loss
    memory_part = Compressive(length, memory, compressed, compression, loss, places=places)
    return Attention(QKV(D, HEADS), Softmax(Causal() & memory_part.reads, ALiBi(HEADS)), memory=memory_part)


def projected(layer: Attention, name: str, x: Tensor) -> Tensor:
    """Queries, keys or values of x, for each head."""
    return F.linear(x, *layer.projection.matrix(name)).unflatten(-1, (HEADS, D // HEADS))


def in_pieces(layer: Attention, x: Tensor, pos: Tensor, cuts: tuple[int, ...]) -> Out:
    state, pieces = layer.start(len(x), x.shape[1]), []
    for at in torch.arange(x.shape[1]).tensor_split(list(cuts)):
        out = layer(x[:, at], state, Context(pos[:, at], run=True))
        state = out.state
        pieces.append(out)
    aux = {name: torch.cat([piece.aux[name] for piece in pieces], 1) for name in pieces[0].aux}
    return Out(torch.cat([piece.y for piece in pieces], 1), state, aux)


# The paper's algorithm, one row and one number after the other -------------------------------------------------------


class Paper:
    """Algorithm 1 of the paper on one row: attend over [cm; m; h], compress what leaves m, keep both queues."""

    def __init__(self, layer: Attention):
        self.layer, self.memory = layer, layer.memory
        self.m: Kept = []
        self.cm: Kept = []
        self.used: dict[int, float] = {}

    def read(self, x: Tensor) -> Tensor:
        ys = []
        for begin in range(0, len(x), self.memory.length):
            h = [(t, x[t]) for t in range(begin, min(begin + self.memory.length, len(x)))]
            ys += [self.attend(t, vector, self.placed(begin) + self.m + h[: t - begin + 1]) for t, vector in h]
            if len(h) == self.memory.length:
                self.end(h)
        return torch.stack(ys)

    def placed(self, begin: int) -> Kept:
        """Distances count slots; or tokens, where that is asked for."""
        if isinstance(self.memory.places, ByTokens):
            return self.cm
        return [(begin - self.memory.memory - len(self.cm) + n, state) for n, (_, state) in enumerate(self.cm)]

    def attend(self, t: int, vector: Tensor, entries: Kept) -> Tensor:
        q = projected(self.layer, "q", vector)
        keys, values = (torch.stack([projected(self.layer, name, state) for _, state in entries]) for name in "kv")
        y = []
        for head in range(HEADS):
            scores = keys[:, head] @ q[head] / math.sqrt(D // HEADS)
            slope = 2 ** (-8 * (head + 1) / HEADS)
            weights = (scores - slope * torch.tensor([t - p for p, _ in entries])).softmax(0)
            y.append(weights @ values[:, head])
            for (p, _), weight in zip(entries, weights, strict=True):
                self.used[p] = self.used.get(p, 0.0) + float(weight) / HEADS
        return self.layer.aggregation.linear(torch.cat(y))

    def end(self, h: Kept) -> None:
        fifo = self.m + h
        keep = self.memory.memory
        old, self.m = fifo[: max(0, len(fifo) - keep)], fifo[len(fifo) - min(keep, len(fifo)) :]
        queue = self.cm + self.compress(old, h[-1][0] + 1)
        self.cm = queue[max(0, len(queue) - self.memory.slots) :]

    def compress(self, old: Kept, now: int) -> Kept:
        f, rate = self.memory.compression, self.memory.compression.rate
        if isinstance(f, MostUsed):
            best = sorted(old, key=lambda entry: -self.used[entry[0]] / (now - entry[0]))[: -(-len(old) // rate)]
            return sorted(best, key=lambda entry: entry[0])
        row: list[Tensor | None] = [None] * (-len(old) % rate) + [state for _, state in old]
        first = now - self.memory.memory - len(row)
        if isinstance(f, DilatedConv):
            row = dilated(f, row)
        blocks = [row[n : n + rate] for n in range(0, len(row), rate)]
        return [(max(0, first + rate * n), self.compress_block(f, block)) for n, block in enumerate(blocks)]

    def compress_block(self, f: Compression, block: list[Tensor | None]) -> Tensor:
        present = [state for state in block if state is not None]
        if isinstance(f, MeanPool):
            return sum(present) / len(present)
        if isinstance(f, MaxPool):
            return torch.stack(present).amax(0)
        return f.down.bias + sum(f.down.weight[:, :, n] @ s for n, s in enumerate(block) if s is not None)


def dilated(f: DilatedConv, row: list[Tensor | None]) -> list[Tensor | None]:
    for conv in f.wide:
        (step,) = conv.dilation
        wide: list[Tensor | None] = []
        for n, state in enumerate(row):
            near = [(tap, n + (tap - 1) * step) for tap in range(3)]
            inside = [(tap, row[at]) for tap, at in near if 0 <= at < len(row) and row[at] is not None]
            total = conv.bias + sum(conv.weight[:, :, tap] @ tap_state for tap, tap_state in inside)
            wide.append(None if state is None else total.relu())
        row = wide
    return row


def states(slots: tuple[Tensor, Tensor], row: int) -> Kept:
    x, pos = slots
    return [(int(pos[row, n]), x[row, n]) for n in pos[row].argsort() if pos[row, n] >= 0]


@pytest.mark.parametrize(("places", "scheme", "sizes"), CASES)
def test_it_is_the_paper_s_algorithm_cut_anywhere_in_both_modes(
    places: type[CompressedPositions], scheme: str, sizes: tuple[int, int, int, int]
) -> None:
    *queues, rate = sizes
    layer = attention(*queues, WAYS[scheme](rate), places=places())
    x, pos = torch.randn(3, LENGTH, D), torch.full((3, LENGTH), -1)
    for row, (lo, hi) in enumerate([(0, LENGTH), (4, LENGTH), (0, LENGTH - 6)]):
        pos[row, lo:hi] = torch.arange(hi - lo)
    with torch.no_grad():
        papers = [Paper(layer) for _ in x]
        want = [paper.read(row[real]) for paper, row, real in zip(papers, x, pos >= 0, strict=True)]
        for training, cuts in ((True, ()), (False, tuple(range(1, LENGTH))), (True, (1, 8, 9, 17))):
            out = in_pieces(layer.train(training), x, pos, cuts)
            for row, paper in enumerate(papers):
                torch.testing.assert_close(out.y[row][pos[row] >= 0], want[row], rtol=0, atol=1e-12)
                for ours, theirs in (
                    (states(tuple(out.state.old), row), paper.cm),
                    (before(out.state, row, layer), paper.m),
                ):
                    assert [p for p, _ in ours] == [p for p, _ in theirs]
                    for (_, mine), (_, reference) in zip(ours, theirs, strict=True):
                        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)


def before(state: CompressiveStates, row: int, layer: Attention) -> Kept:
    """The memory: what stands before the segment that the row is in."""
    begin = int(state.now[row]) // layer.memory.length * layer.memory.length
    return [entry for entry in states((state.x, state.pos), row) if entry[0] < begin]


@pytest.mark.parametrize("scheme", WAYS)
def test_positions_are_unique_and_ascend_to_the_memory_s(scheme: str) -> None:
    layer = attention(4, 4, 3, WAYS[scheme](2))
    state, x = layer.start(1, LENGTH), torch.randn(1, LENGTH, D)
    for t in range(LENGTH):
        state = layer(x[:, t : t + 1], state, Context(torch.tensor([[t]]))).state
        pos = torch.cat([state.old.pos, state.pos], 1)[0]
        pos = pos[pos >= 0]
        assert (pos[1:] > pos[:-1]).all()
        assert pos[-1] == t
    assert state.old.pos.shape == (1, 3) and (state.old.pos >= 0).all()


def test_a_slot_stands_where_its_first_token_stood() -> None:
    layer = attention(4, 5, 2, MeanPool(4))
    pos = torch.arange(LENGTH)[None]
    state = layer(torch.randn(1, LENGTH, D), layer.start(1, LENGTH), Context(pos)).state
    # 20 - 5 = 15 and blocks end there: 7..10 and 11..14
    assert state.old.pos.tolist() == [[7, 11]]
    assert state.pos[state.pos >= 0].tolist() == list(range(15, LENGTH))


@pytest.mark.parametrize("scheme", WAYS)
def test_a_layer_reads_as_far_as_the_paper_says_and_no_further(scheme: str) -> None:
    length, memory, compressed, rate = 4, 4, 3, 2
    layer, t = attention(length, memory, compressed, WAYS[scheme](rate)), 19
    x, ctx = torch.randn(1, t + 1, D), Context(torch.arange(t + 1)[None], run=True)
    furthest = t - t % length - memory - rate * compressed
    wider = {"dilated": 3, "most_used": 2}.get(
        scheme, 0
    )  # what convolutions hear beside a block; the rest of a segment
    plain, repeats = layer(x, None, ctx).y[0, t], x.repeat(t, 1, 1)
    repeats[torch.arange(t), torch.arange(t)] += 3.0  # row p has another token at p
    read = layer(repeats, None, ctx.replace(pos=ctx.pos.expand(t, -1))).y[:, t]
    changed = ((read - plain).abs().amax(-1) > 1e-9).tolist()
    assert not any(changed[: furthest - wider])
    if scheme != "most_used":
        assert all(changed[furthest:])


def test_a_batch_s_limits_hold_for_what_was_compressed() -> None:
    layer = attention(4, 4, 5, MeanPool(2), places=ByTokens())
    x, border = torch.randn(1, LENGTH, D), 7  # inside a block
    ids = (torch.arange(LENGTH) >= border).long()[None]
    ctx = Context(torch.arange(LENGTH)[None], run=True, only=Document(ids))
    other = x.clone()
    other[:, :border] = torch.randn(1, border, D)
    y, changed = (layer(z, None, ctx).y[:, border:] for z in (x, other))
    assert torch.equal(y, changed)
    with pytest.raises(ValueError, match=r"ctx.only=.* Pass places=ByTokens\(\) to the Compressive memory"):
        attention(4, 4, 5, MeanPool(2))(x, None, ctx)


def test_its_pattern_reaches_all_slots_by_slots_or_by_tokens_in_whole_segments() -> None:
    assert Compressive(4, 5, 6, MeanPool(2)).reads == Segment(4, 5 + 6)
    assert Compressive(4, 5, 6, MeanPool(2), places=ByTokens()).reads == Segment(4, 5 + 12)
    assert Compressive(4, 5, 3, MeanPool(2), places=ByTokens()).reads == Segment(4, 5 + 8)


def test_slots_stand_one_behind_the_other_before_the_memory() -> None:
    """The newest nearest to it, whatever was compressed into it; by tokens each where its first token stood."""
    memory = Compressive(4, 5, 4, MostUsed(2))
    pos, first = torch.tensor([[2, 5, -1, 8], [-1, -1, -1, 1]]), torch.tensor([[11], [4]])
    assert memory.places(pos, first).tolist() == [[8, 9, -1, 10], [-1, -1, -1, 3]]
    assert torch.equal(ByTokens()(pos, first), pos)


def test_without_slots_it_is_dense_attention_over_segments_and_memory() -> None:
    layer = attention(4, 6, 0, MeanPool(2))
    plain = Attention(QKV(D, HEADS), Softmax(Causal() & Segment(4, 6), ALiBi(HEADS)))
    plain.load_state_dict(layer.state_dict())
    x, ctx = torch.randn(2, LENGTH, D), Context(torch.arange(LENGTH).expand(2, -1), run=True)
    torch.testing.assert_close(layer(x, None, ctx).y, plain(x, None, ctx).y, rtol=0, atol=1e-12)


def test_both_modes_start_with_the_memory_and_a_call_without_a_state_makes_none() -> None:
    layer = attention(4, 4, 2, MeanPool(2))
    x, ctx = torch.randn(2, LENGTH, D), Context(torch.arange(LENGTH).expand(2, -1), run=True)
    for training in (True, False):
        layer.train(training)
        state = layer.start(2, LENGTH)
        assert isinstance(state, CompressiveStates)
        assert state.x.shape == (2, 4 - 1 + 4, D)  # a segment is never kept whole beside the memory
        assert state.old.x.shape == (2, 2, D)
        plain = layer(x, None, ctx)
        assert plain.state is None
        assert torch.equal(plain.y, layer(x, state, ctx).y)


@pytest.mark.parametrize("loss", [AttentionReconstruction(), AttentionReconstruction("mse")], ids=["l2", "mse"])
def test_attention_reconstruction_is_the_paper_s_for_each_token(loss: AttentionReconstruction) -> None:
    length, memory, rate = 4, 4, 2
    layer = attention(length, memory, 2, StridedConv(D, rate), loss).train()
    x = torch.randn(1, 3 * length, D)
    actual = in_pieces(layer, x, torch.arange(3 * length)[None], (1, 6, 7)).aux["attention_reconstruction"][0]
    assert not actual[:length].any()
    for segment in (1, 2):
        old = x[0, (segment - 1) * length : segment * length]
        new = torch.stack([Paper(layer).compress_block(layer.memory.compression, list(b)) for b in old.split(rate)])
        for t in range(segment * length, (segment + 1) * length):
            gap = content(layer, x[0, t], old) - content(layer, x[0, t], new)
            want = gap.square().mean() if loss.norm == "mse" else gap.norm()
            assert actual[t].item() == pytest.approx(want.item(), abs=1e-12)


def test_by_segment_there_is_one_norm_over_all_its_tokens() -> None:
    """Algorithm 2; padding, which holds anything, takes no part."""
    layer = attention(4, 4, 2, StridedConv(D, 2), AttentionReconstruction("segment")).train()
    x, pos = torch.randn(1, 14, D), torch.cat([torch.tensor([-1]), torch.arange(11), torch.tensor([-1, -1])])[None]
    actual = layer(x, None, Context(pos, run=True)).aux["attention_reconstruction"][0, 1:]
    rows = x[0, 1:]
    assert not actual[:4].any() and not actual[11:].any()
    for segment in (1, 2):
        old = rows[(segment - 1) * 4 : segment * 4]
        new = torch.stack([Paper(layer).compress_block(layer.memory.compression, list(b)) for b in old.split(2)])
        mine = range(segment * 4, min(segment * 4 + 4, 11))
        gaps = torch.stack([content(layer, rows[t], old) - content(layer, rows[t], new) for t in mine])
        for t in mine:
            assert actual[t].item() == pytest.approx(gaps.norm().item(), abs=1e-12)


def content(layer: Attention, vector: Tensor, source: Tensor) -> Tensor:
    """softmax(hQ (mK)^T / sqrt(d_h)) mV, all heads."""
    q, k, v = (projected(layer, name, x) for name, x in (("q", vector), ("k", source), ("v", source)))
    weights = (torch.einsum("hk,shk->hs", q, k) / math.sqrt(D // HEADS)).softmax(-1)
    return torch.einsum("hs,shv->hv", weights, v)


@pytest.mark.parametrize("norm", ["l2", "mse"])
def test_autoencoding_is_the_distance_to_what_is_rebuilt(norm: str) -> None:
    loss = AutoEncoding(D, 2, norm)
    layer = attention(4, 4, 2, StridedConv(D, 2), loss).train()
    x = torch.randn(1, 8, D)
    actual = in_pieces(layer, x, torch.arange(8)[None], (5,)).aux["autoencoding"][0]
    paper = Paper(layer)
    new = torch.stack([paper.compress_block(layer.memory.compression, list(block)) for block in x[0, :4].split(2)])
    weight, bias = loss.decoder.weight, loss.decoder.bias
    back = torch.stack([bias + state @ weight[:, :, n] for state in new for n in range(2)])
    want = F.mse_loss(back, x[0, :4]) if norm == "mse" else (back - x[0, :4]).norm()
    assert not actual[:4].any()
    torch.testing.assert_close(actual[4:], want.expand(4), rtol=0, atol=1e-12)


def test_the_use_of_a_state_is_counted_in_float32_at_least() -> None:
    state = attention(4, 4, 2, MostUsed(2)).start(1, 8, dtype=torch.bfloat16)
    assert state.used.dtype == torch.float32 and state.x.dtype == state.old.x.dtype == torch.bfloat16


def test_errors_say_what_came_and_what_to_do() -> None:
    with pytest.raises(ValueError, match="length=6 is not a multiple of rate=4; change one of them"):
        Compressive(6, 4, 2, MeanPool(4))
    with pytest.raises(ValueError, match="compressed=-1"):
        Compressive(4, 4, -1, MeanPool(4))
    layer = attention(4, 4, 2, MeanPool(2))
    with pytest.raises(
        ValueError, match=r"ctx.also=Tokens.* would read tokens that .* already compressed\. Drop ctx.also"
    ):
        layer(torch.randn(1, 3, D), None, Context(torch.arange(3)[None], also=Tokens(1)))


def test_a_convolution_starts_as_the_mean_of_each_block() -> None:
    x, pos, used = torch.randn(2, 8, D), torch.arange(8).expand(2, 8), torch.zeros(2, 8)
    torch.testing.assert_close(StridedConv(D, 4)(x, pos, used), MeanPool(4)(x, pos, used))


@pytest.mark.parametrize("kind", [StridedConv, DilatedConv])
def test_widths_and_rates_that_do_not_meet_are_refused(kind: type[StridedConv | DilatedConv]) -> None:
    with pytest.raises(ValueError, match=rf"^AutoEncoding has d=8, but {kind.__name__} has d=6\. Make them equal$"):
        Compressive(4, 4, 2, kind(6, 2), AutoEncoding(8, 2))
    with pytest.raises(ValueError, match=r"^AutoEncoding has rate=4, but MeanPool has rate=2\. Make them equal$"):
        Compressive(4, 4, 2, MeanPool(2), AutoEncoding(6, 4))
    memory = Compressive(4, 4, 2, kind(8, 2), AttentionReconstruction())
    with pytest.raises(
        ValueError,
        match=rf"^{kind.__name__} compresses states of width 8, but the layer has width 6\. Make them equal$",
    ):
        Attention(QKV(D, HEADS), Softmax(Causal() & memory.reads), memory=memory)


@pytest.mark.parametrize("scheme", ["conv", "dilated"])
def test_a_compression_that_no_loss_would_train_is_refused(scheme: str) -> None:
    with pytest.raises(ValueError, match=r"Conv has parameters, but no loss of the model trains them\. Pass loss="):
        Compressive(4, 4, 2, WAYS[scheme](2))


@pytest.mark.parametrize("memory", [0, 2, 3])
@pytest.mark.parametrize("cuts", [(), (1, 2, 7), tuple(range(1, 12))], ids=lambda cuts: f"{len(cuts)}cuts")
def test_with_a_short_memory_a_segment_learns_from_what_left_as_it_began(memory: int, cuts: tuple[int, ...]) -> None:
    layer = attention(4, memory, 2, StridedConv(D, 2)).train()
    x = torch.randn(1, 12, D)
    actual = in_pieces(layer, x, torch.arange(12)[None], cuts).aux["attention_reconstruction"][0]
    assert not actual[:4].any()
    for segment in (1, 2):
        left = [x[0, t] if t >= 0 else None for t in range((segment - 1) * 4 - memory, segment * 4 - memory)]
        blocks = [block for block in (left[:2], left[2:]) if any(state is not None for state in block)]
        new = torch.stack([Paper(layer).compress_block(layer.memory.compression, block) for block in blocks])
        old = torch.stack([state for state in left if state is not None])
        for t in range(segment * 4, (segment + 1) * 4):
            gap = content(layer, x[0, t], old) - content(layer, x[0, t], new)
            assert actual[t].item() == pytest.approx(gap.norm().item(), abs=1e-12)


@pytest.mark.parametrize("memory", [0, 2, 4, 5, 8])
@pytest.mark.parametrize("scheme", ["conv", "dilated"])
def test_every_tap_is_trained_whatever_the_memory(memory: int, scheme: str) -> None:
    """A12: with less memory than a segment, half of a kernel or all of it had no gradient."""
    layer = attention(4, memory, 3, WAYS[scheme](4), AttentionReconstruction()).train()
    x = torch.randn(1, 24, D)
    layer(x, None, Context(torch.arange(24)[None])).aux["attention_reconstruction"].sum().backward()
    taps = layer.memory.compression.down.weight.grad.abs().amax((0, 1))
    assert (taps > 1e-6).all()


def test_the_reconstruction_reads_at_the_mechanism_s_own_scale() -> None:
    x, calls = torch.randn(1, 12, D), {}
    for scale in (None, (D // HEADS) ** -0.5, 50.0):
        torch.manual_seed(0)
        memory_part = Compressive(4, 4, 2, StridedConv(D, 2), AttentionReconstruction())
        layer = Attention(QKV(D, HEADS), Softmax(Causal() & memory_part.reads, scale=scale), memory=memory_part).train()
        calls[scale] = layer(x, None, Context(torch.arange(12)[None])).aux["attention_reconstruction"]
    assert torch.equal(calls[None], calls[(D // HEADS) ** -0.5])
    assert (calls[None][:, 4:] - calls[50.0][:, 4:]).abs().min() > 1e-4


@pytest.mark.parametrize("scheme", WAYS)
@pytest.mark.parametrize("cuts", [(1, 2, 3, 11), *FURTHER], ids=lambda c: f"{len(c)}cuts")
def test_a_cut_changes_no_gradient(scheme: str, cuts: tuple[int, ...]) -> None:
    loss = AttentionReconstruction() if scheme in ("conv", "dilated") else None
    layer = attention(4, 5, 3, WAYS[scheme](2), loss).train()
    x, pos = torch.randn(2, LENGTH, D), torch.arange(LENGTH).expand(2, -1).clone()
    pos[1] = torch.where(pos[1] >= 3, pos[1] - 3, -1)

    def gradients(cuts: tuple[int, ...]) -> list[Tensor]:
        inputs = x.clone().requires_grad_()
        out = in_pieces(layer, inputs, pos, cuts)
        total = out.y[pos >= 0].sin().sum() + sum(value.sum() for value in out.aux.values())
        return list(torch.autograd.grad(total, [inputs, *layer.parameters()], allow_unused=True))

    for ours, theirs in zip(gradients(cuts), gradients(()), strict=True):
        if theirs is None:
            assert ours is None
        else:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_gradients_end_where_a_segment_begins() -> None:
    layer, x = attention(4, 5, 3, MeanPool(2)).train(), torch.randn(1, LENGTH, D, requires_grad=True)
    y = layer(x, None, Context(torch.arange(LENGTH)[None])).y
    for t in (3, 4, 18, LENGTH - 1):
        (grad,) = torch.autograd.grad(y[0, t].sum(), x, retain_graph=True)
        assert (grad[0].abs().amax(-1) > 0).tolist() == [t // 4 * 4 <= n <= t for n in range(LENGTH)]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [(Band(3), "never reads"), (Causal() & Band(7), "never reads"), (Causal(), "reads keys that the memory does not")],
    ids=str,
)
def test_a_pattern_that_says_something_else_is_refused(pattern: Pattern, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Attention(QKV(D, HEADS), Softmax(pattern), memory=Compressive(4, 5, 3, MeanPool(2)))


@pytest.mark.parametrize("scheme", ["conv", "most_used"])
def test_all_layers_look_as_often_as_one(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look = [], Memo.look
    monkeypatch.setattr(Memo, "look", lambda self, *numbers: looks.append(1) or look(self, *numbers))
    x, pos = torch.randn(2, LENGTH, D), torch.arange(LENGTH).expand(2, -1)

    def counted(depth: int) -> list[int]:
        body = Stack(attention(4, 5, 3, WAYS[scheme](2)) for _ in range(depth))
        state, counts = share_positions(body.start(2, LENGTH)), []
        for at in torch.arange(LENGTH).tensor_split([9, 10, 11, 12, 13, 14]):
            looks.clear()
            state = body(x[:, at], state, Context(pos[:, at])).state
            counts.append(len(looks))
        looks.clear()
        body(x[:, :1], None, Context(pos[:, :1]))  # memories that begin here share their positions too
        return [*counts, len(looks)]

    counts = counted(3)
    assert counts == counted(1)
    assert [*counts[1:6], counts[-1]] == [1] * 6, "a step looks once"


@pytest.mark.parametrize(
    ("places", "firsts"), [(BySlots(), [0, 2, 4, 6]), (ByTokens(), [4, 6])], ids=["slots", "tokens"]
)
def test_a_jump_of_positions_compresses_what_it_leaves(places: CompressedPositions, firsts: list[int]) -> None:
    """Positions that are left out stand for tokens that nobody sees: by tokens they take up room."""
    layer = attention(4, 4, 4, MeanPool(2), places=places)
    x, pos = torch.randn(1, 13, D), torch.tensor([[*range(8), *range(14, 19)]])
    state = layer(x, layer.start(1, 20), Context(pos)).state
    entries = states(tuple(state.old), 0)
    assert [p for p, _ in entries] == firsts
    for p, mean in entries:
        torch.testing.assert_close(mean, x[0, p : p + 2].mean(0), rtol=0, atol=1e-12)
