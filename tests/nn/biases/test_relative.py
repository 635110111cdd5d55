"""Shaw's relative positions against the paper's equations, one pair at a time."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.attend import attend
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.score_matrix import scores
from kinformer.nn.biases.relative import Relative
from kinformer.nn.patterns.band import Band
from tests.nn.biases.requests import make_request

pytestmark = pytest.mark.usefixtures("float64")
K, V = 6, 5


def own(table: Tensor | None, head: int) -> Any:
    """A head's table: the one that all share, or its own."""
    return table if table is None or table.dim() == 2 else table[head]


def naive(bias: Relative, q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, pattern: Pattern) -> Tensor:
    """e_ij = q_i.(k_j + a_n) / sqrt(K) and z_i = sum_j softmax(e)_ij (v_j + b_n), n = clip(j - i)."""
    y = torch.zeros(*q.shape[:3], v.shape[-1])
    group = q.shape[1] // k.shape[1]
    for b in range(len(q)):
        for h in range(q.shape[1]):
            for i, query in enumerate(q_pos[b].tolist()):
                logits, read = [], []
                for j, key in enumerate(k_pos[b].tolist()):
                    if min(query, key) < 0 or not pattern(b, h, query, key):
                        continue
                    row = max(-bias.clip, min(bias.clip, key - query)) + bias.clip
                    keys, added = (own(table, h) for table in (bias.keys, bias.added))
                    logits.append(q[b, h, i] @ (k[b, h // group, j] + keys[row]) * K**-0.5)
                    read.append(v[b, h // group, j] + (0 if added is None else added[row]))
                if read:
                    y[b, h, i] = torch.stack(logits).softmax(0) @ torch.stack(read)
    return y


@pytest.mark.parametrize("pattern", [Full(), Causal(), Band(1, 3), Causal() & ~Band(0)], ids=repr)
@pytest.mark.parametrize("clip", [0, 2, 9])
@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("heads", [None, 4])
def test_it_is_the_equation(pattern: Pattern, clip: int, values: bool, heads: int | None) -> None:
    bias = Relative(K, clip, value_dim=V, values=values, heads=heads)
    q, k, v = torch.randn(3, 4, 4, K), torch.randn(3, 2, 6, K), torch.randn(3, 2, 6, V)
    q_pos = torch.tensor([[0, 1, 2, 3], [-1, 0, 8, 9], [5, 1, 4, -1]])
    k_pos = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, 0, 4, 5, 8, 9], [5, 0, 3, 1, 2, -1]])
    read = attend(q, k, v, q_pos=q_pos[:, None], k_pos=k_pos[:, None], pattern=pattern, bias=bias)
    torch.testing.assert_close(read.y, naive(bias, q, k, v, q_pos, k_pos, pattern), rtol=0, atol=1e-12)


def test_the_tables_are_shared_by_heads_and_distances_beyond_the_clip_are_alike() -> None:
    bias = Relative(K, 2)
    assert bias.keys.shape == (5, K) and bias.added is not None and bias.added.shape == (5, K)
    q, k = torch.randn(1, 1, 1, K).expand(1, 3, 6, K), torch.zeros(1, 3, 6, K)
    pos = torch.arange(6)[None, None]
    terms = scores(make_request(q, k, q_pos=pos, k_pos=pos, bias=bias))
    assert torch.equal(terms[:, 0], terms[:, 1])
    assert torch.equal(terms[0, 0, 0, 2:], terms[0, 0, 0, 2].expand(4))
    assert len(terms[0, 0].unique()) == 5


def test_every_row_of_both_tables_learns() -> None:
    bias = Relative(K, 3)
    q, k, v = torch.randn(3, 1, 2, 5, K).unbind(0)
    pos = torch.arange(5)[None, None]
    attend(q, k, v, q_pos=pos, k_pos=pos, pattern=Full(), bias=bias).y.square().sum().backward()
    for table in (bias.keys, bias.added):
        assert table is not None and table.grad is not None and bool((table.grad.abs().amax(1) > 0).all())


def test_a_negative_clip_and_tables_of_other_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="clip=-1"):
        Relative(8, -1)
    q, pos = torch.randn(1, 2, 5, K), torch.arange(5)[None, None]
    with pytest.raises(ValueError, match="got a Relative of 3 heads in a layer of 2 heads"):
        attend(q, q, q, q_pos=pos, k_pos=pos, pattern=Full(), bias=Relative(K, 1, heads=3))


@pytest.mark.parametrize("pattern", [Causal(), Band(1, 3), Causal() & Band(2)], ids=repr)
@pytest.mark.parametrize("heads", [None, 4])
def test_by_a_pattern_s_reach_it_has_a_row_for_each_distance_that_is_read_and_no_other(
    pattern: Pattern, heads: int | None
) -> None:
    """It loads the rows of a whole table, as earlier versions saved them, and reads what the whole table reads."""
    whole = Relative(K, 3, value_dim=V, heads=heads)
    few = Relative(K, 3, value_dim=V, heads=heads, reach=pattern.reach())
    few.load_state_dict(whole.state_dict())
    read = {max(-3, min(3, j - i)) for i in range(12) for j in range(12) if pattern(0, 0, i, j)}
    assert few.keys.shape[-2] == few.added.shape[-2] == len(read)
    q, k, v, pos = torch.randn(1, 4, 9, K), torch.randn(1, 2, 9, K), torch.randn(1, 2, 9, V), torch.arange(9)
    read_by_few = attend(q, k, v, q_pos=pos[None, None], k_pos=pos[None, None], pattern=pattern, bias=few)
    torch.testing.assert_close(read_by_few.y, naive(whole, q, k, v, pos[None], pos[None], pattern), rtol=0, atol=1e-12)
