"""Verdicts: each law over a user's examples, with a sentence for what it found and a limit of time."""

import functools
import importlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from kinformer.cli.own import Example, Own, told
from kinformer.core.loss import Penalty
from kinformer.core.pattern import Pattern
from kinformer.execute import Impl
from kinformer.laws import impl, merge, pattern, targets
from kinformer.laws.batch import holds_tensors
from kinformer.laws.broken import Broken
from kinformer.laws.compare import smallest
from kinformer.laws.subject import Subject
from kinformer.laws.subjects import subjects

# in the order in which they run, with what is true where one holds
LAWS = {
    "runs": "a plain call gives finite numbers of the right shape",
    "pattern": "what it says of its reach, live positions, cache and cover is true",
    "impl": "every executor reads the same with it",
    "merge": "reads of pieces of the keys merge to the read of all",
    "mutation": "a call changes nothing but what it returns",
    "peek": "it reads nothing ahead of what it says",
    "rows": "rows of its state can be reset, picked and copied",
    "chunk": "cut anywhere, the state carried on, it gives what one call gives",
    "padding": "padding changes nothing, left or right, in values and gradients",
    "batch_mates": "a row does not depend on the others of its batch",
    "empty_rows": "where there is nothing to read it gives 0, and nothing is NaN",
    "any_length": "rows of any number of tokens work",
    "dtype": "bfloat16 and float16 stay finite and close",
    "save_load": "what is saved and loaded computes the same",
    "targets": "each penalty moves exactly the parameters it names",
    "compiles": "it compiles as one graph",
    "learns": "it learns to copy from as far as it reads, and no further",
}
BY_A_LAYER = set(LAWS) - {"pattern", "impl", "merge", "targets", "compiles", "learns"}
WITH_A_STATE = ("rows", "chunk")
PATTERN_LENGTH, BATCH_LENGTH = 22, 13
EXECUTORS: tuple[Impl, ...] = ("reference", "sdpa")


@dataclass(frozen=True)
class Verdict:
    """What a law found: it holds, it is broken, BREAKS says so, there was no time, or there is nothing to judge."""

    law: str
    end: Literal["holds", "broken", "declared", "slow", "nothing"]
    text: str

    @property
    def failed(self) -> bool:
        """Does it end the check with exit code 1?"""
        return self.end in ("broken", "slow")


@dataclass(frozen=True, eq=False)
class Job:
    """One law over one example in one place; `where` says which, where there are several."""

    where: str
    check: Callable[[], None]
    subject: Subject | None = None


class TimeIsUp(BaseException):
    """The limit was reached. No Exception, so that nobody on the way takes it for one of the part."""


def verdicts(own: Own, laws: tuple[str, ...], limit: float, tell: Callable[[str], None]) -> Iterator[Verdict]:
    """The verdicts of laws over a file, as they are found; `tell` hears what is being done.

    Where a part does not run at all, nothing else is tried.
    """
    for law in laws:
        try:
            found = _jobs(own, law)
        except Exception as error:
            yield Verdict(law, "broken", f"it cannot be put to work: {told(error, own.path)}")
            return
        if not found:
            continue
        verdict = _judge(own, law, found, limit, tell)
        yield verdict
        if law == "runs" and verdict.failed:
            return


def _judge(own: Own, law: str, jobs: list[Job], limit: float, tell: Callable[[str], None]) -> Verdict:
    reason = own.breaks.get(law)
    stateless: list[str] = []
    for n, job in enumerate(jobs):
        tell(f"{law}: {n + 1} of {len(jobs)}")
        begin = monotonic()
        try:
            with limited(limit):
                job.check()
                stateless += _stateless(law, job)
        except TimeIsUp:
            text = f"no answer in {limit:g} s; make the example smaller (width 16, 2 heads), or give --seconds"
            return Verdict(law, "slow", f"{job.where}{text}")
        except Exception as error:
            if reason:
                return Verdict(law, "declared", f"BREAKS: {reason}")
            sentence = str(error) if isinstance(error, Broken) else f"it fails: {told(error, own.path)}"
            return Verdict(law, "broken", f"{job.where}{sentence}")
        limit = max(1.0, limit - (monotonic() - begin))
    if reason:
        return Verdict(law, "broken", f"BREAKS is out of date: every example keeps this law; drop {law!r} from it")
    return Verdict(law, "nothing", stateless[0]) if len(stateless) == len(jobs) else Verdict(law, "holds", LAWS[law])


def _stateless(law: str, job: Job) -> list[str]:
    """For a law of states: what a part without one says of that."""
    if law not in WITH_A_STATE or job.subject is None:
        return []
    text = job.subject.no_state(job.subject.build())
    return [f"no state to judge: {text}"] if text else []


def _jobs(own: Own, law: str) -> list[Job]:
    found = [job for one in own.examples for job in _of_example(own, law, one)]
    several = len(own.examples) > 1
    return found if several else [Job(_shorter(job.where), job.check, job.subject) for job in found]


def _shorter(where: str) -> str:
    """Without the label of the only example."""
    return where.partition(", ")[2] if ", " in where else ""


def _of_example(own: Own, law: str, one: Example) -> Iterator[Job]:
    where = f"{one.label}: "
    if law == "pattern" and isinstance(one.made, Pattern):
        length = BATCH_LENGTH if holds_tensors(one.made) else PATTERN_LENGTH
        yield Job(where, functools.partial(smallest, _pattern, length, one.made))
    elif law == "impl" and isinstance(one.made, Pattern):
        for executor in EXECUTORS:
            yield Job(f"{one.label}, {executor}: ", functools.partial(impl.check, executor, one.made))
    elif law == "merge" and one.kind == "mechanisms":
        yield Job(where, lambda: merge.check(one.value()))
    elif law in BY_A_LAYER:
        check = importlib.import_module(f"kinformer.laws.{law}").check
        yield from _placed(one, check)
    elif law == "learns" and one.kind == "members":
        yield from _placed(one, importlib.import_module("kinformer.laws.learns").check)
    elif law == "compiles" and getattr(own.module, "COMPILES", False):
        yield from _placed(one, importlib.import_module("kinformer.laws.compiles").check)
    elif law == "targets" and not isinstance(one.made, Pattern):
        for penalty in (value for value in vars(own.module).values() if isinstance(value, Penalty)):
            yield from _placed(one, functools.partial(_targets, penalty=penalty))


def _placed(one: Example, check: Callable[[Subject], None]) -> Iterator[Job]:
    for subject in put(one):
        where = f"{one.label}, {subject.place}: " if subject.place else f"{one.label}: "
        yield Job(where, functools.partial(check, subject), subject)


def put(one: Example) -> tuple[Subject, ...]:
    """The layers and models in which an example is judged."""
    return subjects(one.kind, one.title, one.value)


def _pattern(length: int, one: Pattern) -> None:
    pattern.check(one, length)


def _targets(subject: Subject, penalty: Penalty) -> None:
    if targets.reports(subject, penalty):
        targets.check(subject, penalty)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeIsUp after so many seconds, where the system can: in the main thread, where there are alarms."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
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
