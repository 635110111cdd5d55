"""ETCLabels: one label for each relation, in pieces and with a cache, and what it refuses."""

import pytest
import torch

from kinformer.core.score_matrix import scores
from kinformer.nn.biases.etc_labels import ETCLabels
from tests.nn.biases.requests import make_request
from tests.nn.biases.segments import strong, the_cut_changes_nothing, weights_are_those_of_the_whole


@pytest.mark.parametrize("order", [False, True])
def test_every_relation_has_a_label_of_its_own(order: bool) -> None:
    """Global positions 0..2 stand for segments 0..2; the text's positions 3..11 are three of each."""
    bias, at = ETCLabels(1, 4, 3, 2, order=order), torch.arange(12)
    segment = torch.tensor([0, 1, 2, *[0] * 3, *[1] * 3, *[2] * 3])
    actual = bias.label(at[:, None], at, segment - segment[:, None])
    names: dict[int, set[tuple]] = {}
    for i in range(12):
        for j in range(12):
            if (i < 3) == (j < 3):
                name = (i < 3, j < 3, max(-2, min(2, j - i)))
            else:
                side = (segment[j] - segment[i]).sign().item()
                name = (i < 3, j < 3, side if order else bool(side))
            names.setdefault(int(actual[i, j]), set()).add(name)
    assert all(len(name) == 1 for name in names.values())
    assert sorted(names) == list(range(bias.keys.shape[1])) and len(names) == (16 if order else 14)


def test_segments_of_another_sequence_are_refused() -> None:
    q, pos, segment = torch.randn(1, 2, 5, 8), torch.arange(5)[None, None], torch.zeros(1, 4, dtype=torch.long)
    request = make_request(q, q, q_pos=pos, k_pos=pos, bias=ETCLabels(2, 8, 2, 3), segments=(segment, segment))
    with pytest.raises(ValueError, match="ETCLabels got .* of 4 queries and 4 keys for 5 queries and 5 keys"):
        scores(request)


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("cuts", [[1] * 12, [5, 1, 6], [4, 8]], ids=str)
def test_it_decodes_with_the_segments_that_a_cache_keeps(cuts: list[int], order: bool, float64: None) -> None:
    the_cut_changes_nothing(strong(ETCLabels(2, 8, 2, 3, order=order)), cuts)


@pytest.mark.parametrize("order", [False, True])
def test_rows_of_the_attention_matrix_are_those_of_the_whole(order: bool, float64: None) -> None:
    weights_are_those_of_the_whole(strong(ETCLabels(2, 8, 2, 3, order=order)))


def test_a_negative_clip_is_refused() -> None:
    with pytest.raises(ValueError, match="clip=-1"):
        ETCLabels(2, 8, 2, -1)
