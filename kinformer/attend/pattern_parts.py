"""Decomposition of a pattern into disjoint parts that are each cheap to compute.

The outputs of the parts merge into the output of the whole pattern.
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
    """Part of a pattern whose pairs are computed together, in the way that suits its layout.

    layout: set of pairs that is cheap to compute and contains all pairs of the part.
    where: pattern of the pairs of the part.
    """

    layout: Layout
    where: Pattern


def parts(pattern: Pattern, length: int) -> tuple[PatternPart, ...]:
    """Split a pattern into disjoint parts, each with a layout (a set of pairs that is cheap to compute).

    The pattern is rewritten as a union of conjunctions, its terms. The layout of a term is the intersection of the
    layouts of its factors, the patterns joined by & in it. Part n is term n without the earlier terms, so the parts are
    disjoint by construction. The result is a single part with the layout `Dense` if a term has no sparse layout, or if
    there are more than 16 terms or 4 parts. Such a part is possible for every pattern, because it masks the excluded
    pairs. `Heads`, a pattern that differs by head, has a part for each of its patterns. Random and Blocks have no
    sparse layout, so they are read in a Dense part.

    pattern: the pattern to decompose.
    length: number of tokens of a row.
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
    """Drop terms with an empty window, such as `Causal` and a window ahead; keep all if all are empty."""
    inhabited = [term for term in terms or () if sum(reduce(And, term).reach()) >= 0]
    return inhabited or terms


def _intersect_factors(term: Term, length: int) -> Layout:
    """Return the intersection of the layouts of a term's factors, narrowed to the reach of the term."""
    layout = reduce(lambda a, b: intersect_layouts(a, b, length), (factor.layout for factor in term))
    return layout.narrow(*reduce(And, term).reach())


def _union(pattern: Pattern, negated: bool = False) -> list[Term] | None:
    """Return the pattern as a union of conjunctions (De Morgan for ~), or None if there are more than 16."""
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
    """Replace a named pattern by its expression, and patterns by head by a union over the heads."""
    while (inner := pattern.expression) is not pattern:
        pattern = inner
    if not isinstance(pattern, Heads):
        return pattern
    turns = len(pattern.patterns)
    return reduce(Or, (OnHeads(n, turns) & by_turn for n, by_turn in enumerate(pattern.patterns)))
