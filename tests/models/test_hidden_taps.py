"""The input of the last feed-forward, as datastores take it: found in every form of body."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.members.act_rnn import act_rnn
from kinformer.members.bert import bert
from kinformer.members.bp_transformer import bp_transformer
from kinformer.members.gpt import gpt
from kinformer.members.transformer_xl import transformer_xl
from kinformer.members.universal_transformer import universal_transformer
from kinformer.models.support.hidden_taps import Tap
from kinformer.nn.feedforward.mlp import MLP

SIZES = {"d": 8, "depth": 2, "heads": 2}


def first_input(model: Any, tokens: Tensor) -> Tensor:
    """What the last feed-forward layer that is called gets."""
    inputs: list[Tensor] = []
    for part in model.modules():
        if isinstance(part, MLP):
            part.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
    model.logits(tokens)
    return inputs[-1]


@pytest.mark.parametrize("make", [gpt, transformer_xl, universal_transformer])
def test_it_is_what_the_last_feed_forward_gets(make: Callable[..., Any]) -> None:
    model = make(**SIZES).eval()
    tokens = torch.randint(256, (2, 5), generator=torch.Generator().manual_seed(0))
    tapped = Tap(model)(tokens)
    torch.testing.assert_close(tapped.states, first_input(model, tokens))
    torch.testing.assert_close(tapped.out.y, model.logits(tokens).y)


def test_tokens_that_halt_are_tapped_at_the_last_step_with_all_others() -> None:
    torch.manual_seed(2)
    model = universal_transformer(d=16, depth=4, heads=2, vocab=11).eval()
    tokens = torch.randint(11, (60, 5))
    tap, steps = Tap(model), model.logits(tokens).aux["steps"]
    assert steps.min() < steps.max(), "some halt before others"
    assert tap.place == "3.1.input" and tap(tokens).states.shape == (60, 5, 16)
    alone = torch.cat([tap(row[None]).states for row in tokens])
    torch.testing.assert_close(tap(tokens).states, alone)
    torch.testing.assert_close(tap(tokens).out.y, model.logits(tokens).y)


def test_nodes_beside_the_tokens_are_left_out() -> None:
    tokens = torch.zeros(1, 5, dtype=torch.long)
    assert Tap(bp_transformer(**SIZES).eval())(tokens).states.shape == (1, 5, 8)


def test_it_goes_on_from_a_state() -> None:
    model = gpt(**SIZES).eval()
    tokens = torch.randint(256, (1, 6), generator=torch.Generator().manual_seed(1))
    tap = Tap(model)
    first = tap(tokens[:, :4], model.start(1, 6))
    second = tap(tokens[:, 4:], first.out.state)
    torch.testing.assert_close(torch.cat([first.states, second.states], 1), tap(tokens).states)


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (lambda: gpt(**SIZES), "7.1.input", "gpt has no hidden state '7.1.input'; give last_ffn_input, or a name such"),
        (act_rnn, "last_ffn_input", "act_rnn has no feed-forward layer; name another hidden state"),
        (lambda: bert(**SIZES), "last_ffn_input", "does not predict the next token of a text; give a language model"),
    ],
)
def test_what_has_no_such_state_is_refused_in_one_line(make: Callable[[], Any], name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Tap(make().eval(), name)
    assert "\n" not in str(error.value)
