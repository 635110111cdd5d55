"""Function `check`, which tests the laws (properties of parts) on a part or the parts of a file."""

import copy
import inspect
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

from kinformer.core.did_you_mean import suggest_names
from kinformer.core.example import Example
from kinformer.core.keyword_hints import hint_keywords
from kinformer.core.missing_path import refuse_long_paths
from kinformer.core.quote import quote
from kinformer.laws.foreign.support.vocabulary import TokenFunction
from kinformer.laws.support.parts_file import read_parts
from kinformer.laws.support.verdicts import JudgedPart, Verdict, laws, laws_of, unjudged_kind, verdict


@hint_keywords
@refuse_long_paths()
def check(part_or_path: Any, *, law: str | Sequence[str] | None = None) -> list[Verdict]:
    """Test a part or a trained model for the laws, and return one verdict per law.

    A law is a property that all parts of a kind should have.

    Use it in a test or a notebook, while you write a part of your own, or on a model that you have trained.

        for verdict in check(MyPattern(3)):
            print(verdict.end, verdict.law, verdict.text)

    part_or_path: a part, a model of tokens of any library (a torch.nn.Module, a model of transformers, or a function of
        tokens), a function or class that makes one, an `Example`, the module of an executor (a way to compute
        attention), or a path. The path names a file with EXAMPLES ("mine.py", or "mine.py:Name" for one of its parts),
        the folder of a trained model, or "hf:FOLDER", a folder of transformers.
    law: name of a law, or several names; by default all laws.

    The law `runs` (a plain call works) comes first. If the part breaks it, no other law is tested.
    Errors: ValueError in one line if a law does not exist, or if the parts of the file cannot be read. ValueError also
    for a model of another library that cannot be called with tokens.
    """
    chosen = (law,) if isinstance(law, str) else tuple(law or ())
    check_law_names(chosen)
    if isinstance(part_or_path, str | Path):
        parts_file = read_parts(str(part_or_path))
        return list(verdicts(parts_file.examples, parts_file.laws_to_test(chosen)))
    part = _make_judged(part_or_path)
    if part.is_foreign:
        check_law_names(chosen, part)
    return list(verdicts((part,), chosen or tuple(laws_of(part))))


def check_law_names(names: Sequence[str], part: JudgedPart | None = None) -> None:
    """Check that laws exist.

    names: names of laws.
    part: the part to test, whose laws are meant; None for all laws.

    Errors: ValueError in one line.
    """
    known = laws() | laws("foreign") if part is None else laws_of(part)
    for name in names:
        if name not in known:
            of = "" if part is None else f" for a {part.name}, a model of another library"
            raise ValueError(f"there is no law {quote(name)}{of}{suggest_names(name, known)}")


def _make_judged(part: Any) -> JudgedPart:
    if isinstance(part, ModuleType):
        return JudgedPart(part.__name__, lambda: part)
    if inspect.isroutine(part) and _takes_tokens(part):
        return JudgedPart(getattr(part, "__name__", "function"), lambda: copy.deepcopy(TokenFunction(part)))
    if not isinstance(part, Example) and not inspect.isroutine(part) and not inspect.isclass(part):
        # a law may change its part, so it gets a copy
        return JudgedPart(type(part).__name__, lambda: copy.deepcopy(part))
    example = Example.from_entry(part)
    return JudgedPart.from_example(getattr(part, "__name__", "it"), example)


def _takes_tokens(function: Any) -> bool:
    """Return True for a function with an argument; a function that makes a part has none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return False
    return any(parameter.default is parameter.empty and parameter.kind <= 1 for parameter in parameters)


class TimeIsUp(BaseException):
    """Raised if the test of a law exceeds its time limit.

    It is a BaseException, so that `except Exception` in a tested part does not catch it.
    """


def verdicts(
    examples: Sequence[JudgedPart],
    names: Sequence[str],
    limit: float | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[Verdict]:
    """Test parts for some laws, and yield one verdict per law: the worst over all parts.

    examples: the parts to test.
    names: names of the laws.
    limit: time limit of a law over all parts, in seconds; None for no limit.
    tell: function that receives a line of progress before each test.

    A law that applies to none of the parts has no verdict. If the law `runs` fails, no further law is tested.
    """
    any_verdict = False
    for name in names:
        of_examples: list[Verdict] = []
        left = limit
        for n, example in enumerate(examples):
            tell(f"law {name}: example {n + 1} of {len(examples)}")
            begin = monotonic()
            try:
                with limit_time(left):
                    law = laws_of(example).get(name)
                    answer = None if law is None else verdict(name, law, example)
            except TimeIsUp:
                text = f"no answer in {limit:g} s; use a smaller example (width 16, 2 heads), or a larger --seconds"
                answer = Verdict(name, example.name, "slow", text)
            left = None if left is None else max(1.0, left - (monotonic() - begin))
            of_examples += [] if answer is None else [answer]
            if answer is not None and answer.is_failure:
                break
        if of_examples:
            any_verdict = True
            yield (summed := _worst_verdict(of_examples, len(examples) > 1))
            if name == "runs" and summed.is_failure:
                return
    if not any_verdict and set(names) >= set(laws()):
        yield from (unjudged_kind(example) for example in examples)


def _worst_verdict(of_examples: list[Verdict], several: bool) -> Verdict:
    """Return the worst verdict of a law over several examples."""
    order = ("broken", "slow", "declared", "holds", "nothing")
    worst = min(of_examples, key=lambda entry: order.index(entry.end))
    unjudged = tuple(
        (f"{entry.part}, {place}".removesuffix(", ") if several else place, why)
        for entry in of_examples
        for place, why in entry.unjudged
    )
    text = f"{worst.part}, {worst.text}" if several and worst.end in ("broken", "slow", "nothing") else worst.text
    return Verdict(worst.law, worst.part, worst.end, text, unjudged)


@contextmanager
def limit_time(seconds: float | None) -> Iterator[None]:
    """Raise TimeIsUp in the `with` block after a time limit.

    seconds: the time limit, or None for no limit.

    Without alarm signals (SIGALRM), as on Windows, and outside of the main thread there is no limit.
    """
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
