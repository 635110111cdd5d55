"""COMMITMENT: the price of queries and keys that are far from the centroid of their cluster."""

from kinformer.core.loss import Penalty


def _moves(parameter: str) -> bool:
    path = parameter.split(".")
    return "projection" in path and path[-2] in ("q", "k", "qk")


COMMITMENT = Penalty("commitment", _moves)
"""The mean squared distance, per number, of a direction to its centroid, summed over layers: what `Routing` reports.

Weigh it in a model: `LM(..., penalties={"commitment": 1e-2})`. It moves the projections of queries and keys, in a
stack also what lies beneath; centroids are no parameters and follow by their moving average.

Source: the routing-transformer package (P. Wang, 2020); the idea: van den Oord et al., 2017, arXiv:1711.00937.
"""

EXAMPLES = (COMMITMENT,)
