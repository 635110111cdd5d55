"""Verdicts: results of a test whether a part has the property that a law demands."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from kinformer.core.discover import MemberRecord, modules
from kinformer.core.example import Example
from kinformer.laws.foreign.support.black_box import BlackBox
from kinformer.laws.support.findings import Unjudged
from kinformer.laws.support.layer_forms import forms, kind_of
from kinformer.laws.support.subject import Subject, TrainingSubject

End = Literal["holds", "broken", "declared", "slow", "nothing"]


@dataclass(frozen=True)
class Verdict:
    """The result of a test of one law (a property that parts should have) on a part.

    law: name of the law.
    part: name of the part.
    end: result, one of "holds", "broken", "declared", "slow" and "nothing". "declared" means that the part breaks the
        law and its example declares so in `breaks`. "slow" means that the test took too long, "nothing" that the law
        could not be tested on the part.
    text: sentence that says how the law is broken, or the reason why it was not tested; the law itself if it holds.
    unjudged: uses of the part in which the law was not tested, each with the reason. "" is the plain use.
    """

    law: str
    part: str
    end: End
    text: str
    unjudged: tuple[tuple[str, str], ...] = ()

    @property
    def is_failure(self) -> bool:
        """True if `kinformer check` ends with exit code 1 because of this result: "broken" or "slow"."""
        return self.end in ("broken", "slow") and not self.is_probe

    @property
    def is_probe(self) -> bool:
        """True for a learnability probe, which trains a tiny copy of a model and fails no check."""
        return getattr(laws().get(self.law), "PROBE", False)


@dataclass(frozen=True, eq=False)
class JudgedPart:
    """A part to test: its name, its constructor, and the declarations of its example.

    name: name of the part in reports.
    make: function that builds the part.
    breaks: names of laws that the part breaks as declared, each with the reason.
    shares: names of weights that layers of the part share as declared, each with the reason.
    file: the user's file that defines the part, if there is one.
    may_break: names of laws that the part breaks with some keywords, each with the reason. For a trained model these
        are the declarations of its member.
    """

    name: str
    make: Callable[[], Any]
    breaks: Mapping[str, str] = field(default_factory=dict)
    shares: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None
    may_break: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_example(cls, name: str, example: Example, file: Path | None = None) -> "JudgedPart":
        """Return the part to test from an entry of EXAMPLES."""
        return cls(name, example.make, example.breaks, example.shares, file)

    @cached_property
    def part(self) -> Any:
        """An instance of the part for all laws to inspect; a law builds a fresh instance to call it."""
        return self.make()

    @cached_property
    def at_work(self) -> Sequence[Subject | TrainingSubject | BlackBox]:
        """Layers and models that contain the part, for laws to call."""
        placed = [] if isinstance(self.part, ModuleType) else forms(self.part, self.make)
        return [form if isinstance(form, BlackBox) else replace(form, shares=self.shares) for form in placed]

    @property
    def is_foreign(self) -> bool:
        """True for a model of another library, which is tested as a function from tokens to logits."""
        try:
            kind = self.kind
        except Exception:
            return False  # the law `runs` reports a part that cannot be built
        return kind == "module" and any(isinstance(form, BlackBox) for form in self.at_work)

    @property
    def kind(self) -> str:
        """Kind of the part as a word, such as "executor", "member" or "pattern"."""
        if isinstance(self.part, ModuleType):
            return "executor"
        return "member" if isinstance(getattr(self.part, "member", None), MemberRecord) else kind_of(self.part)


def laws(kind: Literal["laws", "foreign"] = "laws") -> dict[str, ModuleType]:
    """Return the module of every law by name; `runs` is first, because a part must run before other tests.

    kind: "laws" for the laws of our parts, "foreign" for the laws of models of other libraries.
    """
    by_name = modules(kind)
    for name, law in by_name.items():
        missing = [field_name for field_name in ("SAYS", "OVER", "judge") if not hasattr(law, field_name)]
        if missing:
            raise ImportError(f"the law {name!r} has no {' and no '.join(missing)}; see kinformer/laws/__init__.py")
    return dict(sorted(by_name.items(), key=lambda item: (item[0] != "runs", item[0])))


def laws_of(example: JudgedPart) -> dict[str, ModuleType]:
    """Return the laws that are tested on a part, by name.

    example: the part, which may be a model of another library.

    Errors: CannotRun for a model of another library that cannot be called with tokens.
    """
    return laws("foreign" if example.is_foreign else "laws")


def kinds_judged(law: ModuleType) -> set[str]:
    """Return the kinds of parts that a law tests, such as "layer" or "pattern".

    law: the module of the law.
    """
    return {law.OVER} if isinstance(law.OVER, str) else set(law.OVER)


def kinds_of(example: JudgedPart) -> set[str]:
    """Return the kind of a part, such as "pattern", and the kinds of the modules that contain it in tests.

    These modules are of the kinds "layer" and "model".

    example: the part to test.
    """
    return {example.kind} | {_kind_of_form(form) for form in example.at_work}


def subjects(law: ModuleType, example: JudgedPart) -> list[Any]:
    """Return the objects that a law tests for a part: layers and models with the part, or the part itself.

    law: the module of the law.
    example: the part to test.
    """
    if example.is_foreign:
        return [*example.at_work]
    kinds = kinds_judged(law)
    at_work: list[Any] = [form for form in example.at_work if _kind_of_form(form) in kinds]
    return [*at_work, example.part] if example.kind in kinds - {"layer", "model"} else at_work


def _kind_of_form(form: Subject | TrainingSubject | BlackBox) -> str:
    return "layer" if isinstance(form, Subject) else "model"


def verdict(name: str, law: ModuleType, example: JudgedPart) -> Verdict | None:
    """Test a law on a part and return the result; None if the law tests no parts of this kind.

    The example of a part may declare that the part breaks the law. If the part then keeps the law, the result is
    "broken" too. An error in the test is always "broken".

    name: name of the law.
    law: the module of the law.
    example: the part to test.
    """
    try:
        at_work = subjects(law, example)
    except Exception as error:
        return Verdict(
            name, example.name, "broken", f"no layer can be built with the part: {error_line(error, example.file)}"
        )
    reason, holds = example.breaks.get(name), 0
    unjudged: list[tuple[str, str]] = []
    for subject in at_work:
        place = (
            subject.place if isinstance(subject, Subject | TrainingSubject) else ""
        )  # a part may have a weight named place
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
            return Verdict(
                name, example.name, "broken", f"{where}the law fails with an error: {error_line(error, example.file)}"
            )
        else:
            declared = reason or example.may_break.get(name)
            if finding is not None and declared:
                return Verdict(name, example.name, "declared", declared)
            if finding is not None:
                return Verdict(name, example.name, "broken", f"{where}{finding}")
            holds += 1
    if not at_work and not reason:
        return None
    if reason:
        return Verdict(
            name, example.name, "broken", f"breaks is out of date: the part keeps this law; remove {name!r} from breaks"
        )
    text = law.SAYS if holds else unjudged[0][1]
    return Verdict(name, example.name, "holds" if holds else "nothing", text, tuple(unjudged))


def unjudged_kind(example: JudgedPart) -> Verdict:
    """Return the result for a part of a kind that no law tests.

    example: the part.
    """
    name = type(example.part).__name__
    advice = "; a model of tokens has an nn.Embedding or the attribute vocab_size" if example.kind == "module" else ""
    return Verdict("every law", example.name, "nothing", f"no law judges a {name} by itself{advice}")


def error_line(error: BaseException, path: Path | None) -> str:
    """Return the class and text of an error in one line, after the line number of the user's file.

    error: the error.
    path: the user's file. If it is None or did not raise the error, no line number is given.
    """
    text = " ".join(str(error).split())
    lines: list[int | None] = []
    if path is not None:
        full = str(path.resolve())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == full]
        if isinstance(error, SyntaxError) and error.filename == full:
            text, lines = error.msg, [error.lineno]
    at = f"line {lines[-1]} of {path.name}: " if lines and path else ""
    return f"{at}{type(error).__name__}: {text}" if text else f"{at}{type(error).__name__}"
