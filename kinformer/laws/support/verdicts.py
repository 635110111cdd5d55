"""Judging: a law asked about an example of a part, and the verdict."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from kinformer.core.discover import MemberRecord, modules
from kinformer.core.example import Example
from kinformer.laws.support.findings import Unjudged
from kinformer.laws.support.layer_forms import forms, kind_of
from kinformer.laws.support.subject import Subject, TrainingSubject

End = Literal["holds", "broken", "declared", "slow", "nothing"]


@dataclass(frozen=True)
class Verdict:
    """What a law found of a part: it holds, it is broken, `breaks` says so, no answer in time, or nothing to judge.

    `unjudged` has each way of use that was not looked at, "" for the plain one, and why.
    """

    law: str
    part: str
    end: End
    text: str
    unjudged: tuple[tuple[str, str], ...] = ()

    @property
    def is_failure(self) -> bool:
        """Does it end a check with exit code 1?"""
        return self.end in ("broken", "slow")


@dataclass(frozen=True, eq=False)
class JudgedPart:
    """A subject of the laws: its name, its constructor, and the declarations of its example."""

    name: str
    make: Callable[[], Any]
    breaks: Mapping[str, str] = field(default_factory=dict)
    shares: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None

    @classmethod
    def from_example(cls, name: str, example: Example, file: Path | None = None) -> "JudgedPart":
        """The subject of an example with this name."""
        return cls(name, example.make, example.breaks, example.shares, file)

    @cached_property
    def part(self) -> Any:
        """One that all laws look at; what a law calls it makes afresh."""
        return self.make()

    @cached_property
    def at_work(self) -> Sequence[Subject | TrainingSubject]:
        """The layers and models that it is put to work in."""
        placed = [] if isinstance(self.part, ModuleType) else forms(self.part, self.make)
        return [replace(form, shares=self.shares) for form in placed]

    @property
    def kind(self) -> str:
        """The word for what it is."""
        if isinstance(self.part, ModuleType):
            return "executor"
        return "member" if isinstance(getattr(self.part, "member", None), MemberRecord) else kind_of(self.part)


def laws() -> dict[str, ModuleType]:
    """Every law by name, `runs` first: what does not run needs no other."""
    by_name = modules("laws")
    for name, law in by_name.items():
        missing = [field_name for field_name in ("SAYS", "OVER", "judge") if not hasattr(law, field_name)]
        if missing:
            raise ImportError(f"the law {name!r} has no {' and no '.join(missing)}; see kinformer/laws/__init__.py")
    return dict(sorted(by_name.items(), key=lambda item: (item[0] != "runs", item[0])))


def kinds_judged(law: ModuleType) -> set[str]:
    """What a law judges, in words."""
    return {law.OVER} if isinstance(law.OVER, str) else set(law.OVER)


def kinds_of(example: JudgedPart) -> set[str]:
    """By which words laws speak of an example: what it is, and what it is put to work as."""
    return {example.kind} | {_kind_of_form(form) for form in example.at_work}


def subjects(law: ModuleType, example: JudgedPart) -> list[Any]:
    """What a law looks at in an example: the layers and models that it is put to work in, or the part itself."""
    kinds = kinds_judged(law)
    at_work: list[Any] = [form for form in example.at_work if _kind_of_form(form) in kinds]
    return [*at_work, example.part] if example.kind in kinds - {"layer", "model"} else at_work


def _kind_of_form(form: Subject | TrainingSubject) -> str:
    return "layer" if isinstance(form, Subject) else "model"


def verdict(name: str, law: ModuleType, example: JudgedPart) -> Verdict | None:
    """A law over an example; None where it does not speak of such parts.

    A break that is declared must be found: nothing else counts as one.
    """
    try:
        at_work = subjects(law, example)
    except Exception as error:
        return Verdict(name, example.name, "broken", f"it cannot be put to work: {error_line(error, example.file)}")
    reason, holds = example.breaks.get(name), 0
    unjudged: list[tuple[str, str]] = []
    for subject in at_work:
        place = (
            subject.place if isinstance(subject, Subject | TrainingSubject) else ""
        )  # a part may have a weight called place
        where = f"{place}: " if place else ""
        refusal = subject.refusal if isinstance(subject, Subject) else ""
        if refusal:
            unjudged.append((place, refusal))
            continue
        try:
            finding = next(iter(law.judge(subject)), None)
        except Unjudged as why:
            unjudged.append((place, str(why)))
        except Exception as error:
            return Verdict(name, example.name, "broken", f"{where}it fails: {error_line(error, example.file)}")
        else:
            if finding is not None and reason:
                return Verdict(name, example.name, "declared", reason)
            if finding is not None:
                return Verdict(name, example.name, "broken", f"{where}{finding}")
            holds += 1
    if not at_work and not reason:
        return None
    if reason:
        return Verdict(name, example.name, "broken", f"breaks is out of date: it keeps this law; drop {name!r} from it")
    text = law.SAYS if holds else f"nothing to judge: {unjudged[0][1]}"
    return Verdict(name, example.name, "holds" if holds else "nothing", text, tuple(unjudged))


def unjudged_kind(example: JudgedPart) -> Verdict:
    """What is said of an example that no law speaks of."""
    name = type(example.part).__name__
    return Verdict("every law", example.name, "nothing", f"nothing to judge: no law looks at a {name} by itself")


def error_line(error: BaseException, path: Path | None) -> str:
    """An error in one line, with the line of the user's file that it came from, where it came from there."""
    text = " ".join(str(error).split())
    lines: list[int | None] = []
    if path is not None:
        full = str(path.resolve())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == full]
        if isinstance(error, SyntaxError) and error.filename == full:
            text, lines = error.msg, [error.lineno]
    at = f"line {lines[-1]} of {path.name}: " if lines and path else ""
    return f"{at}{type(error).__name__}: {text}" if text else f"{at}{type(error).__name__}"
