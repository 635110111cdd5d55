"""Every law over every example that the folders hold.

A module that declares in BREAKS that a law does not hold must indeed break it with one of its examples: it is then an
expected failure, and otherwise the entry is out of date.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kinformer import discover
from kinformer.laws import compiles, learns, targets
from kinformer.laws.broken import Broken
from kinformer.laws.subject import Subject
from kinformer.laws.subjects import FORMS, discovered, penalties, subjects

ROOT = Path(__file__).resolve().parents[2]
LAWS = (
    "runs",
    "chunk",
    "peek",
    "padding",
    "batch_mates",
    "dtype",
    "save_load",
    "empty_rows",
    "any_length",
    "mutation",
    "rows",
)
PROVE = os.environ.get("KINFORMER_PROVE") == "1"
EFFORT = 4 if PROVE else 1


@dataclass(frozen=True)
class Case:
    """A law over one example, or over all of a module that says that it breaks the law."""

    law: str
    part: str
    examples: tuple[tuple[str, Any], ...]
    reason: str | None

    @property
    def name(self) -> str:
        return f"{self.law}[{self.part if self.reason else self.examples[0][0]}]"

    def subjects(self) -> Iterator[Subject]:
        for name, example in self.examples:
            yield from subjects(self.part.partition(".")[0], name, example, effort=EFFORT)


def cases(laws: tuple[str, ...], kinds: tuple[str, ...]) -> Iterator[Case]:
    for kind in kinds:
        modules = discover.modules(kind)
        grouped: dict[str, list[tuple[str, Any]]] = {}
        for module, name, example in discovered(kind):
            grouped.setdefault(module, []).append((name, example))
        for module, examples in grouped.items():
            for law in laws:
                reason = getattr(modules[module], "BREAKS", {}).get(law)
                for group in [examples] if reason else [[one] for one in examples]:
                    yield Case(law, f"{kind}.{module}", tuple(group), reason)


def judge(case: Case, check: Callable[[Subject], None], record_property: Callable[[str, object], None]) -> None:
    record_property("law", case.law)
    record_property("part", case.part)
    found = list(case.subjects())
    if case.reason is None:
        for subject in found:
            check(subject)
        return
    if not any(breaks(check, subject) for subject in found):
        pytest.fail(f"BREAKS is out of date: {case.part} keeps the law {case.law!r} in all of its examples")
    pytest.xfail(case.reason)


def breaks(check: Callable[[Subject], None], subject: Subject) -> bool:
    try:
        check(subject)
    except (Broken, ValueError):
        return True
    return False


def parametrized(laws: tuple[str, ...], kinds: tuple[str, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases(laws, kinds)])


@parametrized(LAWS, tuple(kind for kind in FORMS if kind != "losses"))
def test_law(case: Case, record_property: Callable[[str, object], None]) -> None:
    judge(case, importlib.import_module(f"kinformer.laws.{case.law}").check, record_property)


@parametrized(("learns",), ("members",))
def test_learns(case: Case, record_property: Callable[[str, object], None]) -> None:
    judge(case, learns.check, record_property)


@pytest.mark.parametrize(("name", "penalty"), list(penalties()))
def test_targets(name: str, penalty: Any, record_property: Callable[[str, object], None]) -> None:
    every = [(kind, *found) for kind in ("biases", "mechanisms", "memories", "depth") for found in discovered(kind)]
    found = [s for kind, _, part, example in every for s in subjects(kind, part, example)]
    reporting = [subject for subject in found if targets.reports(subject, penalty)]
    assert reporting, f"no example reports {penalty.key!r} in its aux, so nothing shows what {name} moves"
    for subject in reporting:
        record_property("law", "targets")
        record_property("part", name)
        targets.check(subject, penalty)


def compiling() -> list[str]:
    """An example of every module that declares COMPILES = True; all of them in the long run."""
    found: dict[str, list[str]] = {}
    for kind in FORMS:
        for module, name, _ in discovered(kind):
            if getattr(discover.modules(kind)[module], "COMPILES", False):
                found.setdefault(f"{kind}.{module}", []).append(name)
    return [name for names in found.values() for name in (names if PROVE else names[:1])]


def test_compiles(record_property: Callable[[str, object], None]) -> None:
    """In a process of its own: functions whose annotations are checked do not compile.

    The law is about one graph, forward and backward, which aot_eager shows; a code generator's own crashes are its own.
    """
    names = compiling()
    assert names, "no module declares COMPILES = True"
    record_property("law", "compiles")
    for name in names:
        record_property("part", name.rpartition(".")[0])
    done = subprocess.run(
        [sys.executable, __file__, "aot_eager", *names],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(names)


def compile_all(backend: str, names: list[str]) -> dict[str, str | None]:
    """What broke for each named example, None where nothing did."""
    verdicts: dict[str, str | None] = {}
    for kind in {name.partition(".")[0] for name in names}:
        for _, name, example in discovered(kind):
            if name in names:
                verdicts[name] = _verdict(backend, subjects(kind, name, example))
    return verdicts


def _verdict(backend: str, found: tuple[Subject, ...]) -> str | None:
    for subject in found:
        try:
            compiles.check(subject, backend)
        except Broken as broken:
            return str(broken)
    return None


if __name__ == "__main__":
    print(json.dumps(compile_all(sys.argv[1], sys.argv[2:])))
