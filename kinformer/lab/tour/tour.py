"""The tour: train three models at equal time, time attention, and look at a trained model."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from kinformer.checkpoint.checkpoint import load
from kinformer.checkpoint.model_files import BEST
from kinformer.core.model import Model
from kinformer.lab.compare.samples import draw_sample
from kinformer.lab.data.text import TextData
from kinformer.lab.look import AttentionMaps, look
from kinformer.lab.machine import describe_machine
from kinformer.lab.member_choice import parse_member_text
from kinformer.lab.tour.attention_times import AttentionTime, time_attention
from kinformer.lab.train.budget import MinuteBudget, StepBudget
from kinformer.lab.train.history import History
from kinformer.lab.train.progress import ProgressDisplay, Status
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.settings import SAMPLE, Settings
from kinformer.lab.train.train import train

ENOUGH = 500_000  # tokens after which gpt is ahead of gzip -9 on the standard library of Python
SHORTEST = 20.0  # seconds of training of each model, even on a fast machine
LONGEST = 500.0  # planned seconds of the whole tour on a slow or busy machine
TURN = 10.0  # seconds that a model trains before the next one has its turn
PROBED = 60  # steps that measure the speed; the first quarter of them only warms up
MEASURES = 4  # measurements of each model on validation data
# the text whose attention maps are drawn: its last words can be copied from an earlier line
SHOWN = "for name in names:\n    print(name)\nfor path in paths:\n    print(pa"


TourProgress = Callable[[int, str], None]  # takes the planned seconds that are done, and a note


class Contender(NamedTuple):
    """A member of the tour with the batch and the learning rate that suit it (bench/README.md).

    member: the member, with its keywords.
    batch: rows of a training batch.
    length: tokens in each row.
    lr: highest learning rate.
    warmup: fraction of the training in which the rate rises.
    """

    member: str
    batch: int
    length: int
    lr: float
    warmup: float = 0.05

    @property
    def name(self) -> str:
        """The name of the member without its keywords."""
        return self.member.partition("(")[0]

    def settings(self, seed: int, valid_bytes: int = SAMPLE) -> Settings:
        """Return the settings of its training.

        seed: seed of the weights and batches.
        valid_bytes: bytes of validation data in each measurement.
        """
        return Settings(
            self.batch, self.length, self.lr, seed, warmup=self.warmup, measures=MEASURES, valid_bytes=valid_bytes
        )


CONTENDERS = (
    Contender("gpt(position=rotary)", 4, 128, 2e-3),
    Contender("transformer_xl(depth=3,segment=32,memory=64)", 32, 32, 4e-3, 0.1),
    Contender("linear_transformer(update=decayed)", 4, 128, 4e-3),
)


@dataclass(frozen=True)
class TourPlan:
    """Length of the parts of a tour, from the measured speed of the machine.

    speed: tokens per second in the training of the first contender.
    training: seconds of training of each contender.
    timing: seconds for the times of attention.
    measured: bytes of validation data in each measurement.
    """

    speed: float
    training: float
    timing: float = 25.0
    measured: int = SAMPLE

    @property
    def is_enough(self) -> bool:
        """Whether the first contender reads enough tokens to be ahead of gzip -9."""
        return self.speed * self.training >= ENOUGH

    @property
    def is_too_short(self) -> bool:
        """Whether the contenders train for less than one turn, in which they learn too little to show."""
        return self.training < TURN

    @property
    def measuring(self) -> float:
        """Approximate seconds of the measurements of one contender on validation data."""
        return MEASURES * self.measured / (2 * self.speed)

    @property
    def samples(self) -> float:
        """Approximate seconds of a sample text of one contender."""
        return 2.0

    @property
    def total(self) -> float:
        """Approximate seconds of the whole tour after the measurement of speed."""
        return len(CONTENDERS) * (self.training + self.measuring + self.samples) + self.timing

    def __str__(self) -> str:
        seconds = f"{self.training:.0f} second{'' if round(self.training) == 1 else 's'}"
        short = ". These minutes are too short for this machine; give more --minutes" if self.is_too_short else ""
        enough = f"gpt is ahead of gzip -9 after about {ENOUGH:,} tokens of Python's library"
        reached = "" if self.is_enough else ", which it does not reach here: this machine is slow, or busy"
        return (
            f"this machine trains gpt at {self.speed:,.0f} tokens/s; {enough}{reached}. Each of {len(CONTENDERS)} "
            f"models trains for {seconds}, and the tour takes about {self.total / 60:.1f} minutes{short}"
        )


@dataclass(frozen=True)
class TourModel:
    """One trained model of the tour.

    name: name of the member.
    contender: the member and its settings.
    parameters: number of parameters.
    history: its measurements.
    milliseconds: time per generated token.
    prompt, sample: a text of validation data, and its continuation by the model.
    """

    name: str
    contender: Contender
    parameters: int
    history: History
    milliseconds: float | None
    prompt: str
    sample: str


@dataclass(frozen=True)
class TourResults:
    """Everything that the page of the tour shows.

    plan: lengths of the parts.
    models: the trained models, in the order of the contenders.
    levels: bits per byte of compressors on the same validation bytes.
    times: times of attention.
    maps: attention maps of the first model.
    data: name of the data.
    measured: the validation data that each measurement reads, in words.
    seconds: length of the tour.
    machine: hardware and versions, in words.
    """

    plan: TourPlan
    models: Sequence[TourModel]
    levels: Mapping[str, float]
    times: Sequence[AttentionTime]
    maps: AttentionMaps
    data: str
    measured: str
    seconds: float
    machine: str = field(default_factory=lambda: f"{describe_machine()}; {date.today():%Y-%m-%d}")


def plan_tour(data: TextData, minutes: float | None = None, seed: int = 0) -> TourPlan:
    """Measure the speed of this machine, and plan a tour that trains gpt until it is ahead of gzip -9.

    A slow or busy machine gets less training than that, because the whole tour has a limit.

    data: the text to train on.
    minutes: length of the tour; None chooses it, at most about 9 minutes.
    seed: seed of the weights and batches.

    Errors: ValueError if the text is too short for the batches of a contender.
    """
    for contender in CONTENDERS:
        data.stream(parse_member_text(contender.member).build(seed), contender.batch, contender.length, seed, 1)
    first = CONTENDERS[0]
    model, settings = parse_member_text(first.member).build(seed), first.settings(seed, 2)
    clock = _StepClock()
    train(model, data, StepBudget(PROBED), replace(settings, measures=1), show=clock)
    speed, measured = clock.speed, min(SAMPLE, data.part("valid").bytes)
    rest = TourPlan(speed, 0.0, measured=measured).total
    longest = (LONGEST if minutes is None else 60 * minutes) - rest
    wanted = max(1.1 * ENOUGH / speed, SHORTEST) if minutes is None else math.inf
    return TourPlan(speed, min(wanted, max(longest / len(CONTENDERS), 1.0)), measured=measured)


class _StepClock(ProgressDisplay):
    """A display that keeps the speed of the last three quarters of a training."""

    def __init__(self) -> None:
        self.first: Status | None = None
        self.speed = 1.0

    def status(self, status: Status) -> None:
        if self.first is None and status.step >= PROBED // 4:
            self.first = status
        elif self.first is not None:
            passed = max(status.seconds - self.first.seconds, 1e-6)
            self.speed = (status.tokens - self.first.tokens) / passed


class _TourDisplay(ProgressDisplay):
    """A display of one training that reports to the progress of the tour.

    name: name of the model.
    before: planned seconds that were done before this turn.
    trained: seconds of training of this model before this turn.
    room: planned seconds of this turn; a turn that takes longer does not count as more.
    """

    def __init__(self, on_progress: TourProgress, name: str, before: float, trained: float, room: float) -> None:
        self.on_progress, self.name, self.before, self.trained, self.room = on_progress, name, before, trained, room
        self.done = before

    def status(self, status: Status) -> None:
        words = f"training {self.name}: step {status.step:,}, {status.train:.2f} bits per byte"
        self.done = self.before + min(status.seconds - self.trained, self.room)
        self.on_progress(round(self.done), words)

    def begin_measuring(self, count: int, unit: str) -> None:
        self.on_progress(round(self.done), f"measuring {self.name} on {count:,} bytes of validation data")


def train_in_turns(
    data: TextData, plan: TourPlan, out: Path, seed: int, on_progress: TourProgress
) -> dict[str, History]:
    """Train all contenders for equal time in turns of ten seconds, each in a run folder of its own.

    In turns, other load of the machine slows down all of them.

    data: the text to train on.
    plan: the lengths of the parts.
    out: folder of the tour; each contender is saved in the subfolder with its name.
    seed: seed of the weights and batches.
    on_progress: called with the planned seconds that are done.
    """
    turns = math.ceil(plan.training / TURN)
    histories: dict[str, History] = {}
    done = 0.0
    for turn in range(turns):
        for contender in CONTENDERS:
            folder = out / contender.name
            trained = histories[contender.name].seconds if turn else 0.0
            if not turn:
                RunFolder(folder).clear()
            model = parse_member_text(contender.member).build(seed)
            room = (plan.training + plan.measuring) / turns
            display = _TourDisplay(on_progress, contender.name, done, trained, room)
            histories[contender.name] = train(
                model,
                data,
                MinuteBudget(plan.training / 60),
                contender.settings(seed),
                folder=folder,
                show=display,
                resume=turn > 0,
                until=(turn + 1) / turns,
                claimed=True,
            )
            done += room
    return histories


def take_tour(
    data: TextData, plan: TourPlan, out: Path, seed: int = 0, on_progress: TourProgress = lambda done, note: None
) -> TourResults:
    """Train the contenders, time attention, let the models write, and look at the first one.

    data: the text to train on.
    plan: the lengths of the parts, as `plan_tour` returns it.
    out: folder of the tour, which the caller has locked; the trained models are saved there.
    seed: seed of the weights, batches and samples.
    on_progress: called with the planned seconds that are done, and a note.
    """
    began = monotonic()
    done = plan.total - plan.timing - len(CONTENDERS) * plan.samples
    histories = train_in_turns(data, plan, out, seed, on_progress)
    on_progress(round(done), "timing dense, windowed and linear attention")
    times = time_attention(
        plan.timing, on_progress=lambda part: on_progress(round(done + part * plan.timing), "timing attention")
    )
    models, best = [], dict[str, Model]()
    for number, contender in enumerate(CONTENDERS):
        on_progress(round(done + plan.timing + number * plan.samples), f"{contender.name} writes a text")
        best[contender.name] = model = load(out / contender.name / BEST)
        models.append(_measured(contender, model, histories[contender.name], data, seed))
    first = best[CONTENDERS[0].name]
    settings = CONTENDERS[0].settings(seed)
    on_progress(round(plan.total), "done")
    return TourResults(
        plan,
        models,
        data.levels(first, "valid", settings.length, settings.sample_bytes),
        times,
        look(first, SHOWN),
        data.name,
        data.describe_sample("valid", settings.length, settings.sample_bytes),
        monotonic() - began,
    )


def _measured(contender: Contender, model: Model, history: History, data: TextData, seed: int) -> TourModel:
    sample = draw_sample(model, data, contender.settings(seed))
    return TourModel(
        contender.name,
        contender,
        sum(parameter.numel() for parameter in model.parameters()),
        history,
        sample.milliseconds,
        sample.prompt.decode("utf-8", "replace"),
        sample.sample.decode("utf-8", "replace"),
    )
