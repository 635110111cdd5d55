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
from kinformer.laws.support.verdicts import Verdict, laws, unjudged_kind, verdict
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
    try:
        pairs = process().call("tests.laws.cases:cases", *parts)
    except AssertionError as failure:  # a part is not imported or an example not built: the last line says why
        raise pytest.Collector.CollectError(str(failure).strip().splitlines()[-1]) from failure
    return [(law, name) for law, name in pairs]


def conclude(result: Verdict | None, record_property: Callable[[str, object], None]) -> None:
    """A test's end from a verdict. A broken law fails with its finding and nothing else."""
    assert result is not None, "the law does not speak of it"
    record_property("law", result.law)
    record_property("part", result.part)
    for place, why in result.unjudged or ([("", result.text)] if result.end == "nothing" else []):
        record_property("unjudged", f"{place}\t{why}")
    if result.end == "declared":
        record_property("breaks", result.text)
        pytest.xfail(result.text)
    if result.end == "nothing":
        pytest.skip(result.text)
    if result.end != "holds":
        pytest.fail(f"{result.text}\n{result.law} judged {result.part}", pytrace=False)


def judge_unhooked(law: str, name: str) -> Verdict:
    """A verdict of the process in which annotations are not checked."""
    *fields, unjudged = process().call("tests.laws.asked:judged", law, name)
    return Verdict(*fields, tuple((place, why) for place, why in unjudged))


def test_law(law: str, name: str, record_property: Callable[[str, object], None]) -> None:
    is_hooked = law in HOOKED or (PROVE and law not in UNHOOKED)
    conclude(verdict(law, laws()[law], example(name)) if is_hooked else judge_unhooked(law, name), record_property)


def test_what_no_law_speaks_of(name: str, record_property: Callable[[str, object], None]) -> None:
    conclude(unjudged_kind(example(name)), record_property)


@pytest.mark.parametrize("kind", [*kinds(), EXECUTORS])
def test_every_example_can_be_built(kind: str) -> None:
    """Each example is built with its annotations checked; the list of cases is made without checks."""
    examples = list(discovered(kind))
    assert examples
    for entry in examples:
        assert entry.part is not None
