"""The Universal Transformer: its weights do not grow with depth, and its ponder cost is part of the loss."""

import math

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.members.universal_transformer import universal_transformer
from kinformer.models.lm import LM
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.depth import selected_tokens
from kinformer.nn.depth.act import Halting, add_weighted, interpolate_answer
from kinformer.nn.depth.universal import Universal
from kinformer.nn.positions.timing import Timing


def test_depth_costs_no_weights_and_fixed_has_only_no_halting_unit() -> None:
    sizes = {
        name: sum(w.numel() for w in universal_transformer(d=16, heads=2, vocab=11, **keywords).parameters())
        for name, keywords in (("two", {"depth": 2}), ("six", {"depth": 6}), ("fixed", {"halting": "fixed"}))
    }
    assert sizes["two"] == sizes["six"] == sizes["fixed"] + 17


def test_what_is_embedded_is_scaled_to_stand_up_to_the_timing() -> None:
    model, inputs = universal_transformer(d=16, depth=2, heads=2, vocab=11), []
    model.body.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    tokens = torch.randint(0, 11, (2, 5))
    model.logits(tokens)
    assert torch.equal(inputs[0], 4 * model.embedding.weight[tokens])


@pytest.mark.parametrize("forms", [{}, {"halting": "graves"}, {"transition": "separable_conv"}])
def test_it_starts_at_chance(forms: dict) -> None:
    """A head that is the embedding again begins by repeating what it reads, which is far off."""
    torch.manual_seed(0)
    model, tokens = universal_transformer(d=96, depth=3, heads=2, **forms), torch.randint(0, 256, (8, 33))
    with torch.no_grad():
        first = float(model(tokens).parts["nll"])
        model.head.weight = model.embedding.weight
        tied = float(model(tokens).parts["nll"])
    assert abs(first / math.log(256) - 1) < 0.1 and tied > first + 0.3


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


def test_where_every_token_stops_after_one_step_nothing_teaches_it_to_take_more() -> None:
    """Neither the loss nor the price reaches the halting unit; its bias at first says how many steps there are."""
    tokens, steps = torch.randint(0, 11, (2, 9)), []
    for bias, learns in ((9.0, False), (-1.0, True)):
        model = universal_transformer(d=16, depth=4, heads=2, vocab=11, bias=bias)
        loss = model(tokens)
        loss.total.backward()
        steps.append(float(loss.parts["steps"]))
        assert bool(model.body.halting.unit.weight.grad.any()) == learns
    assert steps[0] == 1 < steps[1]


def test_the_defaults_are_the_appendix_and_every_other_form_is_a_keyword() -> None:
    body = universal_transformer(d=16, depth=3, heads=2, vocab=11).body
    assert (body.mix, body.halted, body.judged) == (interpolate_answer, "updated", "input")
    assert (body.halting.last, body.halting.strict, body.halting.epsilon) == ("probability", True, 0.01)
    assert body.universal.timing.first == 1 and body.halting.unit.bias.item() == 1.0
    graves = {"halting": "graves", "halted": "copied", "bias": -2.0}
    body = universal_transformer(d=16, depth=3, heads=2, vocab=11, epsilon=0.1, first=0, **graves).body
    assert (body.mix, body.halted, body.judged) == (add_weighted, "copied", "output")
    assert (body.halting.last, body.halting.strict, body.halting.epsilon) == ("remainder", False, 0.1)
    assert body.universal.timing.first == 0 and body.halting.unit.bias.item() == -2.0


@torch.no_grad()
@pytest.mark.parametrize("transition", ["mlp", "separable_conv"])
def test_encoder_and_decoder_are_one_block_each(transition: str, float64: None) -> None:
    """A = LN(H + P + own(H + P)), C = LN(A + source(A)), H = LN(C + Transition(C)); both halves from the equations."""
    keywords = {"d": 16, "depth": 2, "heads": 2, "hidden": 24, "vocab": 11, "transition": transition}
    model = universal_transformer(form="encoder_decoder", halting="fixed", **keywords)
    assert isinstance(model, Seq2Seq)
    source, target = torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (2, 4))

    def steps(universal: Universal, h: torch.Tensor, read: torch.Tensor | None) -> torch.Tensor:
        block, at = universal.block, torch.arange(h.shape[1]).expand(2, -1)
        for t in range(2):
            waves = Timing(16, first=1)(at, t)
            ctx = Context(at, True, source=read, source_pos=None if read is None else torch.arange(5).expand(2, 5))
            a = h + waves
            for layer, norm in zip(block.layers, block.norms, strict=True):
                a = norm(a + layer(a, None, ctx).y)
            h = a
        return h

    read = steps(model.encoder, 4 * model.embedding(source), None)
    h = steps(model.decoder, 4 * model.embedding(target), read)
    assert torch.allclose(model.logits(target, source=source).y, model.head(h)[..., :12], atol=1e-12)
    assert (model.encoder.block is model.decoder.block) is False


def test_both_halves_pay_for_their_steps() -> None:
    model = universal_transformer(d=16, depth=3, heads=2, vocab=11, form="encoder_decoder", ponder=0.5)
    batch = torch.randint(0, 11, (2, 6)), torch.randint(0, 11, (2, 4))
    loss = model(batch)
    assert 2 <= float(loss.parts["steps"]) <= 6
    assert torch.allclose(loss.total, loss.parts["nll"] + 0.5 * loss.parts["ponder"])
    units = [half.halting.unit.weight for half in (model.encoder, model.decoder)]
    assert all(g.any() for g in torch.autograd.grad(loss.parts["ponder"], units))


def test_a_price_that_nothing_reports_is_refused() -> None:
    model = universal_transformer(d=16, depth=2, heads=2, vocab=11, halting="fixed")
    assert model.penalties == {}
    with pytest.raises(ValueError, match="no part of this model reports 'pondering'"):
        LM(11, 16, universal_transformer(d=16, depth=2, heads=2, vocab=11).body, penalties={"pondering": 1.0})


@pytest.mark.parametrize("form", ["decoder", "encoder_decoder"])
@torch.no_grad()
def test_it_is_judged_by_its_steps_too(form: str) -> None:
    """Of each token that is to be predicted, of a decoder's alone; a fixed number is not told."""
    sizes = {"d": 16, "depth": 6, "heads": 2, "vocab": 11, "form": form}
    rows = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(0))
    rows[1, 5:] = -1
    batch = rows if form == "decoder" else (rows[:, :5].clamp_min(0), rows)
    real = rows[:, 1:] >= 0 if form == "decoder" else torch.cat([torch.ones(3, 1, dtype=torch.bool), rows >= 0], 1)
    varied = 0
    for seed in range(8):
        torch.manual_seed(seed)
        model, steps_taken = universal_transformer(**sizes, bias=0.0).eval(), []
        body = model.body if form == "decoder" else model.decoder
        torch.nn.init.normal_(body.halting.unit.weight, std=0.3)
        body.register_forward_hook(lambda _, __, out, steps_taken=steps_taken: steps_taken.append(out.aux["steps"]))
        totals = model.judge(batch).totals
        assert (float(totals["steps"][0]), int(totals["steps"][1])) == (steps_taken[0][real].sum(), real.sum())
        assert list(totals)[0].startswith("bits")
        varied += len(steps_taken[0][real].unique()) > 1
    assert varied
    assert "steps" not in universal_transformer(**sizes, halting="fixed").eval().judge(batch).totals


def test_tokens_at_the_first_positions_of_many_rows_may_go_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selected_tokens, "GATHERING", -(10**9))  # the tokens that go on are always gathered
    torch.manual_seed(0)
    model = universal_transformer(d=16, depth=4, heads=2, vocab=11, form="encoder_decoder").eval()
    for unit in (part.unit for part in model.modules() if isinstance(part, Halting)):
        torch.nn.init.normal_(unit.weight, std=2.0)  # so that some tokens halt before others
    source, target = torch.randint(0, 11, (64, 2)), torch.randint(0, 11, (64, 2))
    with torch.no_grad():
        together = model.logits(target, source=source).y
        alone = torch.cat([model.logits(target[n : n + 1], source=source[n : n + 1]).y for n in range(64)])
    assert torch.allclose(together, alone, atol=1e-5)
