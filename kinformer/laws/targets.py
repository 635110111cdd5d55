"""Law targets: each penalty (further loss) of a part trains exactly the parameters that it declares."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.loss import Penalty, sum_over_layers
from kinformer.laws.support.dependences import ROUNDING, trainable
from kinformer.laws.support.findings import Broken, Unjudged, findings
from kinformer.laws.support.subject import Subject, TrainingSubject

SAYS = "each penalty has gradients for exactly the parameters that it declares"
OVER = ("layer", "model")
LENGTH = 9


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Compare the parameters that each penalty trains with its declaration; yield each difference.

    subject: a layer or model with the part to test. The penalties of a model, and of its encoder, are taken from its
        loss.

    A penalty is a further loss, such as a balance of experts. A part declares in `penalties` which of its parameters
    each penalty trains. The law compares these with the parameters that have a gradient of the penalty in train mode. A
    penalty with `reaches_x` has a gradient through the input x, so it may also train parameters of earlier parts.
    """
    module = subject.build().train()
    declared: dict[str, list[tuple[nn.Module, Penalty]]] = {}
    for part in module.modules():
        penalties = getattr(part, "penalties", None)
        for name, penalty in (penalties() if callable(penalties) else {}).items():
            declared.setdefault(name, []).append((part, penalty))
    if not declared:
        raise Unjudged("no module inside declares a penalty (a further loss)")
    if isinstance(subject, Subject) and subject.vocab:
        raise Unjudged("penalties of a model are tested in its loss, together with the penalties of its encoder")
    y, sums, leaf = _read(subject, module)
    alone = [p for entries in declared.values() for _, penalty in entries if penalty.alone for p in penalty.trains]
    trains = bool(alone) and y.requires_grad
    gradients = torch.autograd.grad(y.sum(), alone, allow_unused=True, retain_graph=True) if trains else ()
    if any(g is not None and bool(g.any()) for g in gradients):
        yield "the output has gradients for parameters that a penalty with alone=True must train alone"
    for name, entries in declared.items():
        if name not in sums and leaf is not None and all(penalty.by for _, penalty in entries):
            continue  # the model above the layer computes it
        if name not in sums:
            yield f"it declares the penalty {name!r}, but reports {', '.join(map(repr, sorted(sums))) or 'nothing'}"
        else:
            yield from findings(_check_trained, module, name, sums[name], entries, leaf)


def _read(subject: Subject | TrainingSubject, module: Any) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
    """Return the trained output, the penalties by name, and the leaf x, which is None for a model."""
    if isinstance(subject, TrainingSubject):
        loss = module(subject.ragged(LENGTH).x)
        return loss.parts["nll"], dict(loss.parts), None
    batch = subject.ragged(LENGTH)
    out, leaf = subject.call_traced(module, batch)
    return out.y, sum_over_layers(out.aux, batch.is_real), leaf


def _check_trained(
    module: Any, name: str, value: Tensor, entries: list[tuple[nn.Module, Penalty]], leaf: Tensor | None
) -> None:
    if not value.requires_grad:
        raise Broken(f"the penalty {name!r} has no gradient for any parameter")
    parameters = trainable(module)
    sizes = _slopes(value, {**parameters, **({} if leaf is None else {"x": leaf})})
    moving = {key for key, size in sizes.items() if size > ROUNDING * max(sizes.values())}
    trained = moving & parameters.keys()
    parameter_ids = {id(p) for part, _ in entries for p in part.parameters()}
    by_x = any(id(parameters[key]) not in parameter_ids for key in trained) if leaf is None else "x" in moving
    reaches = any(penalty.reaches_x for _, penalty in entries)
    if by_x != reaches:
        raise Broken(
            f"the penalty {name!r} has {'a' if by_x else 'no'} gradient through x, but is declared with "
            f"reaches_x={reaches}"
        )
    trains = {id(p) for _, penalty in entries for p in penalty.trains}
    declared = {key for key, p in parameters.items() if id(p) in trains}
    undeclared = sorted(key for key in trained - declared if not reaches or id(parameters[key]) in parameter_ids)
    less = sorted(declared - trained)
    if undeclared or less:
        raise Broken(
            f"the penalty {name!r} has gradients for {undeclared}, which it does not declare, and none for {less}, "
            "which it declares"
        )


def _slopes(value: Tensor, by: dict[str, Tensor]) -> dict[str, float]:
    """Return the largest absolute gradient of a penalty for each tensor; 0 without dependence."""
    gradients = torch.autograd.grad(value, list(by.values()), allow_unused=True, retain_graph=True)
    return {
        name: 0.0 if gradient is None or not gradient.numel() else float(gradient.abs().max())
        for name, gradient in zip(by, gradients, strict=True)
    }
