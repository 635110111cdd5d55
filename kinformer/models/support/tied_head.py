"""The tie of a model's head to its embedding: both have one matrix, also after weights are loaded."""

from typing import Any

import torch
from torch import nn


def tie_head(model: nn.Module) -> None:
    """Give the head the matrix of the embedding.

    PyTorch makes two matrices of one in `to_empty`, and in `load_state_dict(..., assign=True)` on the device "meta". So
    the head is tied again after each `load_state_dict`, if both matrices are equal then.

    model: model with an `embedding` and a `head`, before its weights are used.
    """
    _share(model)
    model.register_load_state_dict_post_hook(_tie_again)


def _share(model: Any) -> None:
    model.head.weight = model.embedding.weight


def _tie_again(model: Any, keys: object) -> None:
    head, embedding = model.head.weight, model.embedding.weight
    is_plain = type(head.data) is torch.Tensor and head.device == embedding.device and head.device.type != "meta"
    if head is not embedding and is_plain and head.shape == embedding.shape and torch.equal(head, embedding):
        _share(model)
