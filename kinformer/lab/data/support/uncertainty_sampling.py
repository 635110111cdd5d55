"""Uncertainty sampling: batches of the rows with the least certain predictions of a model."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.eval_mode import evaluating
from kinformer.lab.data.batches import to_device
from kinformer.lab.data.resumable_stream import ResumableStream

Form = Literal["uncertainty", "published_uncertainty"]


class Candidates(NamedTuple):
    """Candidate rows for a batch, or the rows that were chosen from them.

    tokens: the tokens of the rows.
    task: number of the task of each row.
    label: number of the class of each row.
    """

    tokens: Int[Tensor, "N T"]
    task: Int[Tensor, " N"]
    label: Int[Tensor, " N"]


class UncertaintySampling(ResumableStream):
    """Batches for several tasks with those rows for which the model's prediction is least certain.

    In each step, `batch` rows of each task are candidates. The `batch` candidates with the largest U(x), over all
    tasks, form the batch.

        U(x) = H(x) / (H^ log C)

    H(x) is the entropy of the model's prediction for row x, and C is the number of classes of its task. H^ is the
    largest of the tasks' mean entropies. H^ is the same for all rows of a step, so it does not change the choice.

    In addition to its training, each step needs one forward pass for the candidates of each task. A checkpoint holds
    nothing of this stream, because the choice follows from the weights.

    model: the model, which reads the candidates in eval mode.
    candidates: a function from the number of a step to its candidate rows.
    batch: rows per batch.
    classes: number of classes of each task.
    form: "uncertainty", or "published_uncertainty" for the rule of the authors' code.
    measured: the validation batches.

    Source: Pilault et al., 2020, arXiv:2009.09139, section 2.3, algorithm 1; CAMTL/CA-MTL, mtl_trainer.py.

    Differences: the authors' code multiplies H(x) / log C by a factor for each task. The factor is the mean of H / log
    C over the task's rows, divided by the largest such mean. Rows of a task with certain predictions are therefore
    chosen more rarely. The code also leaves dropout on when it reads the candidates.
    """

    def __init__(
        self,
        model: Any,
        candidates: Callable[[int], Candidates],
        batch: int,
        classes: tuple[int, ...],
        form: Form,
        measured: tuple[Any, ...],
    ) -> None:
        self.model, self.candidates, self.batch = model, candidates, batch
        self.classes, self.form, self._measured = classes, form, measured

    def at(self, step: int) -> Candidates:
        """Return the batch of a step, chosen with the current weights."""
        candidates = self.candidates(step)
        least = uncertainty_scores(self._entropies(candidates), candidates.task, self.classes, self.form)
        chosen = least.topk(min(self.batch, len(least))).indices
        tokens = candidates.tokens[chosen]
        return Candidates(tokens[:, (tokens >= 0).any(0)], candidates.task[chosen], candidates.label[chosen])

    @property
    def validation_batches(self) -> tuple[Any, ...]:
        return self._measured

    def saved_tensors(self) -> dict[str, Tensor]:
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        return None

    def _entropies(self, candidates: Candidates) -> Float[Tensor, " N"]:
        """Return the entropy of the prediction for each row, in nats, computed batch by batch."""
        model, entropies = self.model, []
        device = next(model.parameters()).device
        with evaluating(model):
            for first in range(0, len(candidates.task), self.batch):
                tokens, task = to_device(
                    device, (candidates.tokens[first:][: self.batch], candidates.task[first:][: self.batch])
                )
                entropies.append(torch.special.entr(model.scores(tokens, task).cpu().double().softmax(-1)).sum(-1))
        return torch.cat(entropies)


def uncertainty_scores(
    entropy: Float[Tensor, " N"], task: Int[Tensor, " N"], classes: tuple[int, ...], form: Form
) -> Float[Tensor, " N"]:
    """Return the score of each row; rows with the largest scores are chosen. See `UncertaintySampling`.

    entropy: entropy of the prediction for each row, in nats.
    task: number of the task of each row. Tasks without rows have no mean.
    classes: number of classes of each task.
    form: as for `UncertaintySampling`.
    """
    max_entropy = torch.tensor(classes, dtype=entropy.dtype).log()
    if form == "published_uncertainty":
        entropy = entropy / max_entropy[task]
    count = torch.zeros_like(max_entropy).index_add(0, task, torch.ones_like(entropy))
    mean = torch.zeros_like(max_entropy).index_add(0, task, entropy) / count.clamp_min(1)
    largest = mean.max().clamp_min(torch.finfo(mean.dtype).tiny)
    if form == "published_uncertainty":
        return entropy * (mean / largest)[task]
    return entropy / (largest * max_entropy[task])
