"""The optimiser."""

from torch import nn
from torch.optim import AdamW


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
