"""Collaborative heads: queries and keys of trained heads share columns, so that half of them do without retraining."""

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.projection import Projection
from kinformer.lab.claims.support.growth import ticks
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.text import TextData
from kinformer.lab.train.fit import fit
from kinformer.members.gpt import gpt
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.projections.collaborative import Collaborative

WIDTH, LENGTH, ROWS, STEPS, RATE, TEXT = 64, 64, 8, 600, 2e-3, "text=stdlib"
SIZES: dict[str, Any] = {"d": WIDTH, "depth": 2, "heads": 4, "length": LENGTH}
COLUMNS = (WIDTH // 8, WIDTH // 4, WIDTH // 2, WIDTH)
EXACT = 1e-4  # of float32
COST = 0.05  # bits that half of the columns may cost, as a fraction of the bits that attention saves
LEARNED = 0.5  # error of logits with half of the columns, relative to an untrained layer
SAYS = "of a trained layer's query and key columns half can be shared away without retraining, and all kept are exact"
SOURCE = "Cordonnier et al., 2020, arXiv:2006.16362, abstract and section 4: four times fewer trained, half converted"


class Lost(NamedTuple):
    """By columns kept: the relative error of logits, the mean over layers, and bits per byte.

    Bits before, and where no key is told from another, which is what attention is worth to this model.
    """

    logits: list[float]
    bits: list[float]
    before: float
    even: float


def trained(seed: int, steps: int, text: TextData) -> LM:
    """A small gpt after a training of `steps` steps; untrained for 0 steps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = gpt(**SIZES)
        if steps:
            fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=RATE, seed=seed, valid_bytes=1024)
    return model.eval()


def logits(projection: Projection, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T T"]:
    """Of all pairs of tokens, each row's mean taken away, which the softmax forgets."""
    pos = torch.arange(x.shape[1]).expand(len(x), -1)
    q, k = projection.queries(x, pos).q, projection.keys(x, pos).k
    found = q @ k.mT * k.shape[-1] ** -0.5
    return found - found.mean(-1, keepdim=True)


@torch.no_grad()
def lost(model: LM, rows: Int[Tensor, "B T"], columns: Sequence[int]) -> Lost:
    """What each layer's conversion does to its logits, and that of all layers to the model."""
    layers = [part for part in model.modules() if isinstance(part, Attention)]
    inputs: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0])) for layer in layers]
    before = _bits(model, rows)
    for hook in hooks:
        hook.remove()
    errors, bits = [], []
    for shared in columns:
        other = deepcopy(model)
        off = []
        for part, x in zip((one for one in other.modules() if isinstance(one, Attention)), inputs, strict=True):
            want = logits(part.projection, x)
            part.projection = Collaborative.of(part.projection, shared)  # type: ignore[arg-type]
            off.append(float((logits(part.projection, x) - want).norm() / want.norm()))
        errors.append(mean(off))
        bits.append(_bits(other, rows))
    for part in (one for one in other.modules() if isinstance(one, Attention)):
        part.projection.k.weight.zero_()  # type: ignore[union-attr, operator]
    return Lost(errors, bits, before, _bits(other, rows))


def cost(result: Lost, n: int) -> float:
    """The fraction of the value of attention that a conversion to the n-th number of columns loses."""
    return (result.bits[n] - result.before) / (result.even - result.before)


def _bits(model: LM, rows: Int[Tensor, "B T"]) -> float:
    total, count = model.judge(rows).totals[model.metric.name]
    return float(total / count)


def claim(seeds: Sequence[int], steps: int = STEPS, columns: Sequence[int] = COLUMNS) -> Claim:
    """Convert a trained model of each seed to every number of columns, without further training.

    The loss in bits is divided by the value of attention: the bits that a model loses if it weighs all keys equally. A
    bound on bits alone would accept a model that hardly reads other tokens.
    """
    text = read_spec(TEXT)
    assert isinstance(text, TextData)
    rows = text.valid[: 16 * LENGTH].long().view(16, LENGTH)
    found = [lost(trained(seed, steps, text), rows, columns) for seed in seeds]
    fresh = [lost(trained(seed, 0, text), rows, columns[-2:-1]) for seed in seeds]
    measures = (
        Measure("relative error of logits with all columns", [one.logits[-1] for one in found], "most", EXACT),
        Measure(
            "share of what attention is worth that is lost with half of the columns",
            [cost(run, -2) for run in found],
            "most",
            COST,
            nothing=1.0,
        ),
        Measure(
            "relative error of logits with half of the columns, over that of an untrained layer",
            [run.logits[-2] / other.logits[0] for run, other in zip(found, fresh, strict=True)],
            "most",
            LEARNED,
            nothing=1.0,
        ),
    )
    told = {
        f"{shared} of {columns[-1]} columns": f"logits off by {mean(one.logits[n] for one in found):.3f}, "
        f"{mean(run.bits[n] for run in found):.3f} bits per byte, {mean(cost(run, n) for run in found):.1%} lost"
        for n, shared in enumerate(columns)
    }
    told["before"] = f"{mean(one.before for one in found):.3f} bits per byte, after {steps} steps"
    told["no column"] = f"{mean(one.even for one in found):.3f} bits per byte, every token reads all alike"
    drawn = {
        "error of logits": partial(_draw, columns, [one.logits for one in found], "relative error"),
        "not trained again": partial(_draw, columns, [one.bits for one in found], "bits per byte"),
    }
    return Claim(SAYS, SOURCE, measures, told, dict(drawn))


def _draw(columns: Sequence[int], found: list[list[float]], what: str, axes: Any) -> None:
    axes.semilogx(columns, [mean(each) for each in zip(*found, strict=True)], "o-")
    ticks(axes, columns)
    axes.set(xlabel="columns of queries and keys that are kept", ylabel=what)
