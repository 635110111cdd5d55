"""Matching of members (named models) to about the same number of parameters, by `d` or `depth`."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from kinformer.core.keywords import signature
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import MemberChoice, with_keywords

NEAR = 0.1  # largest difference from the first member, as a fraction of its parameters
BY = ("d", "depth")
MOST = 4096  # largest value of either keyword


def match_parameters(members: Sequence[MemberChoice]) -> tuple[list[MemberChoice], list[str]]:
    """Change the members of a comparison to about as many parameters as the first; return them and texts.

    A member is a named model. Each text describes a change. Keywords that the user has given stay. The width `d` is
    changed, in multiples of the heads, until the number of parameters is nearest. If `d` was given, or no `d` comes
    within 10%, the number of layers, `depth`, is changed instead.

    members: the members; the first stays unchanged.

    Errors: UserError if neither keyword brings a member within 10% of the first member's parameters.
    """
    first, *rivals = members
    count = count_parameters(first)
    assert count is not None
    choices, changes = [first], []
    for choice in rivals:
        new, words = _nearest_choice(choice, count)
        choices.append(new)
        changes.append(words)
    return choices, changes


def count_parameters(choice: MemberChoice) -> int | None:
    """Return the number of parameters of a member (named model); None if it refuses its keywords.

    If possible, the model is built without memory for its weights.

    choice: the member and its keywords.
    """
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in choice.function(**choice.keywords).parameters())
    except (ValueError, TypeError, LookupError):
        return None
    except Exception:  # its construction needs the values of weights
        return sum(parameter.numel() for parameter in choice.build(0).parameters())


def _nearest_choice(choice: MemberChoice, target: int) -> tuple[MemberChoice, str]:
    """Return the member with about `target` parameters, and a text about the change."""
    now = count_parameters(choice)
    if now is not None and abs(now - target) <= 0.01 * target:
        return choice, f"{choice.text} has {now:,} parameters without a change"
    declared = signature(choice.function).parameters
    free = [name for name in BY if name in declared and name not in choice.keywords]
    if not free:
        given_names = " and ".join(name for name in BY if name in declared)
        why = f"gives {given_names}; leave out one of them" if given_names else "has neither; leave out --match"
        raise UserError(f"--match parameters changes d or depth, but {choice.text} {why}")
    tried = [_nearest_by(choice, name, target) for name in free]
    near = [pair for pair in tried if pair is not None and abs(pair[1] - target) <= NEAR * target]
    if not near:
        counts = ", ".join(f"{pair[1]:,} with {pair[2]}" for pair in tried if pair is not None) or "none"
        raise UserError(f"{choice.text} cannot have {target:,} parameters within 10%: the nearest are {counts}")
    new, count, words = near[0]
    return (
        new,
        f"{choice.text} gets {words} instead of {declared[words.partition('=')[0]].default}: {count:,} parameters",
    )


def _nearest_by(choice: MemberChoice, name: str, target: int) -> tuple[MemberChoice, int, str] | None:
    """Return the member with the value of a keyword that brings its parameters nearest; None if no value works."""
    step = _width_step(choice) if name == "d" else 1
    low, high = 1, MOST // step  # binary search: the number of parameters grows with either keyword
    while low < high:
        middle = (low + high) // 2
        count = count_parameters(_with_keyword(choice, name, middle * step))
        low, high = (middle + 1, high) if count is not None and count < target else (low, middle)
    candidates = []
    for value in sorted(
        {(low - 1) * step, (low - 1) * step + step // 2, low * step} - {0}
    ):  # the width of a head may also be odd
        if (count := count_parameters(new := _with_keyword(choice, name, value))) is not None:
            candidates.append((new, count, f"{name}={value}"))
    return min(candidates, key=lambda pair: abs(pair[1] - target), default=None)


def _with_keyword(choice: MemberChoice, name: str, value: int) -> MemberChoice:
    before = choice.text[len(choice.name) + 1 : -1]
    texts = [*([before] if before else []), f"{name}={value}"]
    return replace(choice, text=with_keywords(choice.name, texts), keywords={**choice.keywords, name: value})


def _width_step(choice: MemberChoice) -> int:
    """Return the step of `d`: twice the heads, because rotary positions need an even width of a head."""
    declared = signature(choice.function).parameters
    heads = choice.keywords.get("heads", declared["heads"].default if "heads" in declared else 1)
    return 2 * heads if isinstance(heads, int) else 2
