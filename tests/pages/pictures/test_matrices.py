"""Pictures of what heads and layers make of one another: lent weights, convolved scores, guides, tasks, mixes."""

from typing import Any

import pytest
import torch

from kinformer.core.discover import find_member
from kinformer.nn.biases.camtl import ConditionalBlocks
from kinformer.pages.pictures.matrices import mixed_heads, score_convolution, task_blocks, task_matrix
from kinformer.pages.pictures.structures import guided_heads, lent_weights
from kinformer.pages.pictures.support.picture_panels import Picture

SMALL: dict[str, Any] = {"d": 8, "depth": 2, "heads": 2}


def picture_of(drawer: Any, name: str, length: int | None = None, **keywords: Any) -> Picture:
    (picture,) = drawer(find_member(name)(**{**SMALL, **keywords}), length)
    return picture


def test_a_lazy_block_reads_by_the_weights_of_its_first_layer() -> None:
    kind = picture_of(lent_weights, "lazyformer", depth=5, every=3).panels[0].kind
    want = torch.diag(torch.tensor([1, 0, 0, 1, 0]))
    want[1, 0] = want[2, 0] = want[4, 3] = 2
    assert torch.equal(kind, want)
    assert not list(lent_weights(find_member("lazyformer")(**SMALL, every=1), None))


@pytest.mark.parametrize("form", ["encoder", "decoder"])
def test_a_causal_convolution_hears_of_nothing_ahead(form: str) -> None:
    picture = picture_of(score_convolution, "predictive_attention", form=form)
    kind, names = picture.panels[1].kind, picture.panels[1].rows
    at = names.index("0")
    assert kind[at - 1, at] and bool(kind[at + 1 :].any() | kind[:, at + 1 :].any()) is (form == "encoder")
    assert not kind[0].any() and max(panel.level.max() for panel in picture.panels) == 1


def test_guides_are_drawn_once_with_the_heads_that_have_them() -> None:
    picture = picture_of(guided_heads, "guided_attention", 6, heads=4, guides=("previous", "period"), share=0.75)
    previous, period = picture.panels
    assert previous.title.startswith("layer 0 head 0, layer 0 head 2, layer 1 head 1: ")
    assert torch.equal(previous.kind, torch.diag(torch.ones(5, dtype=torch.long), -1))
    assert period.title.endswith("label 2") and period.kind[:, 2].all() and picture.note.startswith("2 heads of the")


@pytest.mark.parametrize("form", ["columns", "pairs"])
def test_blocks_of_a_task_stand_on_the_diagonal(form: str) -> None:
    model = find_member("camtl")(**SMALL, length=10, blocks=3, form=form)
    (part, *_) = (x for x in model.modules() if isinstance(x, ConditionalBlocks))
    torch.nn.init.normal_(part.blocks)
    result = task_matrix(part, 1, 9)
    rows = part.rows(torch.ones(1, 1, 9, dtype=torch.long), torch.arange(9)[None, None])[0, 0]
    for i in range(9):
        for j in range(9):
            want = rows[i, j % 4] if i // 4 == j // 4 else 0.0
            assert result[i, j] == want
    (picture,) = task_blocks(model, None)
    assert [panel.title for panel in picture.panels] == ["task 0", "task 1"] and picture.panels[0].kind.shape == (
        10,
        10,
    )


def test_mixes_of_heads() -> None:
    talking = picture_of(mixed_heads, "talking_heads", softmax_heads=3, value_heads=4)
    assert [panel.kind.shape for panel in talking.panels] == [(3, 2), (4, 3)]
    shared = picture_of(mixed_heads, "collaborative", shared=6)
    assert shared.panels[0].kind.shape == (2, 6) and shared.line == "head"
    for routing in ("em", "dynamic"):
        voted = picture_of(mixed_heads, "routing_by_agreement", routing=routing, capsules=4)
        assert voted.panels[0].kind.shape == (2, 4) and bool((voted.panels[0].kind == 1).all())
    assert not list(mixed_heads(find_member("gpt")(**SMALL), None))
