"""Reversible layers store equal memory at any depth, and have the gradients of a plain stack."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from statistics import mean
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.layer import Layer
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.cost.saved_bytes import saved_bytes
from kinformer.lab.plot import Plot, PlotLine, slope
from kinformer.members.reformer import reformer
from kinformer.models.lm import LM
from kinformer.nn.depth.reversible import Reversible
from kinformer.nn.depth.stack import Stack

SIZES: dict[str, Any] = {"d": 64, "heads": 2, "buckets": 8, "local": 32, "length": 256, "vocab": 64, "dropout": 0.1}
DEPTHS, ROWS, COMPARED = (2, 4, 8, 16), 2, 8  # numbers of layers; rows of a batch; layers whose gradients are compared
FLAT, EQUAL = 0.05, 1e-5
SAYS = "a Reformer stores as much for its backward pass with sixteen layers as with two, and its gradients are exact"
SOURCE = "Kitaev et al., 2020, arXiv:2001.04451, abstract and section 3"


def plain(model: LM) -> LM:
    """Return a copy of a Reformer that stores the activations of every layer.

    model: the Reformer.
    """
    copy = deepcopy(model)
    body = cast(Reversible, copy.body)
    copy.body = Stack(cast(Iterable[Layer], body.layers), body.norm)
    return copy


def gradients(model: LM, tokens: Int[Tensor, "B T"], seed: int) -> dict[str, Tensor]:
    """Return the gradients of a training step by the names of the parameters.

    model: model to train.
    tokens: batch.
    seed: seed of dropout.
    """
    model.zero_grad()  # the step gets gradients of its own, which no later call changes
    with seeded(seed):
        model.train()(tokens).total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def gradient_error(model: LM, tokens: Int[Tensor, "B T"], seed: int) -> float:
    """Return the largest relative difference of a gradient from the stored form, in float64.

    The stored form keeps the activations. The difference of a parameter is the norm of the difference, divided by the
    norm of the gradient.

    model: Reformer; it is converted to float64.
    tokens: batch.
    seed: seed of dropout.
    """
    stored = gradients(plain(model.double()), tokens, seed)
    recomputed = gradients(model, tokens, seed)
    if stored.keys() != recomputed.keys():
        return float("inf")
    return max(float((recomputed[name] - exact).norm() / exact.norm()) for name, exact in stored.items())


def claim(seeds: Sequence[int], depths: Sequence[int] = DEPTHS) -> Claim:
    """Measure the stored bytes of a Reformer by its number of layers, and compare its gradients.

    Measured here: the bytes that the forward pass keeps for the backward pass, with 2 to 16 layers and dropout. Two
    conditions decide. The bytes grow with an exponent of 0, within 0.05, in the number of layers. Every gradient of 8
    layers equals the gradient of the same layers with stored activations within 1e-5 in float64. The bytes of the same
    layers with stored activations are only a comparison. Weights are random: neither number depends on training.

    seeds: seeds of weights, rows and dropout.
    depths: numbers of layers.
    """
    kept: dict[str, list[list[int]]] = {"reversible": [], "stored": []}
    errors = []
    for seed in seeds:
        with seeded(seed):
            tokens = torch.randint(SIZES["vocab"], (ROWS, SIZES["length"]))
            models = [reformer(**SIZES, depth=depth) for depth in depths]
            kept["reversible"].append([saved_bytes(model, tokens) for model in models])
            kept["stored"].append([saved_bytes(plain(model), tokens) for model in models])
            compared = reformer(**SIZES, depth=min(COMPARED, depths[-1]))
        errors.append(gradient_error(compared, tokens, seed))
    measures = (
        Measure(
            "growth exponent of the stored bytes in the number of layers",
            [slope(depths, sizes) for sizes in kept["reversible"]],
            "near",
            0.0,
            within=FLAT,
        ),
        Measure("largest relative difference of a gradient from the stored form, float64", errors, "most", EQUAL),
    )
    layers = ", ".join(map(str, depths))
    facts = {
        f"megabytes with {layers} layers, {name}": ", ".join(
            f"{mean(column) / 1e6:.2f}" for column in zip(*sizes, strict=True)
        )
        for name, sizes in kept.items()
    }
    lines = [
        PlotLine(depths, [mean(column) / 1e6 for column in zip(*sizes, strict=True)], name, "o-")
        for name, sizes in kept.items()
    ]
    plot = Plot(
        "bytes that a training step stores",
        "layers",
        "megabytes for the backward pass",
        lines,
        ticks=depths,
        ylim=(0, None),
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
