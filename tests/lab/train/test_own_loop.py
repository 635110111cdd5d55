"""A loop of one's own, as `fit` documents it: `model(batch).total.backward()` without a progress trains every part."""

import pytest
import torch
from torch import Tensor

from kinformer.core.loss import FadingWeight
from kinformer.core.model import Model
from kinformer.laws.support.dependences import trainable
from kinformer.laws.support.verdicts import JudgedPart
from kinformer.members.al_rfou import al_rfou
from kinformer.members.bert import bert
from kinformer.members.guided_attention import guided_attention
from tests.discovered import discovered


def total(model: Model, *progress: float) -> Tensor:
    """The loss of one batch in train mode, with the same chance each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return model(model.sample(2, 13, 0), None, *progress).total


def trained(model: Model, loss: Tensor) -> set[str]:
    """The parameters that a gradient of a loss reaches."""
    names, parameters = zip(*trainable(model).items(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}


EXAMPLES = [*discovered("models"), *discovered("members")]
FURTHER = {example.name for example in EXAMPLES if not example.name.endswith(".0")}


@pytest.mark.parametrize(
    "example",
    [pytest.param(case, marks=[pytest.mark.prove] * (case.name in FURTHER)) for case in EXAMPLES],
    ids=lambda example: example.name,
)
def test_it_trains_whatever_some_part_of_a_training_trains(example: JudgedPart) -> None:
    model = example.make()
    if not isinstance(model, Model):
        return
    model.train()
    plain, *during = total(model), total(model, 0.0), total(model, 0.6)
    if any(loss.item() != plain.item() for loss in during):  # else nothing of the loss depends on the progress
        assert set().union(*(trained(model, loss) for loss in during)) <= trained(model, plain)


def test_lower_layers_of_al_rfou_predict_in_it() -> None:
    torch.manual_seed(0)
    model = al_rfou(d=16, depth=3, heads=2, length=16, vocab=11).train()
    loss = model(model.sample(2, 13, 0))
    loss.total.backward()
    each: list[Tensor] = [head.weight.grad.norm() for heads in model.beneath for head in heads]
    assert len(each) == 4 and min(each) > 0
    # ln(11) for the next token and half of that for the one after it, of each of three layers
    assert loss.total.item() == pytest.approx(3 * 1.5 * torch.tensor(11.0).log().item(), rel=0.25)


def test_guides_have_their_whole_weight_in_it() -> None:
    model = guided_attention(d=16, depth=2, heads=4, alpha=2.0, vocab=64).train()
    loss = model(model.sample(2, 13, 0))
    assert model.penalties == {"guided_attention": FadingWeight(2.0, 0.5)}
    whole = loss.parts["nll"] + 2.0 * loss.parts["guided_attention"]
    assert loss.total.item() == pytest.approx(whole.item(), rel=1e-5)


def test_a_masked_model_hides_other_tokens_each_time_in_it() -> None:
    model = bert(d=16, depth=1, heads=2, length=64, vocab=11).train()
    tokens = model.sample(4, 64, 0)
    assert len({model(tokens).count.item() for _ in range(4)}) > 1
    assert len({model(tokens, progress=0.0).count.item() for _ in range(4)}) == 1
