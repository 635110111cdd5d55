"""initialise: initial weights of a model by a named scheme."""

import math
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from kinformer.core.checks import check_option, check_strictly_between
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.feedforward.mlp import MLP, GatedMLP
from kinformer.nn.projections.qkv import QKV

Scheme = Literal["library", "normal", "scaled_normal", "truncated_normal", "xavier"]
M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def initialise(model: M, scheme: Scheme, *, std: float = 0.02) -> M:
    """Reinitialise the linear maps and embeddings of a model in place, and return the model.

        model = initialise(gpt(d=768, depth=12), "normal", std=0.006)

    Choose it for your own model, or to give a member (named model of this library) the scheme of another paper. A
    member's constructor takes `init` if its paper or code names a scheme. All other weights stay unchanged: gains and
    biases of norms, tables of relative positions, gates.

    model: model to initialise.
    scheme: name of the scheme.
        "library": nothing changes. Linear maps keep PyTorch's start, uniform up to 1 / sqrt(fan-in); embeddings keep
            the model's start.
        "normal": weights from N(0, std^2), biases 0. GPT (Radford et al., 2018) and the code of Transformer-XL.
        "scaled_normal": "normal", with the last map of each of N residual branches divided by sqrt(N), because the
            residual stream is a sum of N branches. GPT-2 (Radford et al., 2019, section 2.3).
        "truncated_normal": "normal", restricted to two standard deviations. The code of BERT (Devlin et al., 2018).
        "xavier": linear maps uniform up to sqrt(6 / (fan-in + fan-out)), separately for queries, keys and values, and
            biases 0; embeddings stay. The 2017 Transformer in tensor2tensor; Glorot and Bengio, 2010.
    std: standard deviation of the normal schemes. 0.02 suits widths of about 768. With such small weights, a narrow
        model learns nothing for a hundred steps; `at_width` scales std to its width.

    Errors: ValueError if the scheme is unknown, or if std is 0 or less.
    """
    check_strictly_between("std", std, 0, math.inf)
    if check_option("scheme", scheme, Scheme) == "library":
        return model
    parts = list(model.modules())
    last = [part.linear if isinstance(part, OutProjection) else part.down for part in parts if _is_branch(part)]
    widths = {part.qkv: part.widths for part in parts if isinstance(part, QKV)}
    initialised = set[int]()  # a head that shares the embedding's weight is drawn once
    for part in parts:
        if not isinstance(part, nn.Linear | nn.Embedding) or id(part.weight) in initialised:
            continue
        initialised.add(id(part.weight))
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
    """Draw from N(0, std^2) within two standard deviations, by the inverse of the distribution function."""
    edge = math.erf(math.sqrt(2))
    weight.uniform_(-edge, edge).erfinv_().mul_(math.sqrt(2) * std).clamp_(-2 * std, 2 * std)


def at_width(std: float, width: int, d: int) -> float:
    """Scale a standard deviation from `width` to d, so that outputs of linear maps keep their size.

        std * sqrt(width / d)

    The std 0.02 of GPT-2 and BERT at width 768 is 0.55 / sqrt(d). The std of PyTorch's own start is 0.58 / sqrt(d).

    std: standard deviation at `width`.
    width: width for which std was chosen.
    d: width of the model.
    """
    return std * math.sqrt(width / d)


def with_embeddings(model: M, std: float | None) -> M:
    """Redraw a model's token embeddings from N(0, std^2) and return the model.

    model: model with token embeddings.
    std: standard deviation; None changes nothing.

    Errors: ValueError if std is 0 or less.
    """
    if std is not None:
        nn.init.normal_(model.embedding.weight, std=check_strictly_between("std", std, 0, math.inf))  # type: ignore[union-attr,arg-type]
    return model


def _is_branch(part: nn.Module) -> bool:
    return isinstance(part, OutProjection | MLP | GatedMLP)
