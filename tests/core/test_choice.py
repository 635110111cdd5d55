"""Hard choices are made once, also where a layer is computed again, within another that is."""

import pytest
import torch
from torch import Tensor

from kinformer.core.choice import Choices, choice, run_checkpointed


class Coin:
    """Says something else each time."""

    def __init__(self) -> None:
        self.thrown = 0

    def __call__(self) -> Tensor:
        self.thrown += 1
        return torch.tensor(float(self.thrown))


def test_outside_it_is_what_is_made() -> None:
    coin = Coin()
    assert [float(choice(coin)) for _ in range(3)] == [1.0, 2.0, 3.0]


def test_choices_are_read_in_the_order_in_which_they_were_made() -> None:
    coin, choices = Coin(), Choices()
    with choices.record():
        values = [float(choice(coin)) for _ in range(3)]
    for _ in range(2):
        with choices.replay():
            assert [float(choice(coin)) for _ in range(3)] == values == [1.0, 2.0, 3.0]
    assert coin.thrown == 3


def test_what_is_written_within_is_written_down_outside_too_and_read_from_the_inmost() -> None:
    coin, outer, inner = Coin(), Choices(), Choices()
    with outer.record():
        choice(coin)
        with inner.record():
            choice(coin)
    assert [float(choice_made) for choice_made in outer.made] == [1.0, 2.0] and [
        float(choice_made) for choice_made in inner.made
    ] == [2.0]
    reread = Choices()
    with outer.replay():
        assert float(choice(coin)) == 1.0
        with reread.record():
            assert float(choice(coin)) == 2.0
    assert [float(choice_made) for choice_made in reread.made] == [2.0]
    with outer.replay(), inner.replay():
        assert float(choice(coin)) == 2.0
    assert coin.thrown == 2


def test_an_error_leaves_no_trace() -> None:
    with pytest.raises(RuntimeError), Choices().replay():
        raise RuntimeError
    assert float(choice(Coin())) == 1.0


@pytest.mark.parametrize("deep", [1, 2])
def test_a_layer_that_is_computed_again_has_the_gradient_of_its_forward(deep: int) -> None:
    coin, x = Coin(), torch.tensor(3.0, requires_grad=True)

    def layer(z: Tensor) -> Tensor:
        return choice(coin) * z * z

    def outer(z: Tensor) -> Tensor:
        return run_checkpointed(layer, z)

    (gradient,) = torch.autograd.grad(run_checkpointed(layer if deep == 1 else outer, x), x)
    assert gradient == 6.0 and coin.thrown == 1
