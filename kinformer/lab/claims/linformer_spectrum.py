"""Linformer: trained attention has low rank, and reading k mixtures of a row is on par with reading the whole row."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.model import ACCURACY
from kinformer.lab.claims.support.claim_models import heads, mean_metric, seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.cost.cost import counting
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.task import TaskData, of_form
from kinformer.lab.data.text import TextData
from kinformer.lab.plot import Plot, PlotLine, slope
from kinformer.lab.tasks.sorting import Sorting
from kinformer.lab.train.fit import fit
from kinformer.members.bert import bert
from kinformer.members.linformer import linformer
from kinformer.models.mlm import MLM

LENGTH, WIDTH, DEPTH, HEADS = 256, 64, 2, 4
STEPS, BATCH, RATE, TEXT = 250, 4, 4e-3, "text=stdlib"
ENERGY = 0.9
LEARNT = 0.95  # of the bits that the frequencies of bytes cost: fresh attention is a mean of all tokens, of rank 1
SHARE = 1 / 4  # the paper's k of 128 in rows of 512
SIZES: dict[str, Any] = {"d": WIDTH, "depth": DEPTH, "heads": HEADS}
TASK, ROOM, LEARNED, ROWS, JUDGED = Sorting(length=24, symbols=12), 64, 800, 16, 64  # rows of 49 symbols, tables of 64
LONG = (512, 1024, 2048)  # tokens of the rows whose products are counted
ON_PAR, FLAT = 0.95, 0.02  # of bert's right answers; the exponent of products per token, where pairs of tokens have 1
SAYS = (
    "trained attention is of low rank, and a Linformer of k = length / 4 predicts as well as BERT at a cost per token "
    "that does not grow with the row"
)
SOURCE = "Wang et al., 2020, arXiv:2006.04768, abstract, section 3 and figure 1"


@torch.no_grad()
def spectra(model: MLM, tokens: Tensor) -> Float[Tensor, "N T"]:
    """Singular values of every attention matrix: of each row of tokens, layer and head, the largest first."""
    matrices = [(q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) for q, k, _ in heads(model, tokens)]
    return torch.linalg.svdvals(torch.cat([matrix.flatten(0, 1) for matrix in matrices]).double())


def cumulative_share(values: Float[Tensor, "N T"], power: int = 2) -> Float[Tensor, "N T"]:
    """The part of the sum of all (of their squares: the energy) that lies in the first 1, 2, .. singular values."""
    sums = values.pow(power).cumsum(-1)
    return sums / sums[:, -1:]


def count_needed(values: Float[Tensor, "N T"], share: float = ENERGY, power: int = 2) -> Float[Tensor, " N"]:
    """How many of the singular values hold that much."""
    return (cumulative_share(values, power) < share).sum(-1) + 1.0


def train_on_text(model: MLM, steps: int, length: int, seed: int) -> float:
    """Train on text and return the bits per hidden byte on validation data."""
    history = fit(model, TEXT, steps=steps, batch=BATCH, length=length, lr=RATE, seed=seed)
    return history.points[-1].valid


def by_frequency() -> float:
    """Validation bits per byte of a model that knows only the byte frequencies of the training data."""
    text = read_spec(TEXT)
    assert isinstance(text, TextData)
    train, valid = (torch.bincount(part.long(), minlength=256).double() for part in (text.train, text.valid))
    return float(-(valid * ((train + 1) / (train + 1).sum()).log2()).sum() / valid.sum())


def train_and_test(make: Any, seed: int, data: TaskData, steps: int) -> float:
    """Train a model and return its accuracy on unseen rows."""
    with seeded(seed):
        model = make(**SIZES, length=ROOM)
        if steps:
            fit(model, data, steps=steps, batch=ROWS, lr=3e-3, seed=seed)
    rows = of_form(data.valid.rows(JUDGED), model.reads)
    return mean_metric(model.eval(), rows, ACCURACY.name)


@torch.no_grad()
def products(make: Any, lengths: Sequence[int]) -> list[float]:
    """Additions and multiplications per token at each row length, by a model built for that length."""
    counts = []
    with torch.random.fork_rng(devices=[]):
        for length in lengths:
            model, tokens = make(**SIZES, length=length).eval(), torch.zeros(1, length, dtype=torch.long)
            with counting() as tally:
                model.logits(tokens)
            counts.append(tally.flops / length)
    return counts


def claim(seeds: Sequence[int], steps: int = STEPS, learned: int = LEARNED, length: int = LENGTH) -> Claim:
    """Measure the spectrum of trained attention; compare accuracy and cost of Linformer and BERT, trained equally.

    The spectrum comes from a small encoder trained on text, on unseen rows of the training length, half of it and twice
    it. The encoder has pre-norm and rotary positions. In so few steps a post-norm encoder with learned positions only
    learns the byte frequencies, and its attention stays a mean of all tokens, which has rank 1. The two members are
    post-norm, so they are compared by sorting. On text BERT, a Linformer and a Linformer that reads only the mean of
    the row reach 4.24, 4.28 and 4.25 bits per hidden byte after 1,000 steps, so text cannot tell them apart.
    """
    lengths = (length // 2, length, 2 * length)
    fresh, trained, bits = [], {n: list[Tensor]() for n in lengths}, []
    rows = {n: rows_of(n) for n in lengths}
    for seed in seeds:
        with seeded(seed):
            model = bert(**SIZES, norm="pre", position="rotary")
            fresh.append(spectra(model, rows[length]))
            bits.append(train_on_text(model, steps, length, seed))
            for n in lengths:
                trained[n].append(spectra(model, rows[n]))
    of, data = trained[length], TaskData.from_task("sorting", TASK)
    few = partial(linformer, k=round(SHARE * ROOM))
    full, mixed = ([train_and_test(make, seed, data, learned) for seed in seeds] for make in (bert, few))
    per_token = {"bert": products(bert, LONG), "linformer": products(partial(linformer, k=64), LONG)}
    exponent = slope(LONG, per_token["linformer"])
    frequencies = by_frequency()
    measures = (
        Measure(
            "bits per hidden byte over those of the frequencies of bytes",
            [x / frequencies for x in bits],
            "most",
            LEARNT,
            no_effect=1.0,
        ),
        Measure(
            f"singular values that hold {ENERGY:.0%} of the energy of attention over {length} tokens, per token",
            [float(count_needed(run).mean()) / length for run in of],
            "most",
            SHARE,
        ),
        Measure(
            "right answers of a Linformer, over BERT's",
            [a / b for a, b in zip(mixed, full, strict=True)],
            "least",
            ON_PAR,
            no_effect=0.0,
        ),
        Measure("exponent of a Linformer's products per token in the row", (exponent,), "near", 0.0, within=FLAT),
    )
    means = [[float(count_needed(values).mean()) for values in trained[n]] for n in lengths]
    facts = {
        **{f"how many, of {n} tokens": _range(counts) for n, counts in zip(lengths, means, strict=True)},
        "their exponent in the length": f"{slope(lengths, [mean(counts) for counts in means]):.2f}",
        f"how many, of {length} tokens, the head that needs most": _range(
            [float(count_needed(values).max()) for values in of]
        ),
        "before training": _range([float(count_needed(values).mean()) for values in fresh]),
        f"of the sum of singular values, and not of squares, in the first {SHARE * length:g}": _range(
            [float(cumulative_share(values, 1)[:, int(SHARE * length) - 1].mean()) for values in of]
        ),
        f"bits per hidden byte after {steps} steps": f"{_range(bits)}; by the frequencies of bytes {frequencies:.3g}",
        f"right answers after {learned} steps of {TASK}": f"{mean(mixed):.3f} of a Linformer, {mean(full):.3f} of BERT",
        "exponent of BERT's products per token": f"{slope(LONG, per_token['bert']):.3f}",
    }
    energy, at = cumulative_share(torch.cat(of)), range(1, length + 1)
    lines = [
        *(PlotLine(at, head, "a head", colour="tab:blue", alpha=0.2) for head in energy.tolist()),
        PlotLine(at, energy.mean(0).tolist(), "mean of heads", colour="tab:blue"),
        PlotLine(at, cumulative_share(torch.cat(fresh)).mean(0).tolist(), "before training", "--", "tab:gray"),
    ]
    spectrum = Plot(
        f"energy in the first k of {length} singular values",
        "k",
        "of the energy",
        lines,
        levels=((ENERGY, ""),),
        marks=(SHARE * length,),
        log="x",
        ylim=(0, 1.02),
    )
    lines = [
        *(PlotLine(lengths, counts, "", "o-", "tab:blue") for counts in zip(*means, strict=True)),
        PlotLine(lengths, [SHARE * n for n in lengths], f"{SHARE:g} of the tokens", ":", "black"),
    ]
    growth = Plot(
        f"how many hold {ENERGY:.0%}", "tokens", "singular values, mean of heads", lines, ticks=lengths, ylim=(0, None)
    )
    return Claim(SAYS, SOURCE, measures, facts, (spectrum, growth))


def rows_of(length: int) -> Tensor:
    """Two rows of text that is held back."""
    tokens = read_spec(TEXT).valid  # type: ignore[attr-defined]
    return torch.as_tensor(tokens[: 2 * length]).long().view(2, length)


def _range(values: Sequence[float]) -> str:
    return f"{mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"
