"""PerExit: an output classifier for each exit, instead of one head for the model."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.keyword_hints import KeywordHints


class PerExit(nn.Module, KeywordHints):
    """An output head of an early-exit model: a classifier per exit, for the tokens that left there.

    Tokens without an exit, such as padding, get zeros. In eager mode a classifier is computed only for its own tokens;
    compiled, every classifier is computed for all tokens.

    each: the classifiers, the lowest exit's first.

    Source: Elbayad et al., 2019, arXiv:1910.10073, equation 3.
    """

    def __init__(self, each: Sequence[nn.Module]):
        super().__init__()
        self.each = nn.ModuleList(each)

    def forward(self, y: Float[Tensor, "B T D"], exits: Float[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the logits of each token from the classifier of its exit.

        y: hidden state with which each token left.
        exits: number of the layer after which each token left, from 1; 0 for padding.
        """
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
    """Return the classifier of exit n, or the head itself if all exits share it.

    head: a `PerExit` (one classifier per exit) or a shared head.
    n: index of the exit, from 0.
    """
    return head.each[n] if isinstance(head, PerExit) else head
