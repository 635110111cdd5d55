"""Every law over every part that the folders and plugins hold, and over every executor; `make prove`: every example.

A break that an example declares is an expected failure, and must be found. What a law could not look at is skipped with
the reason, and named in the table at the end of the run.

One law on one part: `pytest tests/laws/test_every_part.py -k "peek and softmax"`, or the node id of a case. Then every
law that is named judges every example of the files that are named, and no other part is imported. The process without
checks lists the cases, so collection imports no part here.
"""

import functools
from collections.abc import Callable

import pytest

from kinformer.core.discover import kinds
from kinformer.laws.support.judging import Verdict, laws, unjudged_kind, verdict
from tests.discovered import EXECUTORS, discovered
from tests.laws.asked import example
from tests.laws.cases import PROVE
from tests.laws.requested import requested_parts
from tests.unhooked import process

# Laws that make every kind of call judge in this process, where annotations are checked. The long run judges by all
# laws here but two, which cannot run with checks or would repeat the others at greater length.
HOOKED = ("runs", "mutation")
UNHOOKED = ("compiles", "learns")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize by the names of laws and examples, which the process without checks lists."""
    if "name" in metafunc.fixturenames:
        pairs = _listed(tuple(requested_parts(metafunc.config, "test_every_part.py")))
        judging = [pytest.param(law, name, id=f"{law}-{name}") for law, name in pairs if law]
        silent = [pytest.param(name, id=name) for law, name in pairs if not law]
        if "law" in metafunc.fixturenames:
            metafunc.parametrize(("law", "name"), judging)
        else:
            metafunc.parametrize("name", silent)


@functools.cache
def _listed(parts: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(law, name) for law, name in process().call("tests.laws.cases:cases", *parts)]


def conclude(said: Verdict | None, record_property: Callable[[str, object], None]) -> None:
    """A test's end from a verdict. A broken law fails with its finding and nothing else."""
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
    if said.end != "holds":
        pytest.fail(f"{said.text}\n{said.law} judged {said.part}", pytrace=False)


def asked(law: str, name: str) -> Verdict:
    """A verdict of the process in which annotations are not checked."""
    *fields, unjudged = process().call("tests.laws.asked:judged", law, name)
    return Verdict(*fields, tuple((place, why) for place, why in unjudged))


def test_law(law: str, name: str, record_property: Callable[[str, object], None]) -> None:
    here = law in HOOKED or (PROVE and law not in UNHOOKED)
    conclude(verdict(law, laws()[law], example(name)) if here else asked(law, name), record_property)


def test_what_no_law_speaks_of(name: str, record_property: Callable[[str, object], None]) -> None:
    conclude(unjudged_kind(example(name)), record_property)


@pytest.mark.parametrize("kind", [*kinds(), EXECUTORS])
def test_every_example_can_be_built(kind: str) -> None:
    """With its annotations checked, which the list of cases does without."""
    examples = list(discovered(kind))
    assert examples
    for entry in examples:
        assert entry.part is not None
