"""The p key sets of a Sparse Transformer reach all earlier tokens in p steps; two cost L^1.5."""

from collections.abc import Sequence
from statistics import mean, stdev

import torch
from jaxtyping import Bool
from torch import Tensor

from kinformer.core.pattern import Pattern
from kinformer.lab.claims.support.claim_models import patterns, seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine, by_category, growth_lines, slope
from kinformer.lab.train.fit import fit
from kinformer.members.sparse_transformer import sparse_transformer
from kinformer.members.support.sparse_transformer_factors import Sets, Use

LENGTH, LENGTHS = 256, (256, 1024, 4096)
STEPS, TEXT = 60, "text=stdlib"
MINUTES = 1.5  # of a default run with three seeds
SAYS = "p sets of keys reach every earlier token in p steps, and two of them cost L^1.5"
SOURCE = "Child et al., 2019, arXiv:1904.10509, sections 4.2 and 4.3"
FORMS: tuple[Sets, ...] = ("strided", "fixed")


def factors(attention: Sets, length: int, p: int, use: Use = "interleaved") -> list[Pattern]:
    """Return the attention patterns of the layers of a Sparse Transformer with p sets of keys.

    The stride is length^(1/p).

    attention: kind of key sets: "strided" or "fixed".
    length: tokens per row.
    p: number of key sets.
    use: "interleaved" for one set per layer in turn, "merged" for all sets in each layer, "heads" for one set per head.
    """
    stride, tiny = round(length ** (1 / p)), {"d": 2, "depth": p, "heads": 1, "vocab": 2, "length": length}
    fixed = {"summary": 1} if attention == "fixed" else {}
    model = sparse_transformer(attention=attention, use=use, stride=stride, factors=p, **fixed, **tiny)  # type: ignore[arg-type]
    return patterns(model)


def reachable_keys(patterns: Sequence[Pattern], length: int) -> Bool[Tensor, "T T"]:
    """Return the keys that each query depends on, directly or through other tokens, after some layers.

    A query always depends on its own token.

    patterns: attention pattern of each layer, the lowest layer first.
    length: tokens per row.
    """
    reach = torch.eye(length)
    for pattern in patterns:
        step = pattern.matrix(length).float() + torch.eye(length)
        reach = (step @ reach > 0).float()
    return reach > 0


def share(patterns: Sequence[Pattern], length: int) -> float:
    """Return the share of earlier tokens that queries depend on after some layers, over all queries.

    A query may depend on them directly or through other tokens. Its own token counts as an earlier one.

    patterns: attention pattern of each layer, the lowest layer first.
    length: tokens per row.

    Errors: ValueError if a query reaches a later token.
    """
    reach = reachable_keys(patterns, length)
    if bool(reach.triu(1).any()):
        raise ValueError(f"the patterns {patterns} read ahead; pass causal patterns")
    return float(reach.sum()) / (length * (length + 1) / 2)


def pairs(attention: Sets, length: int) -> int:
    """Return the number of (query, key) pairs in the two key sets of a Sparse Transformer together.

    attention: kind of key sets: "strided" or "fixed".
    length: tokens per row.
    """
    return int(factors(attention, length, 2, "merged")[0].matrix(length).sum())


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS, steps: int = STEPS) -> Claim:
    """Measure the reach of a Sparse Transformer's key sets and the number of their pairs.

    A key set is the set of keys that a query attends to in one step. Reach and number do not depend on chance. The
    claim holds if two conditions are met, for strided and for fixed sets. With 2 sets a query reaches all earlier
    tokens in 2 steps, and with 3 sets in 3 steps. The number of (query, key) pairs of two sets grows with an exponent
    of 1.5 in the length, within 0.1. Models with three ways to use two sets are trained for comparison.

    seeds: seeds of the trainings.
    lengths: tokens per row; reach is measured at the first length.
    steps: number of training steps; 0 skips the trainings.
    """
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
    count: dict[str, list[int]] = {form: [pairs(form, length) for length in lengths] for form in FORMS}
    cost = [
        Measure(
            f"growth exponent of the pairs read, in the length, {form}",
            (slope(lengths, count[form]),),
            "near",
            1.5,
            within=0.1,
        )
        for form in FORMS
    ]
    facts = {f"pairs read, {form}": ", ".join(f"{n:,}" for n in count[form]) for form in FORMS}
    bits = {use: [_validation_bits(use, seed, steps) for seed in seeds] for use in ("interleaved", "merged", "heads")}
    for use, values in bits.items():
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        facts[f"bits per byte after {steps} steps, {use}"] = f"{mean(values):.3f} ± {2 * error:.3f}" * bool(steps)
    strided = factors("strided", 64, 2)
    reading = Plot(
        "reach after two layers, strided",
        "key (dark: after one layer)",
        "query",
        image=(2.0 * reachable_keys(strided[:1], 64) + reachable_keys(strided, 64)).tolist(),
        darkest=3,
    )
    everything = [n * (n + 1) / 2 for n in lengths]
    lines = [PlotLine(lengths, everything, "all earlier tokens", "--", "tab:gray"), *growth_lines(count, lengths)]
    growth = Plot("pairs read", "tokens per row", "pairs", lines, log="xy", ticks=lengths)
    uses = by_category(f"three ways to use two sets, {steps} steps", "validation bits per byte", bits)
    return Claim(SAYS, SOURCE, (*reach, *cost), facts, (reading, growth, uses))


def _validation_bits(use: str, seed: int, steps: int) -> float:
    """Train a small model and return its validation bits per byte; 0 without steps."""
    if not steps:
        return 0.0
    with seeded(seed):
        model = sparse_transformer(use=use, stride=16, summary=4, d=64, depth=4, heads=4, length=256)  # type: ignore[arg-type]
        return fit(model, TEXT, steps=steps, batch=4, length=256, lr=3e-3, seed=seed).points[-1].valid
