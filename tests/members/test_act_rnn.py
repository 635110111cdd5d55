"""act_rnn: its forms are keywords, pondering is paid for, and it starts at chance."""

import math

import pytest
import torch
from torch import nn

from kinformer.decoding.generate import generate
from kinformer.members.act_rnn import act_rnn
from kinformer.nn.depth.act import add_weighted, interpolate_answer


@pytest.mark.parametrize(("cell", "kind"), [("rnn", nn.RNNCell), ("gru", nn.GRUCell), ("lstm", nn.LSTMCell)])
def test_it_writes_with_its_state_what_it_writes_without(cell: str, kind: type) -> None:
    model, prompt = act_rnn(d=16, depth=3, cell=cell, vocab=11).double(), torch.tensor([[3, 1, 4], [-1, 1, 5]])
    assert type(model.body.cell) is kind
    rows = generate(model, prompt, 6, temperature=0)
    assert torch.equal(rows, generate(model, prompt, 6, temperature=0, recompute=True))


def test_the_defaults_are_graves_and_the_universal_transformer_s_forms_are_keywords() -> None:
    body = act_rnn(d=16, vocab=11).body
    assert (body.mix, body.halting.last, body.halting.strict) == (add_weighted, "remainder", False)
    assert body.halting.unit.bias.item() == 1 and body.halting.epsilon == 0.01
    body = act_rnn(d=16, vocab=11, mix="running", last="probability", strict=True, bias=-1.0, epsilon=0.1).body
    assert (body.mix, body.halting.last, body.halting.strict) == (interpolate_answer, "probability", True)
    assert body.halting.unit.bias.item() == -1 and body.halting.epsilon == 0.1


def test_pondering_is_paid_for_and_it_starts_at_chance() -> None:
    torch.manual_seed(0)
    model, tokens = act_rnn(d=64, depth=4, ponder=0.5), torch.randint(0, 256, (4, 9))
    loss = model(tokens, model.start(4, 9))
    assert torch.allclose(loss.total, loss.parts["nll"] + 0.5 * loss.parts["ponder"])
    assert 1 <= loss.parts["steps"] <= 4 and abs(float(loss.parts["nll"].detach()) / math.log(256) - 1) < 0.1
    assert model.lanes and loss.state is not None
