"""Tree: tokens read spans, fine ones near and coarse ones far; spans read their tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.example import Example
from kinformer.core.pattern import Index, Pattern
from kinformer.core.span_tree import HIGHEST, Node, end_of_spans_before, first_span_after, node


@dataclass(frozen=True)
class Tree(Pattern):
    """The graph of BP-Transformer over the nodes of a binary tree, whose positions are in post-order.

    `core/span_tree.py` numbers the nodes. A token reads itself and, on either side and level by level from tokens up,
    the k nearest spans behind those that it read on the level below: all of a row, about 2 k log2(length / k) spans.
    Where the level below ended in the middle
    of a span, the first of the k is the other half of it. A span reads all of its tokens. `Causal() & Tree(k)` is the
    causal form: spans that end before the token, and themselves hold nothing later. `SpanNodes` puts spans into a row.

    k: spans of a level on either side.

    As the authors' code builds it for lengths that are powers of two; a row of any other length is one of those of
    which the rest is missing. Source: Ye et al., 2019, arXiv:1911.04070, section 3.1.
    """

    k: int

    def __post_init__(self) -> None:
        check_at_least("Tree.k", self.k, 1)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        query, key = node(torch.as_tensor(q)), node(torch.as_tensor(k))
        token, level, index = query.number, key.level, key.number
        later = (first_span_after(token, self.k, level) <= index) & (
            index < 2 * first_span_after(token, self.k, level + 1)
        )
        earlier = (2 * end_of_spans_before(token, self.k, level + 1) <= index) & (
            index < end_of_spans_before(token, self.k, level)
        )
        itself = (level == 0) & (index == token)
        inside = (level == 0) & (index >> query.level == query.number)
        return torch.where(query.level == 0, later | earlier | itself, inside)

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        ends = [torch.as_tensor(end) for end in (q_lo - 1, q_hi, k_lo - 1, k_hi)]
        q_from, q_to, k_from, k_to = (_node_at(end) for end in ends)
        first, last = q_from.end, q_to.end - 1  # tokens that ask
        any_pair = torch.zeros_like(first + last + k_to.end + k_from.end, dtype=torch.bool)
        for m in range(1 + int(max(first.max(), k_to.end.max(), q_to.end.max())).bit_length()):
            lo, hi = _count_spans(k_from, m), _count_spans(k_to, m)  # spans of this level that are told
            later = _overlaps(first_span_after(first, self.k, m), 2 * first_span_after(last, self.k, m + 1), lo, hi)
            earlier = _overlaps(
                2 * end_of_spans_before(first, self.k, m + 1), end_of_spans_before(last, self.k, m), lo, hi
            )
            read = (later | earlier) if m else (later | earlier | _overlaps(first, last + 1, lo, hi))
            any_pair = any_pair | (read & (first <= last))
            if m:  # spans that ask read tokens
                any_pair = any_pair | _overlaps(
                    _count_spans(q_from, m) << m, _count_spans(q_to, m) << m, k_from.end, k_to.end
                )
        # of more than a pair it is never sure: three nodes in a row hold a span, which no span reads
        return any_pair, any_pair & (ends[1] - ends[0] == 1) & (ends[3] - ends[2] == 1)


def _node_at(position: Tensor) -> Node:
    """The node at a position; before the first one a span that ends at 0."""
    nodes, is_before = node(position.clamp_min(0)), position < 0
    return Node(torch.where(is_before, HIGHEST, nodes.level), torch.where(is_before, -1, nodes.number))


def _count_spans(last: Node, level: int) -> Tensor:
    """How many spans of a level there are up to a node: those that end before its end, and with it if they stand."""
    return (last.end >> level) - ((last.end % (1 << level) == 0) & (level > last.level)).long()


def _overlaps(lo: Tensor, hi: Tensor, lo2: Tensor, hi2: Tensor) -> Tensor:
    return torch.maximum(lo, lo2) < torch.minimum(hi, hi2)


BOUND = {"sharp": "of a block of several pairs its cover() never says that every one is read"}
EXAMPLES = (Example(lambda: Tree(1), BOUND), Example(lambda: Tree(3), BOUND))
