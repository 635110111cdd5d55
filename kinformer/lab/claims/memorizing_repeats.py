"""A larger memory lowers the loss on distant repeats, and fine-tuning adds memory to a trained model."""

from collections.abc import Sequence
from statistics import mean

from kinformer.lab.claims.support.repeated_definitions import (
    CONTEXT,
    FAR,
    GUESS,
    LENGTH,
    MEMORIES,
    ROWS,
    bits_by_distance,
    build,
    far_bits,
    train_on_documents,
)
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine, by_category, seed_mean

STEPS, FINE_TUNING, MINUTES = 150, 200, 1
MOST = 0.5  # least share of the gain that counts as most of it
SAYS = "the loss on distant repeats falls with the size of the memory, and fine-tuning a trained model gains most of it"
SOURCE = "Wu et al., 2022, arXiv:2203.08913, sections 4.2 and 4.5"
TUNED = "fine-tuned"
PAPER_SIZES = (
    "12 layers of width 1024, contexts of 512 to 2,048 tokens, memories up to 262,144 tokens, 500,000 steps; "
    "fine-tuning of 20,000 steps gained about 85% of what a memory gains"
)


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Train Memorizing Transformers with three sizes of memory, and add memory to a trained one.

    Documents define names and repeat them up to 34 tokens later. Local attention reads 2 earlier tokens, the context.
    The memory has 0, 16 or 64 tokens, which are 0, 8 and 32 times the context. Measured here: bits of the values of
    repeats at least four times the context after their definition, in new documents. The claim holds if three
    conditions are met. A memory of 16 needs fewer bits than none. A memory of 64 needs fewer bits than 16. A model that
    is trained without memory, and then for 200 steps with a memory of 64, gains at least half as many bits as a model
    that always has this memory.

    The paper has natural text and code, contexts of 512 to 2,048 tokens, and a memory in the 9th of 12 layers. Here the
    memory is in the lower of two layers.
    Without memory a model here learns nothing about distant repeats, so fine-tuning has to begin anew. The paper's
    model without memory knows its language.

    seeds: seeds of the weights and of the trainings.
    steps: number of training steps before fine-tuning.
    """
    none, small, large = MEMORIES
    bits: dict[str, list[float]] = {name: [] for name in (*(f"memory {size}" for size in MEMORIES), TUNED)}
    distances: dict[str, list[list[float]]] = {name: [] for name in bits}
    for seed in seeds:
        models = {f"memory {size}": train_on_documents(build(seed, size), seed, steps) for size in MEMORIES}
        plain = models[f"memory {none}"]
        models[TUNED] = train_on_documents(build(seed, large, plain), seed + 1000, FINE_TUNING)
        for name, model in models.items():
            bits[name].append(far_bits(model))
            distances[name].append(bits_by_distance(model)[1:].tolist())
    without, little, much, tuned = bits.values()
    gained = [(a - d) / (a - c) for a, c, d in zip(without, much, tuned, strict=True)]
    measures = (
        Measure(
            f"bits that a memory of {small} saves, compared with none",
            [a - b for a, b in zip(without, little, strict=True)],
            "least",
            0,
        ),
        Measure(
            f"bits that a memory of {large} saves, compared with {small}",
            [b - c for b, c in zip(little, much, strict=True)],
            "least",
            0,
        ),
        Measure(f"share of the gain after {FINE_TUNING} steps of fine-tuning", gained, "least", MOST, no_effect=0),
    )
    facts = {f"bits of distant repeats, {name}": f"{mean(values):.3f}" for name, values in bits.items()}
    facts["bits of a guess"] = f"{GUESS:g}"
    facts["steps of training"] = f"{steps} of {ROWS} documents of {LENGTH} tokens, a context of {CONTEXT}"
    facts["the paper's scale"] = PAPER_SIZES
    lines = [
        PlotLine(range(1, LENGTH), seed_mean(curves), name, "--" if name == TUNED else "-")
        for name, curves in distances.items()
    ]
    by_distance = Plot(
        "repeats by distance",
        "tokens since the definition",
        "bits per value",
        lines,
        levels=((GUESS, "guessing"),),
        marks=(FAR,),
    )
    sizes = by_category("repeats at 4 times the context or more", "bits per value", bits, bars=True)
    return Claim(SAYS, SOURCE, measures, facts, (sizes, by_distance))
