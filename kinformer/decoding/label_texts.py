"""Labels of texts: the probabilities that a trained classifier gives to its labels."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.autocast import at_least_float32
from kinformer.core.eval_mode import evaluating


def task_names(model: Any) -> list[str]:
    """Return the names of the tasks that a classifier was trained on; [""] for a classifier of one task.

    model: a text classifier.
    """
    return list(getattr(model, "names", [""]))


def label_probabilities(model: Any, tokens: Int[Tensor, " T"], task: int = 0) -> dict[str, float]:
    """Return the probability of each label of a text, by the name of the label; they add up to 1.

    model: a text classifier; without names of labels, the names are numbers.
    tokens: tokens of the text.
    task: number of the task, for a model of several tasks.

    Errors: ValueError if the text has no token, or if the probabilities are NaN.
    """
    if not len(tokens):
        raise ValueError("cannot label a text without tokens. Give at least one character that the tokenizer keeps")
    of_class = getattr(model, "of_class", None)  # the task of each class, for a model of several tasks
    inputs = [] if of_class is None else [torch.tensor([task], device=tokens.device)]
    with evaluating(model):
        scores = at_least_float32(model.scores(tokens[None], *inputs)[0])
    if bool(scores.isnan().any()):
        raise ValueError("the scores of the labels are NaN: the weights are damaged or too large")
    names = model.labels or [str(number) for number in range(len(scores))]
    probabilities = dict(zip(names, scores.softmax(-1).tolist(), strict=True))
    if of_class is None:
        return probabilities
    own = [name for name, of in zip(names, of_class.tolist(), strict=True) if of == task]
    return {name.partition(": ")[2] or name: probabilities[name] for name in own}
