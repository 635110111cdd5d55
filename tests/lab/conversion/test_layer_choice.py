"""Losses of a model with one converted layer: against models that are converted in that layer alone."""

from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.lab.conversion import layer_choice
from kinformer.lab.conversion.layer_choice import losses_by_layer, mean_loss


def model_and_rows() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = kf.llama(d=16, depth=3, heads=4, key_heads=2, vocab=19)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model, torch.randint(19, (2, 24))


def parts(model: Any) -> dict[str, Any]:
    return dict(model.named_modules()) | {name: (p, p.clone()) for name, p in model.named_parameters()}


def is_same(model: Any, before: dict[str, Any]) -> bool:
    now = parts(model)
    return now.keys() == before.keys() and all(
        torch.equal(now[name][0], value[1]) and now[name][0] is value[0]
        if isinstance(value, tuple)
        else now[name] is value
        for name, value in before.items()
    )


@pytest.mark.parametrize(("what", "options"), [("window", {"window": 2, "sinks": 1}), ("Causal() & Band(1)", {})])
def test_each_loss_is_that_of_a_model_with_this_layer_converted(what: str, options: dict[str, Any]) -> None:
    source, rows = model_and_rows()
    source.train()
    before, fractions = parts(source), list[float]()
    losses = losses_by_layer(source, kf.convert(source, what, **options), rows, fractions.append)
    assert is_same(source, before) and all(part.training for part in source.modules())
    assert fractions == [1 / 3, 2 / 3, 1.0]
    expected = []
    for number in (1, 2, 3):
        kept = tuple({1, 2, 3} - {number})
        expected.append(mean_loss(kf.convert(source, what, keep=kept, **options), rows))
    assert losses == pytest.approx(expected, rel=1e-6)
    assert len({round(loss, 4) for loss in (*losses, mean_loss(source, rows))}) == 4


def test_a_failure_leaves_the_source_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    source, rows = model_and_rows()
    before, converted = parts(source), kf.convert(source, "window", window=2, sinks=1)

    def interrupt(*arguments: Any) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(layer_choice, "mean_loss", interrupt)
    with pytest.raises(KeyboardInterrupt):
        losses_by_layer(source, converted, rows, lambda fraction: None)
    assert is_same(source, before)


def test_the_source_is_not_copied() -> None:
    source, rows = model_and_rows()
    converted = kf.convert(source, "window", window=2, sinks=1)

    def refuse(memo: Any) -> Any:
        raise AssertionError("copied")

    object.__setattr__(source, "__deepcopy__", refuse)
    assert len(losses_by_layer(source, converted, rows, lambda fraction: None)) == 3
