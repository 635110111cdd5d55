"""Law empty_rows: a row of padding only spoils neither the other rows nor the gradients."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kinformer.laws.foreign.support.black_box import BlackBox, one_line
from kinformer.laws.support.findings import Broken, Unjudged, findings

SAYS = "a row of padding only gives no NaN in other rows, and no gradient that is NaN or infinite"
OVER = "module"
LENGTH = 9


def judge(box: BlackBox) -> Iterator[str]:
    """Call a model with a row of padding only, and yield a sentence for each NaN or infinite number.

    box: the model. The loss is of the real tokens of the other rows.
    """
    if not box.takes_mask:
        raise Unjudged("forward takes no attention_mask")
    yield from findings(_check, box, box.copy(torch.float32))


def _check(box: BlackBox, model: nn.Module) -> None:
    length = box.fit(LENGTH, side="source" if box.is_seq2seq else "tokens")
    tokens, mask = box.tokens(3, length), torch.ones(3, length, dtype=torch.long, device=box.device)
    mask[1], tokens[1] = 0, box.pad or 0
    mask[2, length - length // 3 :] = 0
    tokens = torch.where(mask.bool(), tokens, torch.as_tensor(box.pad or 0, device=box.device))
    rows: dict[str, Any] = {"mask": mask}
    if box.is_seq2seq:
        rows, tokens = {"source": tokens, "source_mask": mask}, box.tokens(3, box.short, 7)
    try:
        logits = box.call(tokens, **rows, model=model, gradients=True).logits
    except Exception as error:
        raise Unjudged(f"a call with attention_mask fails: {one_line(error)}") from error
    logits = logits[mask.bool()] if box.per_token and not box.is_seq2seq else logits[[0, 2]]
    if not logits.isfinite().all():
        raise Broken(
            f"with a row of {length} columns of padding, {int((~logits.isfinite()).sum())} of {logits.numel()} logits "
            "of the other rows are NaN or infinite"
        )
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not logits.requires_grad or not parameters:
        return
    try:
        gradients = torch.autograd.grad(logits.square().mean(), list(parameters.values()), allow_unused=True)
    except Exception as error:
        raise Unjudged(f"no gradients can be computed in eval mode: {one_line(error)}") from error
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and not gradient.isfinite().all():
            raise Broken(
                f"with a row of {length} columns of padding, {int((~gradient.isfinite()).sum())} of {gradient.numel()} "
                f"numbers of the gradient of {name} are NaN or infinite, although the loss reads only other rows"
            )
