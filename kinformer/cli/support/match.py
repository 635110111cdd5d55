"""Members brought to about the same number of parameters, by `d` or by `depth`."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from kinformer.cli.errors import UserError
from kinformer.cli.support.wanted import Wanted, with_keywords
from kinformer.core.keywords import signature

NEAR = 0.1  # of the parameters of the first that another may have more or less
BY = ("d", "depth")
MOST = 4096  # of either


def matched(members: Sequence[Wanted]) -> tuple[list[Wanted], list[str]]:
    """The members with about as many parameters as the first, which stays as it is; and what was changed, in words.

    What was written stays. Of the others `d` is changed, in steps that its heads divide, to the nearest count; `depth`
    where `d` was written or has none that is near. UserError where neither comes within a tenth.
    """
    first, *others = members
    wanted = parameters(first)
    assert wanted is not None
    found, told = [first], []
    for one in others:
        new, words = _near(one, wanted)
        found.append(new)
        told.append(words)
    return found, told


def parameters(one: Wanted) -> int | None:
    """How many parameters a member has, built without its numbers where that can be; None where it refuses."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in one.function(**one.keywords).parameters())
    except (ValueError, TypeError, LookupError):
        return None
    except Exception:  # it looks at numbers while it is built
        return sum(parameter.numel() for parameter in one.build(0).parameters())


def _near(one: Wanted, wanted: int) -> tuple[Wanted, str]:
    now = parameters(one)
    if now is not None and abs(now - wanted) <= 0.01 * wanted:
        return one, f"{one.text} has {now:,} parameters as it is"
    known = signature(one.function).parameters
    free = [name for name in BY if name in known and name not in one.keywords]
    if not free:
        there = " and ".join(name for name in BY if name in known)
        why = f"has its {there} written" if there else "has neither d nor depth"
        raise UserError(f"--match parameters changes d or depth, and {one.text} {why}; leave one of them open")
    tried = [_best(one, name, wanted) for name in free]
    near = [pair for pair in tried if pair is not None and abs(pair[1] - wanted) <= NEAR * wanted]
    if not near:
        counts = ", ".join(f"{pair[1]:,} with {pair[2]}" for pair in tried if pair is not None) or "none"
        raise UserError(f"{one.text} comes to no {wanted:,} parameters within a tenth: the nearest are {counts}")
    new, count, words = near[0]
    return new, f"{one.text} has {words} in place of {known[words.partition('=')[0]].default}: {count:,} parameters"


def _best(one: Wanted, name: str, wanted: int) -> tuple[Wanted, int, str] | None:
    """The member with the value of a keyword that brings its parameters nearest; None where none builds."""
    step = _step(one) if name == "d" else 1
    low, high = 1, MOST // step  # parameters grow with either, so the first that has enough is looked for
    while low < high:
        middle = (low + high) // 2
        count = parameters(_with(one, name, middle * step))
        low, high = (middle + 1, high) if count is not None and count < wanted else (low, middle)
    found = []
    for value in sorted(
        {(low - 1) * step, (low - 1) * step + step // 2, low * step} - {0}
    ):  # heads may also be odd in width
        if (count := parameters(new := _with(one, name, value))) is not None:
            found.append((new, count, f"{name}={value}"))
    return min(found, key=lambda pair: abs(pair[1] - wanted), default=None)


def _with(one: Wanted, name: str, value: int) -> Wanted:
    before = one.text[len(one.name) + 1 : -1]
    texts = [*([before] if before else []), f"{name}={value}"]
    return replace(one, text=with_keywords(one.name, texts), keywords={**one.keywords, name: value})


def _step(one: Wanted) -> int:
    """What `d` is a multiple of: twice the heads, so that what turns pairs of numbers within a head can."""
    known = signature(one.function).parameters
    heads = one.keywords.get("heads", known["heads"].default if "heads" in known else 1)
    return 2 * heads if isinstance(heads, int) else 2
