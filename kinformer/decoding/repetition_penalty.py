"""Repetition penalty: make tokens less likely that a row already has."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_finite_number

LARGEST = 1000  # a factor beyond it, or below its reciprocal, could overflow float32


def penalize_repetition(
    logits: Float[Tensor, "B V"], rows: Int[Tensor, "B T"], penalty: float | None
) -> Float[Tensor, "B V"]:
    """Return logits in which the tokens that a row already has are less likely.

    Choose it against loops of greedy decoding; about 1.2 balances repetition and sense in the paper. Positive logits of
    these tokens are divided by the penalty, and negative ones are multiplied by it.

    logits: scores of the tokens; for a beam search their log-probabilities.
    rows: tokens so far, prompts included; -1 is padding.
    penalty: the factor; below 1 it favours repetition. None or 1 changes nothing.

    Source: Keskar et al., 2019, arXiv:1909.05858, section 4.1.
    """
    if penalty is None or penalty == 1:
        return logits
    vocab = logits.shape[-1]
    known = torch.where((rows >= 0) & (rows < vocab), rows, vocab)  # the last column takes padding
    repeated = torch.zeros(len(rows), vocab + 1, dtype=torch.bool, device=logits.device).scatter_(1, known, True)
    return torch.where(repeated[:, :vocab], torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def check_repetition_penalty(penalty: float | None) -> None:
    """Raise ValueError for a penalty that is out of range.

    penalty: the penalty, or None.
    """
    if penalty is not None and not 1 / LARGEST <= check_finite_number("repetition_penalty", penalty) <= LARGEST:
        raise ValueError(
            f"wrong repetition_penalty: got {penalty}, expected a number from {1 / LARGEST} to {LARGEST}. Give 1 for "
            "none, and 1.2 against loops"
        )
