"""GPT-NeoX: the published size, the part of a head that turns, and both orders of its sublayers."""

import re

import pytest
import torch

from kinformer.members.gpt_neox import gpt_neox


def test_pythia_70m_has_its_18_million_parameters_beside_the_tables() -> None:
    with torch.device("meta"):
        model = gpt_neox(d=512, depth=6, heads=8, vocab=50304)
    tables = {"embedding.weight", "head.weight"}
    assert sum(weight.numel() for name, weight in model.named_parameters() if name not in tables) == 18_915_328


@pytest.mark.parametrize(
    ("turned", "moved"), [(None, [0, 1, 2, 3]), (2, [0, 1]), (6, [0, 1, 2, 3, 4, 5]), (16, list(range(16)))]
)
def test_the_first_numbers_of_a_head_turn(turned: int | None, moved: list[int]) -> None:
    model = gpt_neox(d=32, depth=1, heads=2, vocab=11, turned=turned)
    (rotation,) = {part for part in model.modules() if type(part).__name__ == "Rotary"}
    rotated = rotation(torch.eye(16)[None, None], torch.full((1, 16), 3))[0, 0]
    assert [n for n in range(16) if not torch.equal(rotated[n], torch.eye(16)[n])] == moved


def test_both_orders_have_the_same_weights_and_other_outputs() -> None:
    first, second = (gpt_neox(d=16, depth=2, heads=2, vocab=11, parallel=parallel) for parallel in (True, False))
    renamed = {
        re.sub(r"^(body\.layers\.\d)\.layers\.0\.", r"\1.", name): weight for name, weight in first.state_dict().items()
    }
    second.load_state_dict(renamed)
    tokens = torch.randint(0, 11, (2, 9))
    assert (first.logits(tokens).y - second.logits(tokens).y).abs().max() > 1e-3


@pytest.mark.parametrize(("turned", "message"), [(3, "an even number"), (10, "at most head_dim=8"), (-2, "turned")])
def test_a_part_that_no_head_has_is_refused(turned: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpt_neox(d=16, depth=1, heads=2, vocab=11, turned=turned)
