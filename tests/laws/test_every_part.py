"""Every law over every example that the folders and plugins hold, and over every executor.

A break that an example declares is an expected failure, and must be found. What a law could not look at is skipped with
the reason, and named in the table at the end of the run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinformer.discover import kinds
from kinformer.laws.support.judging import Judged, Verdict, discovered, laws, over, unjudged_kind, verdict, words

ROOT = Path(__file__).resolve().parents[2]
PROVE = os.environ.get("KINFORMER_PROVE") == "1"
LAWS = laws()
EXAMPLES = [(one, words(one)) for kind in (*kinds(), "execute") for one in discovered(kind)]


def speaking(of: set[str]) -> list[str]:
    """The laws that speak of an example."""
    return [name for name, law in LAWS.items() if over(law) & of]


def first_of_each_file() -> list[Judged]:
    """What is compiled in every run; in the long run all is."""
    found: dict[str, Judged] = {}
    for one, of in EXAMPLES:
        if over(LAWS["compiles"]) & of:
            found.setdefault(one.name if PROVE else one.name.rpartition(".")[0], one)
    return list(found.values())


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


@pytest.mark.parametrize(
    ("law", "one"),
    [
        pytest.param(law, one, id=f"{law}-{one.name}")
        for one, of in EXAMPLES
        for law in speaking(of)
        if law != "compiles"
    ],
)
def test_law(law: str, one: Judged, record_property: Callable[[str, object], None]) -> None:
    conclude(verdict(law, LAWS[law], one), record_property)


@pytest.mark.parametrize("one", [one for one, of in EXAMPLES if not speaking(of)])
def test_what_no_law_speaks_of(one: Judged, record_property: Callable[[str, object], None]) -> None:
    conclude(unjudged_kind(one), record_property)


class Unhooked:
    """A process in which annotations are not checked at run time, so that code compiles; asked for one example a time.

    The law is about one graph, forward and backward; a code generator's own crashes are its own.
    """

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, name: str) -> Verdict:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the process that compiles ended at {name}"
        law, part, end, text, unjudged = json.loads(answer)
        return Verdict(law, part, end, text, tuple((place, why) for place, why in unjudged))

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="session")
def unhooked() -> Iterator[Unhooked]:
    process = Unhooked()
    yield process
    process.close()


@pytest.mark.parametrize("name", [one.name for one in first_of_each_file()])
def test_compiles(name: str, unhooked: Unhooked, record_property: Callable[[str, object], None]) -> None:
    conclude(unhooked.ask(name), record_property)


def answer() -> None:
    """What the process does: a name in, a verdict out, as long as names come."""
    by_name = {one.name: one for one, _ in EXAMPLES}
    for line in sys.stdin:
        said = verdict("compiles", LAWS["compiles"], by_name[line.strip()])
        assert said is not None
        print(json.dumps((said.law, said.part, said.end, said.text, said.unjudged)), flush=True)


if __name__ == "__main__":
    answer()
