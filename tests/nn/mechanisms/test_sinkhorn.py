"""Sinkhorn: both forms by loops from the equations, balancing by what it must be, and noise that sorts harder."""

import itertools
import math

import pytest
import torch

from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.document import Document
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.repeatable_chance import Chance
from kinformer.nn.mechanisms.sinkhorn import Sinkhorn
from kinformer.nn.mechanisms.sort_networks import BlockNet, PairNet, balance_causally, balance_matrix
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K, SIZE = 2, 2, 11, 4, 3
PADDED = torch.tensor([[-1, -1, 0, 1, 2, 3, 4, 5, 6, -1, -1], list(range(T))])


def bundles(mechanism, groups=H, pos=None, **limits):
    pos = torch.arange(T).expand(B, -1) if pos is None else pos
    ctx = Context(pos, run=True, **limits)
    side = torch.randn(B, groups, T, mechanism.net.width)
    keys = Keys(torch.randn(B, groups, T, K), torch.randn(B, groups, T, K), ctx.by_head, {"sort": side})
    return Queries(torch.randn(B, H, T, K), ctx.by_head), keys, ctx


def logit(net, pooled, i, j):
    """What the network says of block j in the place of block i."""
    if isinstance(net, PairNet):
        half = net.width // 2
        return sum(pooled[i][n] * pooled[j][half + n] for n in range(half)) / math.sqrt(half)
    inner = [max(float(x), 0.0) for x in pooled[i]]
    return max(float(sum(x * net.weight[n, j] for n, x in enumerate(inner)) + net.bias[j]), 0.0)


def pooled_of(mechanism, side, is_real, n):
    """Of a block its tokens; causal, all from the begin of the row to the first token of the block."""
    last = n * SIZE if mechanism.causal else min(n * SIZE + SIZE, is_real) - 1
    first = 0 if mechanism.causal else n * SIZE
    total = sum(side[t] for t in range(first, last + 1))
    return total / (last + 1 - first) if mechanism.pool == "mean" else total


def sorted_by_hand(mechanism, side, is_real):
    """S by alternating divisions of plain numbers."""
    count = -(-is_real // SIZE)
    pooled = [pooled_of(mechanism, side, is_real, n) for n in range(count)]
    allowed = [[j < i or not mechanism.causal for j in range(count)] for i in range(count)]

    def start(i, j):
        return math.exp(float(logit(mechanism.net, pooled, i, j)) / mechanism.temperature) * allowed[i][j]

    s = [[start(i, j) for j in range(count)] for i in range(count)]

    def rows(s):
        return [[x / (sum(row) or 1.0) for x in row] for row in s]

    for _ in range(mechanism.iterations):
        s = rows(s)
        # causal: the sums of columns know of no later row
        sums = [
            [sum(s[m][j] for m in range(i + 1 if mechanism.causal else count)) or 1.0 for j in range(count)]
            for i in range(count)
        ]
        s = [[s[i][j] / sums[i][j] for j in range(count)] for i in range(count)]
    return rows(s) if mechanism.causal else s


def mixed(s, n, x, place, is_real):
    """Place t of the sorted block n: what stands there in all blocks, weighed."""
    tokens = [(m, m * SIZE + place) for m in range(len(s)) if m * SIZE + place < is_real]
    return sum(s[n][m] * x[t] for m, t in tokens)


def loop(mechanism, q, k, v, side, is_real):
    """What each query of one head reads, of a row of so many tokens."""
    s, outputs = sorted_by_hand(mechanism, side, is_real), []
    for i in range(is_real):
        n = i // SIZE
        own = [t for t in range(n * SIZE, min(n * SIZE + SIZE, is_real)) if t <= i or not mechanism.causal]
        pairs = [(k[t], v[t]) for t in own] if mechanism.near or not mechanism.cut else []
        blocks = [n] if n or not mechanism.causal else []
        if mechanism.cut:
            blocks = range(min(mechanism.cut, len(s)))
        for block in blocks:
            places = [p for p in range(SIZE) if p < is_real]
            pairs += [(mixed(s, block, k, p, is_real), mixed(s, block, v, p, is_real)) for p in places]
        y = 0
        for group in (pairs[: len(own)], pairs[len(own) :]) if mechanism.apart else (pairs,):
            weights = torch.stack([q[i] @ key / math.sqrt(K) for key, _ in group]).softmax(0) if group else ()
            y = y + sum(w * value for w, (_, value) in zip(weights, group, strict=True))
        if mechanism.mixture:
            last = i + 1 if mechanism.causal else is_real
            y = y + (q[i] @ k[:last].T / math.sqrt(K)).softmax(0) @ v[:last]
        outputs.append(y)
    return torch.stack(outputs)


FORMS = {
    "paper": lambda: Sinkhorn(SIZE, BlockNet(5, 6), causal=False),
    "causal": lambda: Sinkhorn(SIZE, BlockNet(5, 6)),
    "pairs": lambda: Sinkhorn(SIZE, PairNet(2), pool="mean", iterations=2, temperature=0.3),
    "softmax": lambda: Sinkhorn(SIZE, PairNet(2), iterations=0),
    "mixture": lambda: Sinkhorn(SIZE, PairNet(2), causal=False, mixture=True),
    "causal mixture": lambda: Sinkhorn(SIZE, PairNet(2), mixture=True),
    "apart": lambda: Sinkhorn(SIZE, BlockNet(5, 6), causal=False, softmax="apart"),
    "causal apart": lambda: Sinkhorn(SIZE, PairNet(2), softmax="apart"),
    "apart and mixture": lambda: Sinkhorn(SIZE, PairNet(2), softmax="apart", mixture=True),
    "sortcut and near": lambda: Sinkhorn(SIZE, PairNet(2), causal=False, cut=1, near=True),
    "sortcut": lambda: Sinkhorn(SIZE, BlockNet(5, 6), causal=False, cut=2, pool="mean"),
}


@pytest.mark.parametrize("groups", [H, 1])
@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_every_query_reads_its_own_block_and_the_sorted_one(form: str, groups: int) -> None:
    mechanism = FORMS[form]().eval()
    queries, keys, ctx = bundles(mechanism, groups, PADDED)
    actual = mechanism(queries, keys, None, ctx).y
    assert (actual.lse is None) == (mechanism.mixture or mechanism.apart)
    for b, h in ((b, h) for b in range(B) for h in range(H)):
        at, g = PADDED[b] >= 0, h * groups // H
        rows = (x[b, g, at] for x in (keys.k, keys.v, keys.extras["sort"]))
        want = loop(mechanism, queries.q[b, h, at], *rows, int(at.sum()))
        torch.testing.assert_close(actual.y[b, h, at], want)
        assert not actual.y[b, h, ~at].any()


def test_sinkhorn_tends_to_a_doubly_stochastic_matrix() -> None:
    is_real = torch.tensor([[True] * 5 + [False], [True] * 6])
    s = balance_matrix(3 * torch.randn(2, 3, 6, 6), is_real, 200)
    mask = is_real.to(s.dtype)[:, None].expand(-1, 3, -1)
    for dim in (-1, -2):
        torch.testing.assert_close(s.sum(dim), mask)
    assert not s[0, :, 5].any() and not s[0, :, :, 5].any() and bool((s >= 0).all())


def test_a_low_temperature_makes_a_permutation_and_a_high_one_a_mean() -> None:
    logits, is_real = torch.randn(1, 1, 5, 5), torch.ones(1, 5, dtype=torch.bool)
    hard, soft = balance_matrix(logits / 0.003, is_real, 300), balance_matrix(logits / 1000, is_real, 5)
    best = max(itertools.permutations(range(5)), key=lambda p: float(logits[0, 0, range(5), p].sum()))
    assert tuple(hard[0, 0].argmax(-1).tolist()) == best and bool((hard.amax(-1) > 0.99).all())
    torch.testing.assert_close(soft, torch.full_like(soft, 0.2), atol=1e-2, rtol=0)


@pytest.mark.parametrize("iterations", [0, 3])
def test_causal_rows_add_up_to_one_and_know_no_later_row(iterations: int) -> None:
    logits, is_real = torch.randn(1, 2, 6, 6), torch.ones(1, 6, dtype=torch.bool)
    s = balance_causally(logits, is_real, iterations)
    assert not s.triu().any()
    torch.testing.assert_close(s.sum(-1), torch.tensor([0.0, 1, 1, 1, 1, 1]).expand(1, 2, -1))
    logits[:, :, 4:] = torch.randn(1, 2, 2, 6)
    torch.testing.assert_close(balance_causally(logits, is_real, iterations)[:, :, :4], s[:, :, :4], rtol=0, atol=0)


def test_the_one_causal_permutation_is_the_block_before() -> None:
    s = balance_causally(torch.randn(1, 1, 4, 4), torch.ones(1, 4, dtype=torch.bool), 1_000)
    assert bool((s[0, 0].diagonal(-1)[1:] > 0.99).all())


def test_noise_is_gumbels_and_of_training_alone() -> None:
    mechanism = Sinkhorn(SIZE, BlockNet(5, 6))
    queries, keys, ctx = bundles(mechanism)
    calls = [mechanism(queries, keys, None, ctx).y.y for _ in range(2)]
    assert torch.equal(*calls)
    assert mechanism.chance is not None
    mechanism.chance.after_step(0.0, {})
    assert not torch.allclose(calls[0], mechanism(queries, keys, None, ctx).y.y)
    mechanism.eval()
    still = Sinkhorn(SIZE, mechanism.net, noise=False)
    torch.testing.assert_close(mechanism(queries, keys, None, ctx).y.y, still(queries, keys, None, ctx).y.y)
    noise = Chance().gumbel(torch.arange(100)[:, None], torch.arange(200))
    # the mean is Euler's constant, the variance pi^2 / 6: within 5 standard errors of 20,000
    assert abs(float(noise.mean()) - 0.5772) < 5 * math.pi / math.sqrt(6 * 20_000)
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.1


def test_rows_draw_noise_apart_and_equal_rows_alike() -> None:
    """A net that says nothing sorts by noise alone."""
    net = BlockNet(16, 4)
    net.weight.data.zero_()
    mechanism, pos = Sinkhorn(SIZE, net, causal=False), torch.arange(3 * SIZE).expand(4, -1)
    side = torch.randn(4, 2, 3 * SIZE, 16)
    side[2] = side[0]
    blocks = mechanism.blocks_of(pos[:, None])
    sort = mechanism.sorting(side, blocks)
    assert torch.equal(sort[0], sort[2])
    assert not any(torch.allclose(sort[0], sort[n], atol=0.1) for n in (1, 3))
    alone = mechanism.sorting(side[3:], mechanism.blocks_of(pos[3:, None]))
    assert torch.equal(alone[0], sort[3])


def test_refusals() -> None:
    attention = Attention(QKV(8, 2), Sinkhorn(2, BlockNet(4, 3)))
    with pytest.raises(ValueError, match="3 blocks of 2"):
        attention(torch.randn(1, 7, 8))
    with pytest.raises(ValueError, match="3 blocks of 2"):
        attention.start(1, 7)
    pos = torch.arange(4)[None]
    with pytest.raises(ValueError, match=r"ctx\.only"):
        attention(torch.randn(1, 4, 8), None, Context(pos, run=True, only=Document(pos)))
    with pytest.raises(ValueError, match="consecutively"):
        attention(torch.randn(1, 4, 8), None, Context(pos))
    with pytest.raises(ValueError, match="causal=False"):
        Sinkhorn(2, PairNet(2), cut=1)
    with pytest.raises(ValueError, match="near=True"):
        Sinkhorn(2, PairNet(2), near=True)
    spec = StateSpec(1, 4, torch.float64, torch.device("cpu"))
    with pytest.raises(NoState, match=r"^Sinkhorn\(causal=False\) has no state.* Use "):
        Sinkhorn(2, PairNet(2), causal=False).start(spec, HeadSizes(2, 2, 2, 4, 4))
    with pytest.raises(ValueError, match=r"^Sinkhorn cannot be used in cross-attention: .*\. Use Softmax$"):
        Attention(QKV(8, 2), Sinkhorn(2, PairNet(2)), cross=True)
