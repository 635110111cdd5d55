"""Every law over every part that the folders and plugins hold, and over every executor; `make prove`: every example.

A break that an example declares is an expected failure, and must be found. What a law could not look at is skipped with
the reason, and named in the table at the end of the run.
"""

import os
from collections.abc import Callable, Iterator
from itertools import cycle

import pytest

from kinformer.core.discover import kinds
from kinformer.laws.support.judging import JudgedPart, Verdict, kinds_judged, kinds_of, laws, unjudged_kind, verdict
from tests.discovered import discovered
from tests.unhooked import process

PROVE = os.environ.get("KINFORMER_PROVE") == "1"
LAWS = laws()
# laws that make every kind of call: asked here, where annotations are checked; in the long run all are but two, which
# cannot or would only say it longer
HOOKED = ("runs", "mutation")
UNHOOKED = ("compiles", "learns")
# what a member learns by; one that has no other parts of these than members before it is trained in the long run, as
# are mechanisms and stacks, whose gradients other laws judge
LEARNT_BY = ("memories", "mixers", "models")
# of which a part is compiled, one of four in turn; other parts, of a few operations and each inside of these, and the
# losses of all models but the plainest in the long run
COMPILED = ("depth", "executors", "mechanisms", "members", "memories", "mixers", "models.lm")
PLAINEST = ("members.gpt", "members.bert", "members.transformer")  # trained before all others, and asked all laws
# what parts that keep all laws may still do wrong together; a member is asked the others in the long run
TOGETHER = ("runs", "chunk", "padding", "peek", "gradients", "save_load", "own_weights", *UNHOOKED)
# laws that are asked of one of three parts in turn; of all in the long run
SAMPLED = ("any_length", "autocast", "batch_mates", "dtype", "gradients", "mutation", "neighbours", "save_load")
IN_TURN = ("runs", "peek")  # the cheapest, of which each further example of a member is asked one


def conclude(said: Verdict | None, record_property: Callable[[str, object], None]) -> None:
    """A test's end from a verdict."""
    assert said is not None, "the law does not speak of it"
    record_property("law", said.law)
    record_property("part", said.part)
    for place, why in said.unjudged or ([("", said.text)] if said.end == "nothing" else []):
        record_property("unjudged", f"{place}\t{why}")
    if said.end == "declared":
        record_property("breaks", said.text)
        pytest.xfail(said.text)
    if said.end == "nothing":
        pytest.skip(said.text)
    assert said.end == "holds", said.text


def asked(law: str, name: str) -> Verdict:
    """A verdict of the process in which annotations are not checked."""
    *fields, unjudged = process().call("tests.laws.asked:judged", law, name)
    return Verdict(*fields, tuple((place, why) for place, why in unjudged))


def of_each_part() -> Iterator[tuple[JudgedPart, set[str]]]:
    """Each example that is asked, and the laws that it is asked about: of each part the first, in the long run all.

    Some laws are asked of one of three parts, and one of four is compiled, of the folders whose parts are more than a
    few operations. A member is asked what parts that keep all laws could do wrong together, and trained where it learns
    by parts that no member before it has; each further example of a member is asked one law, in turn. Of patterns all
    are asked what they say of themselves, which is cheap.
    """
    turn, skips, count = cycle(IN_TURN), cycle((False, True, True, True)), 0
    parts: set[tuple[str, str]] = set()
    files: set[str] = set()
    taught: set[type] = set()
    every = [one for kind in (*kinds(), "executors") for one in discovered(kind)]
    for one in sorted(every, key=lambda one: one.name.rpartition(".")[0] not in PLAINEST):
        file = one.name.rpartition(".")[0]
        part = (file, type(one.part).__name__)
        if PROVE or part not in parts:
            spoken = speaking(kinds_of(one))
            if not PROVE and not one.name.startswith(tuple(f"{place}." for place in COMPILED)):
                spoken = spoken.difference(("compiles",))
            if not PROVE and "compiles" in spoken and file not in PLAINEST and next(skips):
                spoken = spoken.difference(("compiles",))
            if not PROVE and file in files:
                spoken = spoken.difference(UNHOOKED)
            elif not PROVE and one.kind == "member":
                new = learnt_by(one).difference(taught)
                spoken = spoken.difference(("compiles",) if new else UNHOOKED)
                taught |= new
            if not PROVE and one.kind == "member" and file not in PLAINEST:
                spoken = spoken.intersection(TOGETHER)
            if not PROVE and file not in PLAINEST:
                count += 1
                spoken = spoken.difference(law for n, law in enumerate(SAMPLED) if (n + count) % 3)
            yield one, spoken
        elif one.kind == "pattern":
            yield one, speaking({"pattern"})
        elif one.kind == "member":
            yield one, {next(turn)} & speaking(kinds_of(one)) or {"runs"}
        parts.add(part)
        files.add(file)


def learnt_by(one: JudgedPart) -> set[type]:
    """The classes by which a model learns."""
    places = tuple(f"kinformer.{folder}." for folder in LEARNT_BY)
    return {type(part) for part in one.part.modules() if type(part).__module__.startswith(places)}


def speaking(of: set[str]) -> set[str]:
    """The laws that speak of an example."""
    return {name for name, law in LAWS.items() if kinds_judged(law) & of}


ASKED = list(of_each_part())
CASES = [(law, one) for one, spoken in ASKED for law in LAWS if law in spoken]


@pytest.mark.parametrize(("law", "one"), [pytest.param(law, one, id=f"{law}-{one.name}") for law, one in CASES])
def test_law(law: str, one: JudgedPart, record_property: Callable[[str, object], None]) -> None:
    here = law in HOOKED or (PROVE and law not in UNHOOKED)
    conclude(verdict(law, LAWS[law], one) if here else asked(law, one.name), record_property)


@pytest.mark.parametrize("one", [one for one, spoken in ASKED if not spoken])
def test_what_no_law_speaks_of(one: JudgedPart, record_property: Callable[[str, object], None]) -> None:
    conclude(unjudged_kind(one), record_property)
