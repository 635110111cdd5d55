"""A linear Transformer decodes with a state of fixed size, and its steps equal the parallel form."""

from collections.abc import Callable, Sequence
from typing import Any

from kinformer.lab.claims.support.decoding_steps import flat_measures, measure_steps, step_facts, step_plot
from kinformer.lab.claims.support.verdict import Claim
from kinformer.members.gpt import gpt
from kinformer.members.linear_transformer import linear_transformer

LENGTHS = (16, 64, 256, 1024, 4096)
WIDTH, DEPTH, HEADS, VOCAB = 64, 2, 2, 64
SAYS = "a decoding step of linear attention costs the same after any number of tokens, and equals the parallel form"
SOURCE = "Katharopoulos et al., 2020, arXiv:2006.16236, abstract and section 3.4 (up to 4,000 times as fast, timed)"


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS) -> Claim:
    """Measure the work and the state size of a decoding step after rows of several lengths.

    The work is the count of numbers that operators read and write in a step. A `linear_transformer` and a `gpt` are
    measured, with random weights and rows. The claim holds if work and state size of `linear_transformer` grow with an
    exponent of 0, within 0.01, in the number of earlier tokens. Its logits token by token must also equal the logits of
    the parallel form within 1e-10 in float64. `gpt` is only a comparison.

    seeds: seeds of weights and rows.
    lengths: numbers of tokens before the step.
    """
    room = 2 * lengths[-1]
    makes: dict[str, Callable[[], Any]] = {
        "linear_transformer": lambda: linear_transformer(d=WIDTH, depth=DEPTH, heads=HEADS, vocab=VOCAB, length=room),
        "gpt": lambda: gpt(d=WIDTH, depth=DEPTH, heads=HEADS, vocab=VOCAB, length=room),
    }
    costs = measure_steps(makes, seeds, lengths, VOCAB)
    return Claim(SAYS, SOURCE, flat_measures(costs, "linear_transformer"), step_facts(costs), (step_plot(costs),))
