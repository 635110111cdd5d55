"""A memory that starts small and then grows is better than a large memory from the start."""

from collections.abc import Sequence
from statistics import mean

from kinformer.lab.claims.support.repeated_definitions import (
    CONTEXT,
    FAR,
    GUESS,
    LENGTH,
    MEMORIES,
    ROWS,
    build,
    far_bits,
    train_on_documents,
)
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import by_category

STEPS, MINUTES = 200, 1
SAYS = "a small memory first and then a large one needs fewer bits for distant repeats than a large one from the start"
SOURCE = "Wu et al., 2022, arXiv:2203.08913, section 4.2: larger memories are fine-tuned from smaller ones"
PAPER_SIZES = "memories of 8,192 tokens for 500,000 steps, then 65,536 tokens for 20,000 steps; 12 layers of width 1024"


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Compare memories that grow during the training with memories of one size.

    Three Memorizing Transformers start from equal weights and train on equal documents in two halves. The first has a
    memory of 16 tokens in the first half and of 64 in the second. The second always has 64 tokens. The third always
    has 16 tokens. All are tested with 64 tokens. Measured here: bits of the values of repeats at least four times the
    context after their definition, in new documents. The claim holds if the second needs more bits than the first. The
    third is reported for comparison.

    The paper trains with 8,192 tokens for 500,000 steps and then with 65,536 tokens for 20,000 steps. It reports that
    a memory of 65,536 tokens from the start is less stable. Its memory holds keys of earlier weights, which become
    stale. Here a document fits into one step, so no key is stale, and a large memory has no such disadvantage. A small
    one holds fewer of the definitions that the model could learn from.

    seeds: seeds of the weights and of the trainings.
    steps: number of training steps of both halves together.
    """
    _, small, large = MEMORIES
    arms = {"small, then large": (small, large), "always large": (large, large), "always small": (small, small)}
    bits: dict[str, list[float]] = {name: [] for name in arms}
    half = max(steps // 2, 1)
    for seed in seeds:
        begun = {size: train_on_documents(build(seed, size), seed, half) for size in (small, large)}
        for name, (first, second) in arms.items():
            model = train_on_documents(build(seed, second, begun[first]), seed + 1000, half)
            bits[name].append(far_bits(build(seed, large, model)))
    grown, always_large, _ = bits.values()
    measure = Measure(
        "bits of distant repeats, always large minus small and then large",
        [scratch - stages for stages, scratch in zip(grown, always_large, strict=True)],
        "least",
        0,
    )
    facts = {f"bits of distant repeats, {name}": f"{mean(values):.3f}" for name, values in bits.items()}
    facts["bits of a guess"] = f"{GUESS:g}"
    facts["steps of training"] = f"{2 * half} of {ROWS} documents of {LENGTH} tokens, a context of {CONTEXT}"
    facts["sizes of the memory"] = f"{small} and {large} tokens; repeats are at least {FAR} tokens after a definition"
    facts["the paper's scale"] = f"{PAPER_SIZES}; its memory holds keys of earlier weights, and here none does"
    plot = by_category("memories of two sizes", "bits of distant repeats", bits, bars=True)
    return Claim(SAYS, SOURCE, (measure,), facts, (plot,))
