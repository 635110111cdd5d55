"""Sparse Transformer: p sets of keys reach every earlier token in p steps, at a cost of L^1.5 where p is 2."""

from collections.abc import Sequence
from functools import partial
from statistics import mean, stdev
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from kinformer.core.pattern import Pattern
from kinformer.lab.claims.support.growth import draw_growth
from kinformer.lab.claims.support.trained import patterns
from kinformer.lab.claims.support.verdict import Claim, Draw, Measure, slope
from kinformer.lab.train.fit import fit
from kinformer.members.sparse_transformer import sparse_transformer
from kinformer.members.support.factors import Sets, Use

LENGTH, LENGTHS = 256, (256, 1024, 4096)
STEPS, TEXT = 60, "text=stdlib"
SAYS = "p sets of keys reach every earlier token in p steps, and two of them cost L^1.5"
SOURCE = "Child et al., 2019, arXiv:1904.10509, sections 4.2 and 4.3"
FORMS: tuple[Sets, ...] = ("strided", "fixed")


def factors(attention: Sets, length: int, p: int, use: Use = "interleaved") -> list[Pattern]:
    """The patterns of a Sparse Transformer with p sets, whose stride is the p-th root of the length."""
    stride, tiny = round(length ** (1 / p)), {"d": 2, "depth": p, "heads": 1, "vocab": 2, "length": length}
    fixed = {"summary": 1} if attention == "fixed" else {}
    model = sparse_transformer(attention=attention, use=use, stride=stride, factors=p, **fixed, **tiny)  # type: ignore[arg-type]
    return patterns(model)


def reached(patterns: Sequence[Pattern], length: int) -> Bool[Tensor, "T T"]:
    """Which keys a query knows of after layers with these sets, one above the other; it always knows itself."""
    known = torch.eye(length)
    for pattern in patterns:
        step = pattern.matrix(length).float() + torch.eye(length)
        known = (step @ known > 0).float()
    return known > 0


def share(patterns: Sequence[Pattern], length: int) -> float:
    """Of all pairs of a query and an earlier token or itself the part that is reached; ValueError for a later one."""
    found = reached(patterns, length)
    if bool(found.triu(1).any()):
        raise ValueError(f"{patterns} read ahead")
    return float(found.sum()) / (length * (length + 1) / 2)


def pairs(attention: Sets, length: int) -> int:
    """How many pairs both of two sets read together."""
    return int(factors(attention, length, 2, "merged")[0].matrix(length).sum())


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS, steps: int = STEPS) -> Claim:
    """Reach and cost, in which there is no chance; and three ways to use two sets, trained a little, by seeds."""
    length = lengths[0]
    reach = [
        Measure(
            f"share of earlier tokens reached in {p} steps, {form}",
            (share(factors(form, length, p), length),),
            "near",
            1,
        )
        for form in FORMS
        for p in (2, 3)
    ]
    count = {form: [pairs(form, one) for one in lengths] for form in FORMS}
    cost = [
        Measure(
            f"exponent of the pairs read in the length, {form}", (slope(lengths, count[form]),), "near", 1.5, within=0.1
        )
        for form in FORMS
    ]
    told = {f"pairs read, {form}": ", ".join(f"{n:,}" for n in count[form]) for form in FORMS}
    bits = {use: [_trained(use, seed, steps) for seed in seeds] for use in ("interleaved", "merged", "heads")}
    for use, found in bits.items():
        error = stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0
        told[f"bits per byte after {steps} steps, {use}"] = f"{mean(found):.3f} ± {2 * error:.3f}" * bool(steps)
    drawn: dict[str, Draw] = {
        "after two layers, strided": partial(_draw_reach, factors("strided", 64, 2)),
        "pairs read": partial(_draw_cost, lengths, count),
        f"three ways to use two sets, {steps} steps": partial(_draw_uses, bits),
    }
    return Claim(SAYS, SOURCE, (*reach, *cost), told, drawn)


def _trained(use: str, seed: int, steps: int) -> float:
    """Bits per byte of a small model on valid."""
    if not steps:
        return 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = sparse_transformer(use=use, stride=16, summary=4, d=64, depth=4, heads=4, length=256)  # type: ignore[arg-type]
        return fit(model, TEXT, steps=steps, batch=4, length=256, lr=3e-3, seed=seed).points[-1].valid


def _draw_reach(patterns: Sequence[Pattern], axes: Any) -> None:
    size = 64
    first = patterns[0].matrix(size).float() + torch.eye(size)
    both = [first > 0, reached(patterns, size)]
    axes.imshow((2.0 * both[0] + both[1]).tolist(), cmap="Blues", vmin=0, vmax=3)
    axes.set(xlabel="token (dark: after one layer)", ylabel="query")


def _draw_cost(lengths: Sequence[int], count: dict[Sets, list[int]], axes: Any) -> None:
    axes.loglog(lengths, [n * (n + 1) / 2 for n in lengths], "--", color="tab:gray", label="all earlier tokens")
    draw_growth({form: found for form, found in count.items()}, lengths, axes)
    axes.set(xlabel="tokens in a row", ylabel="pairs")


def _draw_uses(bits: dict[str, list[float]], axes: Any) -> None:
    for n, (_, found) in enumerate(bits.items()):
        axes.plot([n] * len(found), found, "o", color="tab:blue")
    axes.set(ylabel="bits per byte of valid", xticks=range(len(bits)), xlim=(-0.5, len(bits) - 0.5))
    axes.set_xticklabels(bits)
