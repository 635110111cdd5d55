"""The optimiser, and how gradients are clipped."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from kinformer.core.loss import penalties_of


def adamw(
    model: nn.Module, lr: float, decay: float, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8
) -> AdamW:
    """AdamW with weight decay on parameters of two or more dimensions.

    Decay of a bias or of a norm's gain would only shrink numbers that the norm restores. Biases with a number for each
    head and column, such as u and v of `TransformerXL`, count as matrices and are decayed.

    Loshchilov and Hutter, 2019, arXiv:1711.05101; beta2 0.95, since short trainings have short memories.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() >= 2], "weight_decay": decay},
        {"params": [parameter for parameter in trained if parameter.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, eps=eps)


def clip_groups(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters whose gradients share a norm: of each penalty those that it alone trains, and all others."""
    by_part = penalties_of(model).values()
    groups = [[p for penalty in penalties if penalty.alone for p in penalty.trains] for penalties in by_part]
    apart = {id(p) for group in groups for p in group}
    return [group for group in ([p for p in model.parameters() if id(p) not in apart], *groups) if group]


def clip(groups: Sequence[Sequence[nn.Parameter]], max_norm: float) -> Tensor:
    """Shrink the gradient of each group to a norm of at most `max_norm`; the norm that all had together.

    A norm over everything would let a loss that trains its own parameters alone, and is large, slow all others.
    """
    with_gradients = (group for group in groups if any(p.grad is not None for p in group))
    return torch.stack([clip_grad_norm_(group, max_norm) for group in with_gradients]).norm()
