"""The linear Transformer and the Performer: a state that does not grow, and draws of their own for each block."""

import pytest
import torch

from kinformer.core.state import leaves
from kinformer.discover import find_member
from kinformer.members.performer import performer
from kinformer.train.after_step import after_step


@pytest.mark.parametrize("name", ["linear_transformer", "performer"])
def test_the_state_is_as_large_for_any_row(name: str) -> None:
    model = find_member(name)(d=16, depth=2, heads=2, length=64, vocab=11)

    def size(length: int) -> int:
        return sum(leaf.numel() for _, leaf in leaves(model.start(2, length)))

    assert size(1) == size(100_000)
    state = model.start(1, 40)
    state = model.logits(torch.randint(0, 11, (1, 40)), state).state
    assert sum(leaf.numel() for _, leaf in leaves(state)) * 2 == size(40)


@pytest.mark.parametrize("name", ["linear_transformer", "performer", "rfa"])
def test_with_lanes_they_read_on_beyond_any_length(name: str) -> None:
    """A7: those who want the state carried in training say so, and their positions do not end."""
    assert not find_member(name)(d=16, depth=2, heads=2, vocab=11).lanes
    model = find_member(name)(d=16, depth=2, heads=2, vocab=11, lanes=True, length=8).eval()
    assert model.lanes
    tokens, state, pieces = torch.randint(0, 11, (1, 24)), model.start(1, 24), []
    for chunk in tokens.split(6, 1):
        out = model.logits(chunk, state)
        state = out.state
        pieces.append(out.y)
    torch.testing.assert_close(torch.cat(pieces, 1), model.logits(tokens).y, rtol=1e-4, atol=1e-4)


def test_blocks_draw_their_own_directions_anew_while_they_train() -> None:
    model = performer(d=16, depth=2, heads=2, features=12, redraw=2, length=64, vocab=11)
    first, second = (block.layers[0].mechanism.map for block in model.body.layers)
    before = first.directions.clone()
    assert not torch.equal(before, second.directions)
    after_step(model, 0.1, {})
    assert torch.equal(first.directions, before)
    after_step(model, 0.2, {})
    assert not torch.equal(first.directions, before) and not torch.equal(first.directions, second.directions)
