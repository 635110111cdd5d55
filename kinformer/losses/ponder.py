"""PONDER: the price of thinking longer, for layers that choose how many steps each token takes."""

from kinformer.core.loss import Penalty


def _moves(parameter: str) -> bool:
    return parameter.partition(".")[0] != "head"


PONDER = Penalty("ponder", _moves)
"""Steps plus remainder, N + R, averaged over tokens: what `ACT` and `RecurrentACT` report.

Weigh it in a model: `LM(..., penalties={"ponder": 0.01})`; Graves tried 1e-4 to 1e-1. N is a count and has no gradient:
R moves the halting unit, and through its inputs the steps and what lies beneath, everything but a model's head.

Source: Graves, 2016, arXiv:1603.08983, section 2.2.
"""

EXAMPLES = (PONDER,)
