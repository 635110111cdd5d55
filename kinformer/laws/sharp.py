"""Law sharp: what a pattern says of itself beyond its predicate is no looser than it need be.

Law `pattern` says that it is true; a bound that is too wide costs time and memory alone, so nothing else would see it.
"""

from collections.abc import Callable, Iterator

from kinformer.core.pattern import And, Heads, Not, Or, Pattern, Spelled
from kinformer.laws.pattern import matrix
from kinformer.laws.support.finding import Broken, Unjudged, found

SAYS = "what it says of its period is as sharp as can be"
OVER = "pattern"


def judge(pattern: Pattern) -> Iterator[str]:
    """Compare what a pattern says of itself, where it says more than the default, with the best that is true."""
    spelled = pattern
    while isinstance(spelled, Spelled):
        spelled = spelled.expression
    if isinstance(spelled, And | Or | Not | Heads):
        raise Unjudged("what is composed of patterns knows bounds")
    for name, law in LAWS.items():
        if getattr(type(pattern), name) is not getattr(Pattern, name):
            yield from found(law, pattern)


def _period(pattern: Pattern) -> None:
    if (n := pattern.period()) is None:
        return
    m = matrix(pattern, 4 * n)
    for less in range(1, n):
        if bool((m[..., less:, less:] == m[..., :-less, :-less]).all()):
            raise Broken(f"{pattern}: it is the same {less} positions later, but its period() is {n}")


LAWS: dict[str, Callable[[Pattern], None]] = {"period": _period}
