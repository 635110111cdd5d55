"""The Transformer-XL bias against the paper's equation, one pair at a time."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.attend import attend
from kinformer.core.layer import Context
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.segment import Segment
from kinformer.core.score_matrix import scores
from kinformer.nn.attention import Attention
from kinformer.nn.biases.transformer_xl import TransformerXL, distances, sinusoids
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from tests.looks import Looks
from tests.nn.biases.requests import make_request

pytestmark = pytest.mark.usefixtures("float64")
HEADS, DIM = 4, 6


def wave(distance: int, d: int) -> Tensor:
    """R_n: sines, then cosines."""
    angles = [distance / 10000 ** (2 * m / d) for m in range(d // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])


def naive(
    bias: TransformerXL, q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, pattern: Pattern
) -> Tensor:
    """(q_i + u).k_j + (q_i + v).(W R_{i-j}), scaled, softmax over what is allowed."""
    y = torch.zeros(*q.shape[:3], v.shape[-1])
    group = HEADS // k.shape[1]
    for b in range(len(q)):
        for h in range(HEADS):
            for i, query in enumerate(q_pos[b].tolist()):
                logits, read = [], []
                for j, key in enumerate(k_pos[b].tolist()):
                    if min(query, key) < 0 or not pattern(b, h, query, key):
                        continue
                    r = (bias.position.weight @ wave(query - key, bias.d))[h * DIM : (h + 1) * DIM]
                    content = (q[b, h, i] + bias.u[h]) @ k[b, h // group, j]
                    logits.append((content + (q[b, h, i] + bias.v[h]) @ r) * DIM**-0.5)
                    read.append(v[b, h // group, j])
                if read:
                    y[b, h, i] = torch.stack(logits).softmax(0) @ torch.stack(read)
    return y


def strong(d: int | None = None) -> TransformerXL:
    """A bias whose u and v are no smaller than the rest."""
    bias = TransformerXL(HEADS, DIM, d)
    for parameter in (bias.u, bias.v):
        torch.nn.init.normal_(parameter)
    return bias


@pytest.mark.parametrize("pattern", [Full(), Causal(), Causal() & Segment(3, 2), Band(2), Band(1, 3)], ids=repr)
@pytest.mark.parametrize("groups", [4, 2])
def test_it_is_the_equation(pattern: Pattern, groups: int) -> None:
    bias = strong(10)
    q, k, v = torch.randn(3, HEADS, 4, DIM), torch.randn(3, groups, 7, DIM), torch.randn(3, groups, 7, 5)
    q_pos = torch.tensor([[3, 4, 5, 6], [-1, 7, 8, 9], [2, 0, 5, -1]])  # consecutive, padded, in any order
    k_pos = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [-1, -1, 4, 5, 7, 8, 9], [5, 0, 3, 1, 2, -1, -1]])
    read = attend(q, k, v, q_pos=q_pos[:, None], k_pos=k_pos[:, None], pattern=pattern, bias=bias)
    torch.testing.assert_close(read.y, naive(bias, q, k, v, q_pos, k_pos, pattern), rtol=0, atol=1e-12)


def test_a_table_of_distances_and_a_product_of_positions_are_one_thing() -> None:
    """Known from the reach, from a row without gaps, or not at all: the same scores, and the same gradients."""
    bias = strong()
    q, k = (torch.randn(2, HEADS, 5, DIM, requires_grad=True) for _ in range(2))
    pos = torch.arange(10, 15).expand(2, 1, 5)
    by_positions = make_request(q, k, q_pos=pos, k_pos=pos, bias=bias)
    by_reach, by_row = by_positions.replace(pattern=Band(4)), by_positions.replace(run=True)
    assert distances(by_positions) is None and distances(by_reach) == distances(by_row) == (-4, 4)
    results = [scores(scored) for scored in (by_positions, by_reach, by_row)]
    want, *rest = (torch.autograd.grad(scored.sin().sum(), [q, k, *bias.parameters()]) for scored in results)
    for scored, gradients in zip(results[1:], rest, strict=True):
        torch.testing.assert_close(scored, results[0], rtol=0, atol=1e-13)
        torch.testing.assert_close(gradients, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pattern", [Full(), Band(6)], ids=repr)
def test_only_distances_matter(pattern: Pattern) -> None:
    bias = strong()
    q, k = torch.randn(2, HEADS, 3, DIM), torch.randn(2, HEADS, 6, DIM)
    q_pos, k_pos = torch.arange(3, 6).expand(2, 1, -1), torch.arange(6).expand(2, 1, -1)

    def scores_at(by_q: int, by_k: int) -> Tensor:
        return scores(make_request(q, k, q_pos=q_pos + by_q, k_pos=k_pos + by_k, pattern=pattern, bias=bias))

    at_zero = scores_at(0, 0)
    assert torch.equal(at_zero, scores_at(1000, 1000))
    assert not torch.allclose(at_zero, scores_at(1, 0))


def test_far_positions_keep_their_digits() -> None:
    """In float32, at position 3,000,000: the angles are those of distances, whichever way they are made."""
    bias = strong().float()
    q, k = torch.randn(1, HEADS, 3, DIM).float(), torch.randn(1, HEADS, 6, DIM).float()
    at = {"q_pos": torch.arange(3, 6)[None, None], "k_pos": torch.arange(6)[None, None], "bias": bias}
    near = scores(make_request(q, k, **at))
    far = scores(make_request(q, k, **{**at, "q_pos": at["q_pos"] + 3_000_000, "k_pos": at["k_pos"] + 3_000_000}))
    torch.testing.assert_close(far, near, rtol=0, atol=1e-5)


def test_distances_come_from_the_reach_and_from_a_row_without_gaps() -> None:
    q = torch.randn(1, HEADS, 3, DIM)
    pos, other = torch.tensor([[[-1, 7, 8]]]), torch.tensor([[[-1, 7, 8]]])

    def range_of(pattern: Pattern, run: bool = False, k_pos: Tensor = pos) -> tuple[int, int] | None:
        return distances(make_request(q, q, q_pos=pos, k_pos=k_pos, pattern=pattern, run=run))

    assert range_of(Causal() & Band(3)) == (0, 3)
    assert range_of(Band(2, 5)) == (-5, 2)
    assert range_of(Band(5, -1)) == (1, 5)
    assert range_of(Causal()) is None and range_of(Full()) is None
    assert range_of(Causal(), run=True) == (0, 2)
    assert range_of(Full(), run=True) == (-2, 2)
    assert range_of(Band(1, 5), run=True) == (-2, 1)
    assert range_of(Causal(), run=True, k_pos=other) is None  # keys that stand elsewhere, for all that Python knows


@pytest.mark.parametrize("pattern", [Causal(), Causal() & Band(3), Full()], ids=repr)
@pytest.mark.parametrize("run", [True, False])
def test_no_layer_waits_for_its_device(pattern: Pattern, run: bool) -> None:
    q, pos = torch.randn(2, HEADS, 5, DIM), torch.arange(5).expand(2, 1, 5)
    request = make_request(q, q, q_pos=pos, k_pos=pos, pattern=pattern, bias=strong(), run=run)
    with Looks() as looks:
        scores(request)
    assert looks.count == 0
    with Looks() as looks:
        pos.amax().item()
    assert looks.count == 1  # a look would have been seen


@pytest.mark.parametrize("cuts", [[1] * 11, [4, 1, 6]], ids=str)
@pytest.mark.parametrize("pattern", [Causal(), Causal() & Band(3)], ids=repr)
def test_it_decodes(pattern: Pattern, cuts: list[int]) -> None:
    """Chunks of a cache under an endless reach have no table; the row at once has one."""
    layer = Attention(QKV(HEADS * DIM, HEADS), Softmax(pattern, strong()))
    x, pos = torch.randn(2, 11, HEADS * DIM), torch.arange(11).expand(2, -1)
    ctx = Context(pos, run=True)
    whole, state, done, lo = layer(x, None, ctx).y, layer.start(2, 11), [], 0
    for size in cuts:
        out = layer(x[:, lo : lo + size], state, ctx.columns(lo, lo + size))
        state, lo = out.state, lo + size
        done.append(out.y)
    torch.testing.assert_close(torch.cat(done, 1), whole, rtol=0, atol=1e-12)


def test_sines_stand_before_cosines() -> None:
    waves = sinusoids(torch.tensor([-3, 0, 5]), 8, torch.float64)
    torch.testing.assert_close(waves, torch.stack([wave(n, 8) for n in (-3, 0, 5)]), rtol=0, atol=1e-14)


def test_u_and_v_of_one_layer_serve_another() -> None:
    first = TransformerXL(HEADS, DIM)
    second = TransformerXL(HEADS, DIM, u=first.u, v=first.v)
    assert second.u is first.u and second.v is first.v
    assert second.position.weight is not first.position.weight


def test_a_u_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^u has the wrong shape: got \[2, 4\], expected \[4, 6\]$"):
        TransformerXL(HEADS, DIM, u=torch.nn.Parameter(torch.zeros(2, 4)))


def test_a_layer_of_other_heads_is_an_error() -> None:
    q, pos = torch.randn(1, 2, 5, DIM), torch.arange(5)[None, None]
    with pytest.raises(ValueError, match="got a TransformerXL of 4 heads in a layer of 2 heads"):
        scores(make_request(q, q, q_pos=pos, k_pos=pos, bias=strong()))


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="d=9 is odd"):
        TransformerXL(2, 8, 9)


def test_no_query_and_no_key_give_no_score() -> None:
    for queries, keys in ((0, 5), (5, 0), (0, 0)):
        q, k = torch.randn(1, HEADS, queries, DIM), torch.randn(1, HEADS, keys, DIM)
        pos = torch.arange(5)[None, None]
        request = make_request(q, k, q_pos=pos[..., :queries], k_pos=pos[..., :keys], bias=strong())
        assert scores(request).shape == (1, HEADS, queries, keys)


@pytest.mark.parametrize("pattern", [Causal(), Causal() & Band(5), Full(), Band(6, -1)], ids=repr)
@pytest.mark.parametrize("run", [True, False])
def test_distances_beyond_the_clamp_count_as_it(pattern: Pattern, run: bool) -> None:
    """By the equation with R of the clamped distance, whether or not the furthest one is known."""
    bias = TransformerXL(HEADS, DIM, clamp=3)
    torch.nn.init.normal_(bias.v)
    q, k = torch.randn(1, HEADS, 9, DIM), torch.randn(1, HEADS, 9, DIM)
    pos = torch.arange(9)[None, None]
    actual = scores(make_request(q, k, q_pos=pos, k_pos=pos, pattern=pattern, bias=bias, run=run))
    for i, j in torch.cartesian_prod(torch.arange(9), torch.arange(9)).tolist():
        if not bool(pattern(0, 0, i, j)):
            continue
        r = (bias.position.weight @ wave(max(-3, min(3, i - j)), bias.d)).view(HEADS, DIM)
        want = ((q[0, :, i] + bias.u) * k[0, :, j]).sum(-1) + ((q[0, :, i] + bias.v) * r).sum(-1)
        torch.testing.assert_close(actual[0, :, i, j], want * DIM**-0.5, rtol=0, atol=1e-12)
