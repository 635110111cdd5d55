"""Multi-query attention divides the cache by the number of heads, which makes a decoding step cheaper."""

from collections.abc import Sequence
from typing import Any

from kinformer.lab.claims.support.decoding_steps import measure_steps, step_facts, step_plot, stepwise_measure
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.members.gpt import gpt
from kinformer.members.multi_query import multi_query

LENGTHS = (64, 256, 1024)
WIDTH, DEPTH, HEADS, VOCAB, BATCH = 64, 2, 8, 64, 32
SLACK = 0.02  # the cache may hold more than keys and values, such as positions
SAYS = "one head of keys and values divides the cache by the number of heads, and a decoding step does less work"
SOURCE = "Shazeer, 2019, arXiv:1911.02150, sections 3.1 and 4.3 (46 against 3.8 microseconds per decoded token, timed)"


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS, batch: int = BATCH) -> Claim:
    """Measure the cache and the work of a decoding step with one head of keys or one per head.

    The work is the count of numbers that operators read and write in a step, after rows of several lengths and with 32
    rows at once. `multi_query` and `gpt` have random weights, equal widths and 8 heads. Three conditions decide at the
    longest row. The bytes of the cache, divided by gpt's, are 1/8 within 0.02. The work of a step is at most half of
    gpt's. Logits token by token equal the logits of the whole row within 1e-10 in float64.

    seeds: seeds of weights and rows.
    lengths: numbers of tokens before the step.
    batch: rows that are decoded at once.
    """
    sizes: dict[str, Any] = {"d": WIDTH, "depth": DEPTH, "heads": HEADS, "vocab": VOCAB, "length": 2 * lengths[-1]}
    makes = {"multi_query": lambda: multi_query(**sizes), "gpt": lambda: gpt(**sizes)}
    costs = measure_steps(makes, seeds, lengths, VOCAB, batch)
    longest = f"after {lengths[-1]} tokens, multi_query divided by gpt"
    cache, work = (
        [ours[-1] / theirs[-1] for ours, theirs in zip(by_name["multi_query"], by_name["gpt"], strict=True)]
        for by_name in (costs.state_bytes, costs.work)
    )
    measures = (
        Measure(f"bytes of the cache {longest}", cache, "near", 1 / HEADS, within=SLACK),
        Measure(f"work of a decoding step {longest}", work, "most", 0.5, no_effect=1),
        stepwise_measure(costs, "multi_query"),
    )
    return Claim(SAYS, SOURCE, measures, step_facts(costs), (step_plot(costs),))
