"""Distillation: losses that compare a model with a frozen teacher on the same tokens."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32


def logit_distance(
    logits: Float[Tensor, "B T V"], teacher_logits: Float[Tensor, "B T V"], temperature: float = 1.0
) -> Float[Tensor, "B T"]:
    """Return the divergence of each token's prediction from the teacher's, in nats.

        tau^2 KL(p_teacher || p),  p = softmax(logits / tau)

    The factor keeps the size of gradients when the temperature tau changes. No gradient reaches the teacher. A model
    whose logits come with gradients trains every parameter that they depend on.

    logits: logits of the trained model, [B T V].
    teacher_logits: logits of the teacher, [B T V].
    temperature: the temperature tau; above 1, unlikely tokens count more.

    Source: Hinton et al., 2015, arXiv:1503.02531, section 2.
    """
    with torch.no_grad():
        teacher = F.log_softmax(at_least_float32(teacher_logits) / temperature, -1)
    student = F.log_softmax(at_least_float32(logits) / temperature, -1)
    return temperature**2 * F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)


def hidden_distance(
    states: Sequence[Float[Tensor, "B T D"]], teacher_states: Sequence[Float[Tensor, "B T D"]]
) -> Float[Tensor, "B T"]:
    """Return the squared distance of hidden states from the teacher's, relative to their size.

        mean_n |h_n - t_n|^2 / |t_n|^2

    It is 0 for equal states and 1 for states of zeros. Without the division, a few tokens and the highest layers, whose
    states are far larger, would make up most of the mean. A model whose states come with gradients trains the
    parameters at and below the highest of them.

    states: hidden states h_n of the trained model, each [B T D].
    teacher_states: the same states t_n of the teacher.

    Source: Romero et al., 2014, arXiv:1412.6550 (hidden states of one layer as targets, through a
    learned map, without the division).
    """
    distances = []
    for state, teacher_state in zip(states, teacher_states, strict=True):
        wide, target = at_least_float32(state), at_least_float32(teacher_state.detach())
        size = target.square().sum(-1).clamp_min(torch.finfo(target.dtype).tiny)
        distances.append((wide - target).square().sum(-1) / size)
    return torch.stack(distances).mean(0)
