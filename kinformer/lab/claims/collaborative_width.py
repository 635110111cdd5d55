"""Half of the query and key features of trained heads can be removed without retraining."""

from collections.abc import Sequence
from copy import deepcopy
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.projection import Projection
from kinformer.lab.claims.support.claim_models import mean_metric, seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.text import TextData
from kinformer.lab.data.text import read as read_text
from kinformer.lab.plot import Plot, PlotLine, seed_mean
from kinformer.lab.train.fit import fit
from kinformer.members.gpt import gpt
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.projections.collaborative import Collaborative

WIDTH, LENGTH, ROWS, STEPS, RATE = 64, 64, 8, 600, 2e-3
MINUTES = 1  # of a default run with three seeds
SIZES: dict[str, Any] = {"d": WIDTH, "depth": 2, "heads": 4, "length": LENGTH}
COLUMNS = (WIDTH // 8, WIDTH // 4, WIDTH // 2, WIDTH)
EXACT = 1e-4  # float32 tolerance
COST = 0.05  # bits that half of the columns may cost, as a fraction of the bits that attention saves
LEARNED = 0.5  # error of logits with half of the columns, relative to an untrained layer
CHOSEN = 0.25  # loss with half of the columns, relative to half of each head's own features
SAYS = "half of a trained layer's query and key columns can be removed without retraining, and keeping all is exact"
SOURCE = "Cordonnier et al., 2020, arXiv:2006.16362, abstract and section 4"


class ConversionLoss(NamedTuple):
    """Losses of a model that is converted to collaborative heads, for each number of columns kept.

    A column is a feature of queries and keys that all heads share.

    logits: relative error of the attention logits, mean over layers.
    bits: bits per byte of the converted model.
    before: bits per byte before the conversion.
    even: bits per byte if every query weighs all keys equally. The difference from `before` shows how much attention
        helps.
    halved: bits per byte if each head keeps the first half of its own query and key features, without a conversion.
    """

    logits: list[float]
    bits: list[float]
    before: float
    even: float
    halved: float


def train_gpt(seed: int, steps: int, text: TextData) -> LM:
    """Train a small `gpt`.

    seed: seed of the weights and of the training.
    steps: number of training steps; 0 leaves the model untrained.
    text: text to learn from.
    """
    with seeded(seed):
        model = gpt(**SIZES)
        if steps:
            fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=RATE, seed=seed, valid_bytes=1024)
    return model.eval()


def logits(projection: Projection, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T T"]:
    """Return the attention logits of all token pairs, minus their mean for each query.

    The softmax does not depend on this mean.

    projection: projection of tokens to queries and keys.
    x: hidden states of the tokens.
    """
    pos = torch.arange(x.shape[1]).expand(len(x), -1)
    q, k = projection.queries(x, pos).q, projection.keys(x, pos).k
    scores = q @ k.mT * k.shape[-1] ** -0.5
    return scores - scores.mean(-1, keepdim=True)


@torch.no_grad()
def conversion_loss(model: LM, rows: Int[Tensor, "B T"], columns: Sequence[int]) -> ConversionLoss:
    """Convert the layers of a model to collaborative heads without training, and return the losses.

    model: trained model; it is not changed.
    rows: batch to measure on.
    columns: numbers of columns to keep: features of queries and keys that all heads share.
    """
    layers = [part for part in model.modules() if isinstance(part, Attention)]
    inputs: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for layer in layers]
    before = mean_metric(model, rows, model.metric.name)
    for hook in hooks:
        hook.remove()
    errors, bits = [], []
    for shared in columns:
        other = deepcopy(model)
        off = []
        for part, x in zip((layer for layer in other.modules() if isinstance(layer, Attention)), inputs, strict=True):
            want = logits(part.projection, x)
            part.projection = Collaborative.from_trained(part.projection, shared)  # type: ignore[arg-type]
            off.append(float((logits(part.projection, x) - want).norm() / want.norm()))
        errors.append(mean(off))
        bits.append(mean_metric(other, rows, model.metric.name))
    return ConversionLoss(errors, bits, before, *(_bits_with_features(model, rows, share) for share in (0.0, 0.5)))


def _bits_with_features(model: LM, rows: Int[Tensor, "B T"], share: float) -> float:
    """Return the bits per byte of a copy in which each head keeps only the first share of its key features."""
    other = deepcopy(model)
    for part in (layer for layer in other.modules() if isinstance(layer, Attention)):
        weight, _ = part.projection.matrix("k")
        by_head = weight.view(SIZES["heads"], -1, weight.shape[1])
        by_head[:, round(share * by_head.shape[1]) :] = 0
    return mean_metric(other, rows, model.metric.name)


def cost(result: ConversionLoss, n: int) -> float:
    """Return the share of the value of attention that a converted model loses.

    The value of attention is the number of bits that the model loses if every query weighs all keys equally.

    result: losses of the conversions.
    n: index of the conversion in `result`.
    """
    return (result.bits[n] - result.before) / (result.even - result.before)


def cost_of_halves(result: ConversionLoss) -> float:
    """Return the share of the value of attention that is lost if each head keeps half of its own features.

    result: losses of the conversions.
    """
    return (result.halved - result.before) / (result.even - result.before)


def claim(seeds: Sequence[int], steps: int = STEPS, columns: Sequence[int] = COLUMNS) -> Claim:
    """Convert trained models to collaborative heads without further training, and measure the losses.

    After the conversion all heads share their query and key columns (features of queries and keys). Fewer columns make
    the model smaller but less exact.

    The additional bits of a converted model are divided by the value of attention: the bits that the model loses if
    every query weighs all keys equally. A bound on bits without this division would accept a model that hardly attends
    to other tokens. It is also compared with the loss if each head keeps the first half of its own features. A model
    that needs few features would lose little in both cases, and the conversion would prove nothing.

    The claim holds if four conditions are met. With all columns the relative error of the attention logits is at most
    1e-4. With half of the columns at most 0.05 of the value of attention is lost. This loss is at most 0.25 of the loss
    if each head keeps half of its own features. With half of the columns the error of the logits is at most half of the
    error in an untrained model.

    In this small model 8 of the 64 columns meet the second and third condition too, because its logits are close to a
    low rank. So half of the columns is no limit here. If each head keeps half of its own features, 0.39 of the value of
    attention is lost, which shows that the heads do use their features.

    seeds: seeds of the trainings.
    steps: number of training steps.
    columns: numbers of columns to keep, in rising order; the last is all, the one before is half.
    """
    text = read_text("stdlib")
    rows = text.valid[: 16 * LENGTH].long().view(16, LENGTH)
    runs = [conversion_loss(train_gpt(seed, steps, text), rows, columns) for seed in seeds]
    fresh = [conversion_loss(train_gpt(seed, 0, text), rows, columns[-2:-1]) for seed in seeds]
    measures = (
        Measure("relative error of logits with all columns", [run.logits[-1] for run in runs], "most", EXACT),
        Measure(
            "lost share of the value of attention with half of the columns",
            [cost(run, -2) for run in runs],
            "most",
            COST,
            no_effect=1.0,
        ),
        Measure(
            "loss with half of the columns, divided by the loss if each head keeps half of its own features",
            [cost(run, -2) / cost_of_halves(run) for run in runs],
            "most",
            CHOSEN,
            no_effect=1.0,
        ),
        Measure(
            "relative error of logits with half of the columns, divided by the error of an untrained layer",
            [run.logits[-2] / other.logits[0] for run, other in zip(runs, fresh, strict=True)],
            "most",
            LEARNED,
            no_effect=1.0,
        ),
    )
    facts = {
        f"{shared} of {columns[-1]} columns": f"relative error of logits {mean(run.logits[n] for run in runs):.3f}, "
        f"{mean(run.bits[n] for run in runs):.3f} bits per byte, "
        f"{mean(cost(run, n) for run in runs):.1%} of the value of attention lost"
        for n, shared in enumerate(columns)
    }
    facts["before the conversion"] = f"{mean(run.before for run in runs):.3f} bits per byte, after {steps} steps"
    facts["half of each head's own features"] = (
        f"{mean(run.halved for run in runs):.3f} bits per byte, "
        f"{mean(cost_of_halves(run) for run in runs):.1%} of the value of attention lost"
    )
    facts["no column"] = f"{mean(run.even for run in runs):.3f} bits per byte, every query weighs all keys equally"
    plots = [
        Plot(
            title,
            "columns of queries and keys kept",
            unit,
            (PlotLine(columns, seed_mean(runs), style="o-"),),
            log="x",
            ticks=columns,
        )
        for title, unit, runs in (
            ("error of logits", "relative error", [run.logits for run in runs]),
            ("loss without retraining", "bits per byte", [run.bits for run in runs]),
        )
    ]
    return Claim(SAYS, SOURCE, measures, facts, plots)
