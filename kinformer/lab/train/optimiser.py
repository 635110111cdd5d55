"""Optimiser and gradient clipping."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from kinformer.core.loss import penalties_of


def adamw(
    model: nn.Module, lr: float, decay: float, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8
) -> AdamW:
    """Return AdamW with weight decay on parameters of two or more dimensions.

    Decay of a bias or of a norm's gain would only shrink numbers that the norm restores. Biases with a number for each
    head and column, such as u and v of `TransformerXL`, count as matrices and are decayed.

    model: the model.
    lr: the learning rate.
    decay: the weight decay.
    betas: the decay rates of AdamW's means. The default beta2 is 0.95, because short trainings need short memories.
    eps: the term that AdamW adds to its denominator.

    Source: Loshchilov and Hutter, 2019, arXiv:1711.05101.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() >= 2], "weight_decay": decay},
        {"params": [parameter for parameter in trained if parameter.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, eps=eps)


def clip_groups(model: nn.Module) -> list[list[nn.Parameter]]:
    """Group the parameters by the norm that clips them.

    Parameters that only a penalty trains form a group for each part; all other parameters form one group.

    model: the model.
    """
    by_part = penalties_of(model).values()
    groups = [[p for penalty in penalties if penalty.alone for p in penalty.trains] for penalties in by_part]
    apart = {id(p) for group in groups for p in group}
    return [group for group in ([p for p in model.parameters() if id(p) not in apart], *groups) if group]


def clip(groups: Sequence[Sequence[nn.Parameter]], max_norm: float) -> Tensor:
    """Scale the gradient of each group to a norm of at most `max_norm`; return the total norm before that.

    With one norm for all parameters, a large loss with parameters of its own would slow down all others.

    groups: the groups of parameters.
    max_norm: largest norm of a group.
    """
    with_gradients = (group for group in groups if any(p.grad is not None for p in group))
    return torch.stack([clip_grad_norm_(group, max_norm) for group in with_gradients]).norm()
