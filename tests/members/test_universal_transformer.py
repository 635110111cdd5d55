"""The Universal Transformer: its weights do not grow with depth, and its ponder cost is part of the loss."""

import pytest
import torch

from kinformer.members.universal_transformer import universal_transformer
from kinformer.models.lm import LM


def test_depth_costs_no_weights_and_fixed_has_only_no_halting_unit() -> None:
    sizes = {
        name: sum(w.numel() for w in universal_transformer(d=16, heads=2, vocab=11, **keywords).parameters())
        for name, keywords in (("two", {"depth": 2}), ("six", {"depth": 6}), ("fixed", {"halting": "fixed"}))
    }
    assert sizes["two"] == sizes["six"] == sizes["fixed"] + 17


def test_what_is_embedded_is_scaled_to_stand_up_to_the_timing() -> None:
    model, seen = universal_transformer(d=16, depth=2, heads=2, vocab=11), []
    model.body.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    tokens = torch.randint(0, 11, (2, 5))
    model.logits(tokens)
    assert torch.equal(seen[0], 4 * model.embedding.weight[tokens])


def test_pondering_is_paid_for() -> None:
    model = universal_transformer(d=16, depth=3, heads=2, vocab=11, ponder=0.5)
    loss = model(torch.randint(0, 11, (2, 9)))
    assert torch.allclose(loss.total, loss.parts["nll"] + 0.5 * loss.parts["ponder"])
    assert torch.allclose(loss.parts["ponder"], loss.parts["steps"] + loss.parts["remainder"])
    assert 1 <= loss.parts["steps"] <= 3


def test_the_price_makes_tokens_stop_sooner() -> None:
    """The same training with a high and with no price: what is dear is used less."""
    mean = {}
    for ponder in (0.0, 1.0):
        torch.manual_seed(0)
        model = universal_transformer(d=16, depth=4, heads=2, vocab=5, ponder=ponder)
        model.body.halting.unit.bias.data.fill_(-1.0)
        optimiser = torch.optim.Adam(model.parameters(), 1e-2)
        g = torch.Generator().manual_seed(1)
        for _ in range(30):
            loss = model(torch.randint(0, 5, (4, 9), generator=g))
            optimiser.zero_grad()
            loss.total.backward()
            optimiser.step()
        mean[ponder] = float(loss.parts["steps"])
    assert mean[1.0] < mean[0.0] - 0.5, mean


@pytest.mark.parametrize("halted", ["copied", "updated"])
@pytest.mark.parametrize("last", ["remainder", "probability"])
def test_the_paper_s_two_forms_are_keywords(halted: str, last: str) -> None:
    body = universal_transformer(d=16, depth=3, heads=2, vocab=11, halted=halted, last=last, epsilon=0.1).body
    assert (body.halted, body.halting.last, body.halting.epsilon, body.halting.strict) == (halted, last, 0.1, True)


def test_a_price_that_nothing_reports_is_refused() -> None:
    model = universal_transformer(d=16, depth=2, heads=2, vocab=11, halting="fixed")
    assert model.penalties == {}
    with pytest.raises(ValueError, match="no part of this model reports 'pondering'"):
        LM(11, 16, universal_transformer(d=16, depth=2, heads=2, vocab=11).body, penalties={"pondering": 1.0})
