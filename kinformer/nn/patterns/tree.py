"""Tree: tokens read short spans nearby and long spans far away; spans read their tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.example import Example
from kinformer.core.pattern import Index, Pattern
from kinformer.core.span_tree import HIGHEST, Node, end_of_spans_before, first_span_after, node


@dataclass(frozen=True)
class Tree(Pattern):
    """BP-Transformer's graph over a binary tree: tokens read spans, and spans read their tokens.

    A span is a run of 2^m tokens at level m of the tree; tokens have level 0. Positions number tokens and spans in
    post-order: each span after its tokens (`core/span_tree.py`). A token reads itself and, on either side, k spans of
    each level, from level 0 up. Seen from the token, each level begins at the end of the level below. If the level
    below ends in the middle of a span, the first of the k spans is the other half of that span. A token thus reads the
    whole row by about 2 k log2(length / k) spans. A span reads all of its tokens.

    Choose it for long rows if near tokens need fine detail. `Causal() & Tree(k)` is the causal form: a token reads only
    spans that end before it, and a span holds no later token. The wrapper `SpanNodes` adds the spans to a row.

    k: number of spans of each level on either side.

    Source: Ye et al., 2019, arXiv:1911.04070, section 3.1.

    Differences: the graph is the one that the authors' code builds for lengths that are powers of two. A row of any
    other length has the graph of a longer row without the missing nodes.
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
        first, last = q_from.end, q_to.end - 1  # query tokens
        any_pair = torch.zeros_like(first + last + k_to.end + k_from.end, dtype=torch.bool)
        for m in range(1 + int(max(first.max(), k_to.end.max(), q_to.end.max())).bit_length()):
            lo, hi = _count_spans(k_from, m), _count_spans(k_to, m)  # key spans of this level
            later = _overlaps(first_span_after(first, self.k, m), 2 * first_span_after(last, self.k, m + 1), lo, hi)
            earlier = _overlaps(
                2 * end_of_spans_before(first, self.k, m + 1), end_of_spans_before(last, self.k, m), lo, hi
            )
            read = (later | earlier) if m else (later | earlier | _overlaps(first, last + 1, lo, hi))
            any_pair = any_pair | (read & (first <= last))
            if m:  # query spans read their tokens
                any_pair = any_pair | _overlaps(
                    _count_spans(q_from, m) << m, _count_spans(q_to, m) << m, k_from.end, k_to.end
                )
        # only a single pair is certain: three nodes in a row hold a span, and no span reads a span
        return any_pair, any_pair & (ends[1] - ends[0] == 1) & (ends[3] - ends[2] == 1)


def _node_at(position: Tensor) -> Node:
    """Return the node at a position; before the first position, a span that ends at token 0."""
    nodes, is_before = node(position.clamp_min(0)), position < 0
    return Node(torch.where(is_before, HIGHEST, nodes.level), torch.where(is_before, -1, nodes.number))


def _count_spans(last: Node, level: int) -> Tensor:
    """Return the number of spans of a level among the nodes up to and including `last`."""
    return (last.end >> level) - ((last.end % (1 << level) == 0) & (level > last.level)).long()


def _overlaps(lo: Tensor, hi: Tensor, lo2: Tensor, hi2: Tensor) -> Tensor:
    return torch.maximum(lo, lo2) < torch.minimum(hi, hi2)


BOUND = {"sharp": "for a block of several pairs, cover() never reports that every pair is read"}
EXAMPLES = (Example(lambda: Tree(1), BOUND), Example(lambda: Tree(3), BOUND))
