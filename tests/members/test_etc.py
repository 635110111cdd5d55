"""ETC: what its keywords change, and that sentences or lines of a text are its segments."""

import pytest
import torch

from kinformer.depth.global_tokens import GlobalTokens
from kinformer.laws import any_length, padding
from kinformer.laws.support.judging import Judged, verdict
from kinformer.members.etc import etc
from kinformer.models.mlm import MLM

SMALL = {"d": 16, "depth": 1, "heads": 2, "radius": 2, "tokens": 3, "clip": 2}


def size(**keywords: object) -> int:
    return sum(weight.numel() for weight in etc(**{**SMALL, **keywords}).parameters())


def test_projections_outputs_and_order_are_what_they_add() -> None:
    plain, matrix = size(projections="shared", outputs="shared"), 16 * 16 + 16
    for projections, more in (("reader", 3), ("four", 7), ("own", 3)):
        assert size(projections=projections, outputs="shared") - plain == more * matrix
    assert size(projections="shared", outputs="separate") - plain == matrix
    # one more label each way, two heads of width 8
    assert size(projections="shared", outputs="shared", order=True) - plain == 2 * 2 * 8
    assert size(projections="shared", outputs="shared", hard=("g2l", "l2g")) == plain


def test_it_is_as_large_as_other_members() -> None:
    with torch.device("meta"):
        assert 1.0e6 < sum(weight.numel() for weight in etc().parameters()) < 1.3e6


def segments_seen(model: MLM, tokens: torch.Tensor) -> list[int]:
    seen = []
    body = model.body
    assert isinstance(body, GlobalTokens)
    body.layer.register_forward_hook(lambda part, inputs, out: seen.append(inputs[2].labels["segment"]))
    model.logits(tokens)
    return seen[0][0].tolist()


def test_each_sentence_has_a_global_token_unless_another_unit_is_named() -> None:
    assert segments_seen(etc(**SMALL), torch.tensor([list(b"A\n. B")])) == [0, 1, -1] + [0] * 4 + [1]


def test_each_line_has_a_global_token_and_the_last_has_the_rest() -> None:
    text = torch.tensor([list(b"ab\nc\n")])
    assert segments_seen(etc(**SMALL, unit="line"), text) == [0, 1, -1, 0, 0, 0, 1, 1]
    text = torch.tensor([list(b"a\nb\nc\nd")])
    assert segments_seen(etc(**SMALL, unit="line"), text) == [0, 1, 2, 0, 0, 1, 1, 2, 2, 2]
    hidden = text.masked_fill(text == 10, 256)  # a hidden newline says nothing of where a line ends
    assert segments_seen(etc(**SMALL, unit="line"), hidden) == [0, -1, -1] + [0] * 7


@pytest.mark.parametrize("law", [any_length, padding])
@pytest.mark.parametrize("projections", ["four", "shared"])
def test_laws_with_hard_masks(law, projections) -> None:
    keywords = {**SMALL, "projections": projections, "hard": ("g2l", "l2g"), "order": True, "vocab": 11}
    found = verdict("law", law, Judged("etc", lambda: etc(**keywords)))
    assert found is not None and found.end == "holds", found
