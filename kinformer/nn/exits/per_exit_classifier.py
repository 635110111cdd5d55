"""PerExit: an output classifier for each exit, in place of a model's one head."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn


class PerExit(nn.Module):
    """Logits of each token by the classifier of the exit that it left at; zeros where it left at none, as padding does.

    A classifier is computed for its own tokens alone, compiled for all of them.

    each: the classifiers, the lowest exit's first.

    Source: Elbayad et al., 2019, arXiv:1910.10073, equation 3.
    """

    def __init__(self, each: Sequence[nn.Module]):
        super().__init__()
        self.each = nn.ModuleList(each)

    def forward(self, y: Float[Tensor, "B T D"], exits: Float[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        if torch.compiler.is_compiling():
            every = [
                torch.where((exits == n + 1)[..., None], classifier(y), 0.0) for n, classifier in enumerate(self.each)
            ]
            return torch.stack(every).sum(0)
        at = [(exits == n + 1).nonzero(as_tuple=True) for n in range(len(self.each))]
        read = [classifier(y[rows]) for classifier, rows in zip(self.each, at, strict=True)]
        logits = read[0].new_zeros(*exits.shape, read[0].shape[-1])
        for rows, of_rows in zip(at, read, strict=True):
            logits = logits.index_put(rows, of_rows)
        return logits


def of_exit(head: nn.Module, n: int) -> nn.Module:
    """What reads the state of exit n, from 0: its own classifier, or the head of all."""
    return head.each[n] if isinstance(head, PerExit) else head
