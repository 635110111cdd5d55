"""RelativeSegment against XLNet's equation, one pair at a time, in pieces and with a cache, and what it refuses."""

import pytest
import torch

from kinformer.core.score_matrix import scores
from kinformer.nn.biases.relative_segment import RelativeSegment
from tests.nn.biases.requests import make_request
from tests.nn.biases.segments import strong, the_cut_changes_nothing, weights_are_those_of_the_whole


def test_the_equation(float64: None) -> None:
    """(q_i.k_j + (q_i + u).a_n) / sqrt(K), n = 0 within a segment and 1 between two."""
    bias, q, k = RelativeSegment(2, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    segment, pos = torch.tensor([[0, 0, 1, 1, 2], [3, 0, 3, 0, 0]]), torch.arange(5).expand(2, 1, 5)
    actual = scores(make_request(q, k, q_pos=pos, k_pos=pos, bias=bias, segments=(segment, segment)))
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, (2, 2, 5, 5))).tolist():
        n = int(segment[b, i] != segment[b, j])
        want = (q[b, h, i].dot(k[b, h, j]) + (q[b, h, i] + bias.u[h]).dot(bias.keys[h, n])) / 2
        torch.testing.assert_close(actual[b, h, i, j], want, rtol=0, atol=1e-12)


def test_without_segments_it_adds_nothing() -> None:
    q, pos = torch.randn(1, 2, 5, 4), torch.arange(5)[None, None]
    with_it, without = (scores(make_request(q, q, q_pos=pos, k_pos=pos, bias=b)) for b in (RelativeSegment(2, 4), None))
    assert torch.equal(with_it, without)


def test_segments_of_another_sequence_are_refused() -> None:
    q, pos, segment = torch.randn(1, 2, 5, 4), torch.arange(5)[None, None], torch.zeros(1, 4, dtype=torch.long)
    request = make_request(q, q, q_pos=pos, k_pos=pos, bias=RelativeSegment(2, 4), segments=(segment, segment))
    with pytest.raises(ValueError, match="RelativeSegment got .* of 4 queries and 4 keys for 5 queries and 5 keys"):
        scores(request)


@pytest.mark.parametrize("side", ["queries", "keys"])
def test_segments_of_one_side_alone_are_refused(side: str) -> None:
    """A source, and what a memory kept, have none: to take them for segment 0 would be a wrong number."""
    q, pos, segment = torch.randn(1, 2, 5, 4), torch.arange(5)[None, None], torch.zeros(1, 5, dtype=torch.long)
    request = make_request(q, q, q_pos=pos, k_pos=pos, bias=RelativeSegment(2, 4), segments=(segment, segment))
    other = "keys" if side == "queries" else "queries"
    request = request.replace(**{other: getattr(request, other)._replace(labels={})})
    with pytest.raises(ValueError, match=f"RelativeSegment compares .* only the {side} have one"):
        scores(request)


def test_a_layer_of_other_heads_is_an_error() -> None:
    q, pos = torch.randn(1, 2, 5, 4), torch.arange(5)[None, None]
    with pytest.raises(ValueError, match="got a RelativeSegment of 3 heads in a layer of 2 heads"):
        scores(make_request(q, q, q_pos=pos, k_pos=pos, bias=RelativeSegment(3, 4)))


@pytest.mark.parametrize("cuts", [[1] * 12, [5, 1, 6], [4, 8]], ids=str)
def test_it_decodes_with_the_segments_that_a_cache_keeps(cuts: list[int], float64: None) -> None:
    the_cut_changes_nothing(strong(RelativeSegment(2, 8)), cuts)


def test_rows_of_the_attention_matrix_are_those_of_the_whole(float64: None) -> None:
    weights_are_those_of_the_whole(strong(RelativeSegment(2, 8)))
