"""Uncertain: batches of the rows that a model is least sure of, among as many of each task."""

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
    """Rows that a batch may be chosen from, the number of each one's task and of its class."""

    tokens: Int[Tensor, "N T"]
    task: Int[Tensor, " N"]
    label: Int[Tensor, " N"]


class UncertaintySampling(ResumableStream):
    """Multi-task uncertainty sampling: of `batch` rows of each task the `batch` whose classes a model is least sure of.

    U(x) = H(x) / (H^ log C), H(x) the entropy of what the model says of x, C the classes of its task

    H^ is the largest of the tasks' mean entropies. It is the same for all rows of a step, so it changes nothing of
    which are chosen; the authors' code, form "published_uncertainty", has H(x) / log C times the mean of H / log C over
    the rows of x's task over the largest such mean, so that rows of a task that is sure are chosen more rarely. The
    model reads the candidates in eval mode, where the code leaves its dropout on.

    A step costs a forward of as many batches as there are tasks beside its own; nothing is kept for a training to go
    on, since the choice follows from the weights. Source: Pilault et al., 2020, arXiv:2009.09139, section 2.3,
    algorithm 1; CAMTL/CA-MTL, mtl_trainer.py.
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
        """The batch of a step, by the model's weights as they are."""
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
        """Of what the model says of each row, in nats; a batch is read at a time."""
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
    """By which rows are chosen, the largest first: see `UncertaintySampling`. Tasks without rows have no mean."""
    max_entropy = torch.tensor(classes, dtype=entropy.dtype).log()
    if form == "published_uncertainty":
        entropy = entropy / max_entropy[task]
    count = torch.zeros_like(max_entropy).index_add(0, task, torch.ones_like(entropy))
    mean = torch.zeros_like(max_entropy).index_add(0, task, entropy) / count.clamp_min(1)
    largest = mean.max().clamp_min(torch.finfo(mean.dtype).tiny)
    if form == "published_uncertainty":
        return entropy * (mean / largest)[task]
    return entropy / (largest * max_entropy[task])
