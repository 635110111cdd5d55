"""An average attention decoder takes equal work per step, however many tokens it has read."""

from collections.abc import Sequence

from kinformer.lab.claims.support.decoding_steps import flat_measures, measure_steps, step_facts, step_plot
from kinformer.lab.claims.support.verdict import Claim
from kinformer.members.average_attention import average_attention
from kinformer.members.gpt import gpt

LENGTHS = (16, 64, 256, 1024)
WIDTH, DEPTH, VOCAB = 32, 2, 64
SAYS = "a decoding step costs the same after a thousand tokens as after ten, and steps give the results of a whole row"
SOURCE = "Zhang et al., 2018, arXiv:1805.00631, abstract and section 3.2 (more than four times as fast, timed)"


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS) -> Claim:
    """Measure the work and the state size of a decoding step after rows of several lengths.

    The work is the count of numbers that operators read and write in a step. The decoder `average_attention` and a
    `gpt` are measured, with random weights and rows. The claim holds if work and state size of `average_attention` grow
    with an exponent of 0, within 0.01, in the number of earlier tokens. Its logits token by token must also equal the
    logits of the whole row within 1e-10. `gpt` is only a comparison.

    seeds: seeds of weights and rows.
    lengths: numbers of tokens before the step.
    """
    makes = {
        "average_attention": lambda: average_attention(d=WIDTH, depth=DEPTH, vocab=VOCAB),
        "gpt": lambda: gpt(d=WIDTH, depth=DEPTH, vocab=VOCAB, length=2 * lengths[-1]),
    }
    costs = measure_steps(makes, seeds, lengths, VOCAB)
    return Claim(SAYS, SOURCE, flat_measures(costs, "average_attention"), step_facts(costs), (step_plot(costs),))
