"""SPAN: the price of looking far, for attention whose span is learned."""

from kinformer.core.loss import Penalty


def _moves(parameter: str) -> bool:
    path = parameter.split(".")
    return path[-1] == "span" or "side" in path


SPAN = Penalty("span", _moves)
"""The mean span over heads, in positions, summed over layers: what `AdaptiveSpan` and `DynamicSpan` report.

Weigh it in a model: `LM(..., penalties={"span": 2e-6})`; the authors' scripts have 5e-7 to 2e-6. It moves the learned
spans, and where spans are dynamic the layer's projection of them; in a stack of those, through their inputs, also what
lies beneath.

Source: Sukhbaatar et al., 2019, arXiv:1905.07799, section 2.2.
"""

EXAMPLES = (SPAN,)
