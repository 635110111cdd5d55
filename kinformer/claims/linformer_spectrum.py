"""Linformer: the attention of a trained encoder is of low rank: few singular values hold most of a matrix's energy."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.claims.support.trained import heads
from kinformer.claims.support.verdict import Claim, Draw, Measure, slope
from kinformer.data.spec import read_spec
from kinformer.members.bert import bert
from kinformer.models.mlm import MLM
from kinformer.train.fit import fit

LENGTH, WIDTH, DEPTH, HEADS = 256, 64, 2, 4
STEPS, BATCH, RATE, TEXT = 250, 4, 4e-3, "text=stdlib"
ENERGY = 0.9
SHARE = 1 / 4  # the paper's k of 128 in rows of 512
SAYS = "the attention of a trained encoder is of low rank: 90% of its energy lies in far fewer directions than tokens"
SOURCE = "Wang et al., 2020, arXiv:2006.04768, section 3 and figure 1"


@torch.no_grad()
def spectra(model: MLM, tokens: Tensor) -> Float[Tensor, "N T"]:
    """Singular values of every attention matrix: of each row of tokens, layer and head, the largest first."""
    matrices = [(q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) for q, k, _ in heads(model, tokens)]
    return torch.linalg.svdvals(torch.cat([one.flatten(0, 1) for one in matrices]).double())


def held(values: Float[Tensor, "N T"], power: int = 2) -> Float[Tensor, "N T"]:
    """The part of the sum of all (of their squares: the energy) that lies in the first 1, 2, .. singular values."""
    sums = values.pow(power).cumsum(-1)
    return sums / sums[:, -1:]


def needed(values: Float[Tensor, "N T"], share: float = ENERGY, power: int = 2) -> Float[Tensor, " N"]:
    """How many of the singular values hold that much."""
    return (held(values, power) < share).sum(-1) + 1.0


def claim(seeds: Sequence[int], steps: int = STEPS, length: int = LENGTH) -> Claim:
    """A small encoder trained on text, on rows that it has not learned: as long as it was trained on, half, and twice.

    Pre-norm and rotary positions: in so few steps post-norm ones with learned positions stay at the frequencies of
    bytes, and their attention at a mean of all tokens, which is of rank 1.
    """
    lengths = (length // 2, length, 2 * length)
    fresh, trained, bits = [], {n: list[Tensor]() for n in lengths}, []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = bert(d=WIDTH, depth=DEPTH, heads=HEADS, length=length, norm="pre", position="rotary")
            rows = {n: rows_of(n) for n in lengths}
            fresh.append(spectra(model, rows[length]))
            if steps:
                found = fit(model, TEXT, steps=steps, batch=BATCH, length=length, lr=RATE, seed=seed)
                bits.append(found.points[-1].valid)
            for n in lengths:
                trained[n].append(spectra(model, rows[n]))
    of = trained[length]
    measure = Measure(
        f"singular values that hold {ENERGY:.0%} of the energy of attention over {length} tokens, per token",
        [float(needed(one).mean()) / length for one in of], "most", SHARE,
    )  # fmt: skip
    means = [[float(needed(one).mean()) for one in trained[n]] for n in lengths]
    told = {
        **{f"how many, of {n} tokens": _range(found) for n, found in zip(lengths, means, strict=True)},
        "their exponent in the length": f"{slope(lengths, [mean(found) for found in means]):.2f}",
        f"how many, of {length} tokens, the head that needs most": _range([float(needed(one).max()) for one in of]),
        "before training": _range([float(needed(one).mean()) for one in fresh]),
        f"of the sum of singular values, and not of squares, in the first {SHARE * length:g}": _range(
            [float(held(one, 1)[:, int(SHARE * length) - 1].mean()) for one in of]
        ),
        f"bits per hidden byte after {steps} steps": _range(bits) if steps else "",
    }
    drawn: dict[str, Draw] = {
        f"energy in the first k of {length} singular values": partial(_draw, torch.cat(fresh), torch.cat(of)),
        f"how many hold {ENERGY:.0%}": partial(_draw_growth, lengths, means),
    }
    return Claim(SAYS, SOURCE, (measure,), told, drawn)


def rows_of(length: int) -> Tensor:
    """Two rows of text that is held back."""
    tokens = read_spec(TEXT).valid  # type: ignore[attr-defined]
    return torch.as_tensor(tokens[: 2 * length]).long().view(2, length)


def _range(values: Sequence[float]) -> str:
    return f"{mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def _draw(fresh: Tensor, trained: Tensor, axes: Any) -> None:
    at = range(1, trained.shape[-1] + 1)
    for n, one in enumerate(held(trained).tolist()):
        label = "a head" if n == 0 else None
        axes.plot(at, one, color="tab:blue", linewidth=0.5, alpha=0.3, label=label)
    axes.plot(at, held(trained).mean(0).tolist(), color="tab:blue", label="mean of heads")
    axes.plot(at, held(fresh).mean(0).tolist(), "--", color="tab:gray", label="before training")
    axes.axhline(ENERGY, color="black", linewidth=0.5)
    axes.axvline(SHARE * trained.shape[-1], color="black", linewidth=0.5, linestyle=":")
    axes.set(xscale="log", xlabel="k", ylabel="of the energy", ylim=(0, 1.02))
    axes.legend(loc="lower right", fontsize=8)


def _draw_growth(lengths: Sequence[int], means: Sequence[Sequence[float]], axes: Any) -> None:
    for one in zip(*means, strict=True):
        axes.plot(lengths, one, "o-", color="tab:blue")
    axes.plot(lengths, [SHARE * n for n in lengths], ":", color="black", label=f"{SHARE:g} of the tokens")
    axes.set(xlabel="tokens", ylabel="singular values, mean of heads", ylim=(0, None))
    axes.set_xticks(lengths)
    axes.legend()
