"""RelativeSegment against XLNet's equation, one pair at a time, and what it refuses."""

import pytest
import torch

from kinformer.biases.relative_segment import RelativeSegment
from kinformer.core.layer import Context
from kinformer.core.scores import scores
from kinformer.patterns.full import Full


def test_the_equation(float64: None) -> None:
    """(q_i.k_j + (q_i + u).a_n) / sqrt(K), n = 0 within a segment and 1 between two."""
    bias, q, k = RelativeSegment(2, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    segment, pos = torch.tensor([[0, 0, 1, 1, 2], [3, 0, 3, 0, 0]]), torch.arange(5).expand(2, 1, 5)
    ctx = Context(pos[:, 0], below={"segment": segment})
    found = scores(q, k, q_pos=pos, k_pos=pos, pattern=Full(), bias=bias, ctx=ctx)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, (2, 2, 5, 5))).tolist():
        n = int(segment[b, i] != segment[b, j])
        want = (q[b, h, i].dot(k[b, h, j]) + (q[b, h, i] + bias.u[h]).dot(bias.keys[h, n])) / 2
        torch.testing.assert_close(found[b, h, i, j], want, rtol=0, atol=1e-12)


def test_without_segments_it_adds_nothing() -> None:
    q, pos = torch.randn(1, 2, 5, 4), torch.arange(5)[None, None]
    with_it, without = (
        scores(q, q, q_pos=pos, k_pos=pos, pattern=Full(), bias=b) for b in (RelativeSegment(2, 4), None)
    )
    assert torch.equal(with_it, without)


def test_segments_of_another_sequence_are_refused() -> None:
    q, pos = torch.randn(1, 2, 5, 4), torch.arange(5)[None, None]
    ctx = Context(pos[0], below={"segment": torch.zeros(1, 4, dtype=torch.long)})
    with pytest.raises(ValueError, match="RelativeSegment got segments of 4 tokens for 5 queries and 5 keys"):
        scores(q, q, q_pos=pos, k_pos=pos, pattern=Full(), bias=RelativeSegment(2, 4), ctx=ctx)
