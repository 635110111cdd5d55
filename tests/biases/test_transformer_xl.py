"""The Transformer-XL bias against the paper's equation, one pair at a time."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.biases.transformer_xl import TransformerXL, distances, sinusoids
from kinformer.core.pattern import Pattern
from kinformer.core.scores import scores
from kinformer.execute import attend
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full
from kinformer.patterns.segment import Segment

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


def test_what_reaches_the_table_s_ends_is_the_same_from_reach_and_from_positions() -> None:
    bias = strong()
    q, k = torch.randn(1, HEADS, 5, DIM), torch.randn(1, HEADS, 5, DIM)
    pos = torch.arange(10, 15)[None, None]
    by_positions = scores(q, k, q_pos=pos, k_pos=pos, pattern=Full(), bias=bias)
    by_reach = scores(q, k, q_pos=pos, k_pos=pos, pattern=Band(4), bias=bias)
    torch.testing.assert_close(by_positions, by_reach, rtol=0, atol=1e-13)


def test_only_distances_matter() -> None:
    bias = strong()
    q, k = torch.randn(2, HEADS, 3, DIM), torch.randn(2, HEADS, 6, DIM)
    q_pos, k_pos = torch.arange(3, 6).expand(2, 1, -1), torch.arange(6).expand(2, 1, -1)
    here = scores(q, k, q_pos=q_pos, k_pos=k_pos, pattern=Full(), bias=bias)
    there = scores(q, k, q_pos=q_pos + 1000, k_pos=k_pos + 1000, pattern=Full(), bias=bias)
    assert torch.equal(here, there)
    moved = scores(q, k, q_pos=q_pos + 1, k_pos=k_pos, pattern=Full(), bias=bias)
    assert not torch.allclose(here, moved)


def test_distances_come_from_the_reach_and_else_from_real_positions() -> None:
    q_pos, k_pos = torch.tensor([[[-1, 7, 9]]]), torch.tensor([[[-1, 4, 12]]])
    assert distances(q_pos, k_pos, (3, 0)) == (0, 3)
    assert distances(q_pos, k_pos, (math.inf, 0)) == (0, 5)
    assert distances(q_pos, k_pos, (2, math.inf)) == (-5, 2)
    assert distances(q_pos, k_pos, (math.inf, math.inf)) == (-5, 5)
    assert distances(torch.full_like(q_pos, -1), k_pos, (math.inf, math.inf)) == (0, 0)


def test_sines_stand_before_cosines() -> None:
    waves = sinusoids(torch.tensor([-3, 0, 5]), 8, torch.float64)
    torch.testing.assert_close(waves, torch.stack([wave(n, 8) for n in (-3, 0, 5)]), rtol=0, atol=1e-14)


def test_u_and_v_of_one_layer_serve_another() -> None:
    first = TransformerXL(HEADS, DIM)
    second = TransformerXL(HEADS, DIM, u=first.u, v=first.v)
    assert second.u is first.u and second.v is first.v
    assert second.position.weight is not first.position.weight


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="d=9 is odd"):
        TransformerXL(2, 8, 9)
