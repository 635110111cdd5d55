"""Law empty_rows: a row of padding only spoils neither the other rows nor the gradients."""

from collections.abc import Iterator

import torch

from kinformer.laws.foreign.support.black_box import BlackBox
from kinformer.laws.support.findings import Broken, Unjudged, findings

SAYS = "a row of padding only gives no NaN in other rows, and no gradient that is NaN or infinite"
OVER = "module"
LENGTH = 9


def judge(box: BlackBox) -> Iterator[str]:
    """Call a model with a row that is all padding, and yield a sentence if other rows or gradients are not finite.

    box: the model. The loss is of the real tokens of the other rows.
    """
    if not box.takes_mask:
        raise Unjudged("forward takes no attention_mask")
    yield from findings(_check, box)


def _check(box: BlackBox) -> None:
    length = min(LENGTH, box.longest)
    tokens, mask = box.tokens(3, length), torch.ones(3, length, dtype=torch.long, device=box.device)
    mask[1], tokens[1] = 0, box.pad or 0
    mask[2, length - length // 3 :] = 0
    tokens = torch.where(mask.bool(), tokens, torch.as_tensor(box.pad or 0, device=box.device))
    if box.is_seq2seq:
        logits = box.call(box.tokens(3, 4, 7), source=tokens, source_mask=mask, gradients=True).logits[[0, 2]]
    else:
        logits = box.call(tokens, mask=mask, gradients=True).logits
        logits = logits[mask.bool()] if box.per_token else logits[[0, 2]]
    if not logits.isfinite().all():
        raise Broken(
            f"with a row of {length} columns of padding, {int((~logits.isfinite()).sum())} of {logits.numel()} logits "
            "of the other rows are NaN or infinite"
        )
    parameters = {name: p for name, p in box.model.named_parameters() if p.requires_grad}
    if not logits.requires_grad or not parameters:
        return
    gradients = torch.autograd.grad(logits.square().mean(), list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and not gradient.isfinite().all():
            raise Broken(
                f"with a row of {length} columns of padding, {int((~gradient.isfinite()).sum())} of {gradient.numel()} "
                f"numbers of the gradient of {name} are NaN or infinite, although the loss reads only other rows"
            )
