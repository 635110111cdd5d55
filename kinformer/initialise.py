"""initialise: the weights of a model at the start, by the name of a scheme."""

import math
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from kinformer.aggregations.out_projection import OutProjection
from kinformer.core.checks import inside, one_of
from kinformer.feedforward.mlp import MLP, GatedMLP
from kinformer.projections.qkv import QKV

Scheme = Literal["library", "normal", "scaled_normal", "truncated_normal", "xavier"]
M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def initialise(model: M, scheme: Scheme, *, std: float = 0.02) -> M:
    """Draw the linear maps and embeddings of a model again, in place; the model.

        model = initialise(gpt(d=768, depth=12), "normal", std=0.006)

    Choose it for a model of your own, or to give a member the scheme of another paper. Members whose paper or code
    names a scheme have the keyword `init`. Everything else stays as its part makes it: gains and biases of norms,
    tables of relative positions, gates.

    scheme: how.
        "library": nothing is drawn again. Linear maps are those of PyTorch, uniform up to 1 / sqrt(fan-in); embeddings
            are those of the model.
        "normal": weights from N(0, std^2), biases 0. GPT (Radford et al., 2018) and the code of Transformer-XL.
        "scaled_normal": the same, and the last map of each residual branch divided by sqrt(N) for N branches. GPT-2
            (Radford et al., 2019, section 2.3), as the stream is a sum of N branches.
        "truncated_normal": "normal", drawn again beyond two deviations. The code of BERT (Devlin et al., 2018).
        "xavier": linear maps uniform up to sqrt(6 / (fan-in + fan-out)), queries, keys and values each by itself, and
            biases 0; embeddings stay. The 2017 Transformer in tensor2tensor; Glorot and Bengio, 2010.
    std: the standard deviation of the normal ones. 0.02 is for widths of about 768: a narrow model that starts so small
        learns nothing for a hundred steps. `at_width` brings it to another width.

    Errors: ValueError for another scheme, and a deviation of 0 or less.
    """
    inside("std", std, 0, math.inf)
    if one_of("scheme", scheme, Scheme) == "library":
        return model
    parts = list(model.modules())
    last = [part.linear if isinstance(part, OutProjection) else part.down for part in parts if _is_branch(part)]
    widths = {part.qkv: part.widths for part in parts if isinstance(part, QKV)}
    drawn = set[int]()  # a head that is the embedding is drawn once
    for part in parts:
        if not isinstance(part, nn.Linear | nn.Embedding) or id(part.weight) in drawn:
            continue
        drawn.add(id(part.weight))
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if scheme == "xavier":
            for matrix in part.weight.split(widths.get(part, len(part.weight))) if isinstance(part, nn.Linear) else ():
                nn.init.xavier_uniform_(matrix)
        elif scheme == "truncated_normal":
            _truncated_normal(part.weight, std)
        else:
            smaller = math.sqrt(len(last)) if scheme == "scaled_normal" and part in last else 1.0
            nn.init.normal_(part.weight, std=std / smaller)
    return model


def _truncated_normal(weight: Tensor, std: float) -> None:
    """Draw from N(0, std^2) within two deviations, by the inverse of its distribution function.

    PyTorch's `trunc_normal_` draws again until all numbers are inside, which never ends where a model is built without
    drawing its numbers.
    """
    edge = math.erf(math.sqrt(2))
    weight.uniform_(-edge, edge).erfinv_().mul_(math.sqrt(2) * std).clamp_(-2 * std, 2 * std)


def at_width(std: float, width: int, d: int) -> float:
    """The standard deviation for width d that keeps the size of what linear maps give: std sqrt(width / d).

    The 0.02 of GPT-2 and BERT at their width of 768 is 0.55 / sqrt(d); PyTorch's own maps have 0.58 / sqrt(d).
    """
    return std * math.sqrt(width / d)


def with_embeddings(model: M, std: float | None) -> M:
    """The model, its embedded tokens drawn again from N(0, std^2); as they are where that is None."""
    if std is not None:
        nn.init.normal_(model.embedding.weight, std=inside("std", std, 0, math.inf))  # type: ignore[union-attr,arg-type]
    return model


def _is_branch(part: nn.Module) -> bool:
    return isinstance(part, OutProjection | MLP | GatedMLP)
