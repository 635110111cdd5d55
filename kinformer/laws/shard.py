"""Law shard: a batch whose rows are split over processes trains a model like the whole batch."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kinformer.core.loss import Loss
from kinformer.laws.support.comparisons import agree, agree_gradients
from kinformer.laws.support.dependences import trainable
from kinformer.laws.support.findings import find_smallest
from kinformer.laws.support.subject import ROWS, SampledBatch, TrainingSubject

SAYS = "shares of a batch, weighted by their numbers of targets, give the loss and gradients of the whole batch"
OVER = "model"
LENGTH = 13
PROGRESS = 0.5


def judge(subject: TrainingSubject) -> Iterator[str]:
    """Compare a batch of three rows with the same rows in two batches, as two processes have them.

    subject: the model to test, in train mode without dropout.

    The two batches have one row and two rows. Each loss is a mean over the targets of its batch. The means of the two
    losses and gradients, weighted by their numbers of targets, must equal the loss and gradients of the whole batch.
    The sums for `after_step` (`Loss.stats`) must add up. Rows of tokens have several lengths. The test yields a
    sentence for each difference.
    """
    yield from find_smallest(_check_shares, LENGTH, subject, subject.build().train())


def _check_shares(length: int, subject: TrainingSubject, model: Any) -> None:
    batch = subject.ragged(length).map_tensors(_shorten_rows)
    whole, *shares = (_loss_and_gradients(model, share) for share in (batch, batch.rows([0]), batch.rows([1, 2])))
    count = whole[0].count
    sentence = f"three rows of up to {length} tokens at once train differently from one row and two rows"
    counts = torch.as_tensor(sum(int(loss.count) for loss, _ in shares))
    agree(counts, torch.as_tensor(count), f"{sentence} (the count)")
    weights = [float(loss.count) / max(float(count), 1.0) for loss, _ in shares]
    total = sum(weight * loss.total for weight, (loss, _) in zip(weights, shares, strict=True))
    agree(torch.as_tensor(total), whole[0].total, f"{sentence} (the loss)")
    gradients = {name: _add(weights, [share_gradients[name] for _, share_gradients in shares]) for name in whole[1]}
    agree_gradients(gradients, whole[1], sentence)
    for name, value in whole[0].stats.items():
        agree(torch.stack([loss.stats[name] for loss, _ in shares]).sum(0), value, f"{sentence} (the stats {name!r})")


def _shorten_rows(t: Tensor) -> Tensor:
    """Shorten all rows of tokens except the first."""
    if t.dim() != 2 or t.is_floating_point() or t.shape[1] < ROWS:
        return t
    ends = t.shape[1] - t.shape[1] // 3 * torch.arange(len(t))[:, None].clamp_max(2)
    return t.where(torch.arange(t.shape[1]) < ends, -1)


def _loss_and_gradients(model: Any, batch: SampledBatch) -> tuple[Loss, dict[str, Tensor | None]]:
    loss = model(batch.x, None, PROGRESS)
    names, parameters = zip(*trainable(model).items(), strict=True)
    return loss, dict(zip(names, torch.autograd.grad(loss.total, parameters, allow_unused=True), strict=True))


def _add(weights: list[float], gradients: list[Tensor | None]) -> Tensor | None:
    terms = [weight * gradient for weight, gradient in zip(weights, gradients, strict=True) if gradient is not None]
    return torch.stack(terms).sum(0) if terms else None
