"""Optimiser and gradient clipping."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from kinformer.core.loss import penalties_of
from kinformer.core.model import display_name


def adamw(
    model: nn.Module, lr: float, decay: float, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8
) -> AdamW:
    """Return AdamW with weight decay only for parameters of two or more dimensions.

    Biases and the gains of norms have one dimension and are not decayed. Biases with a number for each head and
    coordinate, such as u and v of `TransformerXL`, have two dimensions and are decayed.

    model: the model.
    lr: the learning rate.
    decay: the weight decay.
    betas: the decay rates of AdamW's means. The default beta2 is 0.95, because short trainings need means over few
        steps.
    eps: the term that AdamW adds to its denominator.

    Errors: ValueError for a model whose weights are all frozen.

    Source: Loshchilov and Hutter, 2017, arXiv:1711.05101.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError(
            f"cannot train this {display_name(model)}: all of its weights are frozen. Train the model that it was made "
            "from, or call requires_grad_() on the weights to train"
        )
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() >= 2], "weight_decay": decay},
        {"params": [parameter for parameter in trained if parameter.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, eps=eps)


def clip_groups(model: nn.Module) -> list[list[nn.Parameter]]:
    """Group the parameters of a model; `clip` limits the gradient norm of each group separately.

    For each part with parameters that only a penalty (an extra term of the loss) trains, these form a group. All other
    parameters form one group.

    model: the model.
    """
    by_part = penalties_of(model).values()
    groups = [[p for penalty in penalties if penalty.alone for p in penalty.trains] for penalties in by_part]
    apart = {id(p) for group in groups for p in group}
    return [group for group in ([p for p in model.parameters() if id(p) not in apart], *groups) if group]


def clip(groups: Sequence[Sequence[nn.Parameter]], max_norm: float) -> Tensor:
    """Limit the gradient norm of each group to `max_norm`; return the total norm before scaling.

    Groups are separate because one norm for all parameters would let a large penalty shrink the gradients of all
    others.

    groups: the groups of parameters.
    max_norm: largest norm of a group.
    """
    with_gradients = (group for group in groups if any(p.grad is not None for p in group))
    return torch.stack([clip_grad_norm_(group, max_norm) for group in with_gradients]).norm()
