"""parts: a pattern as disjoint pieces, each with a layout in which it is cheap to read.

Reads of the pieces merge into the read of the whole.
"""

from functools import reduce
from typing import NamedTuple

from kinformer.core.layout import Dense, Layout, intersect_layouts
from kinformer.core.pattern import And, Heads, Not, Or, Pattern
from kinformer.core.patterns.on_heads import OnHeads

MOST_TERMS = 16
MOST_PARTS = 4
Term = tuple[Pattern, ...]  # a conjunction of patterns and negated patterns that have no & | inside


class PatternPart(NamedTuple):
    """Pairs to read together: those of `where`, all of which lie in `layout`."""

    layout: Layout
    where: Pattern


def parts(pattern: Pattern, length: int) -> tuple[PatternPart, ...]:
    """Disjoint parts whose union is the pattern, for rows of `length` tokens.

    The pattern is written as a union of conjunctions. A conjunction is read in the layout where its factors meet.
    Part n is term n without the terms before it, evaluated pointwise, so the parts are disjoint by construction.
    Where no sparse layout exists, or there would be more than 16 terms or 4 parts, there is one Dense part, which is
    exact for every pattern. What differs by head is a part for each turn of the heads. Random and Blocks have no layout
    of their own: they are read in a Dense part.
    """
    terms = _drop_empty_terms(_union(pattern))
    layouts = [_intersect_factors(term, length) for term in terms or ()]
    if terms is None or len(terms) > MOST_PARTS or any(isinstance(layout, Dense) for layout in layouts):
        return (PatternPart(Dense().narrow(*pattern.reach()), pattern),)
    disjoint: list[PatternPart] = []
    earlier: Pattern | None = None
    for term, layout in zip(terms, layouts, strict=True):
        where = reduce(And, term)
        disjoint.append(PatternPart(layout, where if earlier is None else where & ~earlier))
        earlier = where if earlier is None else earlier | where
    return tuple(disjoint)


def _drop_empty_terms(terms: list[Term] | None) -> list[Term] | None:
    """Without conjunctions whose window holds nothing, such as what `Causal` leaves of a window ahead."""
    inhabited = [term for term in terms or () if sum(reduce(And, term).reach()) >= 0]
    return inhabited or terms


def _intersect_factors(term: Term, length: int) -> Layout:
    """The layout where the factors of a conjunction meet, cut to the reach that all of them share."""
    layout = reduce(lambda a, b: intersect_layouts(a, b, length), (factor.layout for factor in term))
    return layout.narrow(*reduce(And, term).reach())


def _union(pattern: Pattern, negated: bool = False) -> list[Term] | None:
    """The pattern as a union of conjunctions (De Morgan for ~); None where that takes more than 16."""
    pattern = _spelled_out(pattern)
    if isinstance(pattern, Not):
        return _union(pattern.pattern, not negated)
    if not isinstance(pattern, And | Or):
        return [(~pattern if negated else pattern,)]
    left, right = _union(pattern.left, negated), _union(pattern.right, negated)
    if left is None or right is None:
        return None
    if isinstance(pattern, Or) is not negated:
        terms = left + right
    else:
        terms = [a + b for a in left for b in right]
    return terms if len(terms) <= MOST_TERMS else None


def _spelled_out(pattern: Pattern) -> Pattern:
    """A name for an expression, which may be a name in turn, as that; patterns by head as a union over turns."""
    while (inner := pattern.expression) is not pattern:
        pattern = inner
    if not isinstance(pattern, Heads):
        return pattern
    turns = len(pattern.patterns)
    return reduce(Or, (OnHeads(n, turns) & by_turn for n, by_turn in enumerate(pattern.patterns)))
