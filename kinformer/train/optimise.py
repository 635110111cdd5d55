"""The optimiser and its learning rate."""

import math

from torch import nn
from torch.optim import AdamW

WARM, FLOOR = 0.05, 0.1


def adamw(model: nn.Module, lr: float, decay: float) -> AdamW:
    """AdamW with weight decay on matrices alone: a decayed bias or norm gain only shrinks what the norm restores.

    Loshchilov and Hutter, 2019, arXiv:1711.05101; beta2 0.95, since short trainings have short memories.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() >= 2], "weight_decay": decay},
        {"params": [parameter for parameter in trained if parameter.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=lr, betas=(0.9, 0.95))


def rate(spent: float) -> float:
    """The learning rate over its peak when a part of the budget is spent.

    A line up over the first 5%, then half a cosine down to a tenth (Loshchilov and Hutter, 2017, arXiv:1608.03983).
    """
    if spent < WARM:
        return max(spent / WARM, 0.01)
    along = min((spent - WARM) / (1 - WARM), 1.0)
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * along)) / 2
