"""Members brought to about the same number of parameters, by `d` or by `depth`."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from kinformer.core.keywords import signature
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import MemberChoice, with_keywords

NEAR = 0.1  # of the parameters of the first that another may have more or less
BY = ("d", "depth")
MOST = 4096  # of either


def match_parameters(members: Sequence[MemberChoice]) -> tuple[list[MemberChoice], list[str]]:
    """The members with about as many parameters as the first, which stays as it is; and what was changed, in words.

    What was written stays. Of the others `d` is changed, in steps that its heads divide, to the nearest count; `depth`
    where `d` was written or has none that is near. UserError where neither comes within a tenth.
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
    """How many parameters a member has, built without its numbers where that can be; None where it refuses."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in choice.function(**choice.keywords).parameters())
    except (ValueError, TypeError, LookupError):
        return None
    except Exception:  # it looks at numbers while it is built
        return sum(parameter.numel() for parameter in choice.build(0).parameters())


def _nearest_choice(choice: MemberChoice, target: int) -> tuple[MemberChoice, str]:
    now = count_parameters(choice)
    if now is not None and abs(now - target) <= 0.01 * target:
        return choice, f"{choice.text} has {now:,} parameters as it is"
    declared = signature(choice.function).parameters
    free = [name for name in BY if name in declared and name not in choice.keywords]
    if not free:
        given_names = " and ".join(name for name in BY if name in declared)
        why = f"has its {given_names} written" if given_names else "has neither d nor depth"
        raise UserError(f"--match parameters changes d or depth, and {choice.text} {why}; leave one of them open")
    tried = [_nearest_by(choice, name, target) for name in free]
    near = [pair for pair in tried if pair is not None and abs(pair[1] - target) <= NEAR * target]
    if not near:
        counts = ", ".join(f"{pair[1]:,} with {pair[2]}" for pair in tried if pair is not None) or "none"
        raise UserError(f"{choice.text} comes to no {target:,} parameters within a tenth: the nearest are {counts}")
    new, count, words = near[0]
    return (
        new,
        f"{choice.text} has {words} in place of {declared[words.partition('=')[0]].default}: {count:,} parameters",
    )


def _nearest_by(choice: MemberChoice, name: str, target: int) -> tuple[MemberChoice, int, str] | None:
    """The member with the value of a keyword that brings its parameters nearest; None where none builds."""
    step = _width_step(choice) if name == "d" else 1
    low, high = 1, MOST // step  # parameters grow with either, so the first that has enough is looked for
    while low < high:
        middle = (low + high) // 2
        count = count_parameters(_with_keyword(choice, name, middle * step))
        low, high = (middle + 1, high) if count is not None and count < target else (low, middle)
    candidates = []
    for value in sorted(
        {(low - 1) * step, (low - 1) * step + step // 2, low * step} - {0}
    ):  # heads may also be odd in width
        if (count := count_parameters(new := _with_keyword(choice, name, value))) is not None:
            candidates.append((new, count, f"{name}={value}"))
    return min(candidates, key=lambda pair: abs(pair[1] - target), default=None)


def _with_keyword(choice: MemberChoice, name: str, value: int) -> MemberChoice:
    before = choice.text[len(choice.name) + 1 : -1]
    texts = [*([before] if before else []), f"{name}={value}"]
    return replace(choice, text=with_keywords(choice.name, texts), keywords={**choice.keywords, name: value})


def _width_step(choice: MemberChoice) -> int:
    """What `d` is a multiple of: twice the heads, so that what turns pairs of numbers within a head can."""
    declared = signature(choice.function).parameters
    heads = choice.keywords.get("heads", declared["heads"].default if "heads" in declared else 1)
    return 2 * heads if isinstance(heads, int) else 2
