"""The training loop, plain: a batch, a step, now and then a measurement and a checkpoint."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from kinformer.core.layer import State
from kinformer.core.state import detach
from kinformer.data.lanes import Lanes
from kinformer.data.text import Text
from kinformer.data.windows import Windows
from kinformer.train.budget import Budget
from kinformer.train.checkpoint import save, write
from kinformer.train.evaluate import carries, device_of, evaluate, unit
from kinformer.train.interrupt import interrupts
from kinformer.train.optimise import adamw, rate
from kinformer.train.progress import Show, Status

EVERY = 10.0  # seconds between saves before the first measurement


class TrainingStopped(RuntimeError):
    """A training that cannot go on, in one line that says what happened and what is kept."""


@dataclass(frozen=True)
class Settings:
    """Everything a training depends on besides its model, its text and its budget.

    `batch` windows or lanes of `length` tokens; `lr` is the highest learning rate; `clip` bounds the gradient's norm;
    `measures` says how often the valid text is measured, on its first `valid_bytes` bytes.
    """

    batch: int = 16
    length: int = 256
    lr: float = 1e-3
    seed: int = 0
    decay: float = 0.1
    clip: float = 1.0
    measures: int = 6
    valid_bytes: int = 65_536

    def __post_init__(self) -> None:
        for name in ("batch", "length", "measures"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, and {getattr(self, name)} came")
        for name in ("lr", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0, and {getattr(self, name)} came")
        if self.seed < 0 or self.valid_bytes < 2:
            raise ValueError("seed must not be negative, and valid_bytes must be at least 2")


@dataclass(frozen=True)
class Point:
    """A measurement: after so many steps and minutes of training, bits per byte in training (smoothed) and on valid."""

    step: int
    minutes: float
    train: float
    valid: float


@dataclass
class History:
    """What a training did: its points, and the tokens and seconds it took, measuring and saving not counted."""

    points: list[Point] = field(default_factory=list)
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def best(self) -> Point:
        """The point with the fewest bits per byte on valid: the model that the folder holds."""
        return min(self.points, key=lambda point: point.valid)

    @property
    def speed(self) -> float:
        """Tokens per second of training."""
        return self.tokens / self.seconds


class Training:
    """A training under way: the model, its optimiser, the state that it carries, and what it did so far."""

    def __init__(self, model: Any, text: Text, settings: Settings, folder: Path | None, show: Show) -> None:
        self.model, self.text, self.settings, self.folder, self.show = model, text, settings, folder, show
        self.stream: Lanes | Windows = _stream(model, text, settings)
        self.optimiser = adamw(model, settings.lr, settings.decay)
        self.history = History()
        self.state: State | None = None
        self.smooth: float | None = None
        self.saved = monotonic()

    def step(self, spent: float) -> None:
        """One optimiser step, at a point of the budget."""
        began = monotonic()
        tokens = self.stream.at(self.history.step).to(device_of(self.model))
        if isinstance(self.stream, Lanes) and self.stream.begins(self.history.step):
            self.state = self.model.start(len(tokens), self.stream.lane, device=tokens.device)
        loss = self.model(tokens, self.state, spent)
        self._finite("loss", loss.total)
        loss.total.backward()
        self._finite("gradient", clip_grad_norm_(self.model.parameters(), self.settings.clip))
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.lr * rate(spent)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        after_step(self.model, spent, loss.stats)
        self.state = detach(loss.state) if isinstance(self.stream, Lanes) else None
        bits = float(loss.parts["nll"].detach()) / math.log(2)
        self.smooth = bits if self.smooth is None else 0.95 * self.smooth + 0.05 * bits
        self.history.step += 1
        self.history.tokens += tokens[:, 1:].numel()
        self.history.seconds += monotonic() - began

    def _finite(self, what: str, value: Tensor) -> None:
        if bool(value.isfinite()):
            return
        kept = self._keep() if not self.history.points else f"the best so far is kept{self._place}"
        lr = self.settings.lr
        raise TrainingStopped(
            f"the {what} became {float(value.detach())} at step {self.history.step:,}: {kept}; try a lr below {lr:g}"
        )

    @property
    def _place(self) -> str:
        return f" in {self.folder}" if self.folder else ""

    def _keep(self) -> str:
        """Save the model as it is, and say so."""
        if self.folder is None:
            return "the model holds the weights before it"
        save(self.model, self.folder)
        return f"the weights before it are{self._place}"

    def report(self, spent: float) -> None:
        """Show where the training stands."""
        valid = self.history.points[-1].valid if self.history.points else None
        done = self.history
        name = unit(self.model)
        self.show.status(Status(done.step, spent, done.seconds, done.tokens, self.smooth or 0.0, valid, name))

    def measure(self) -> None:
        """Bits per byte on valid; the best model so far goes into the folder."""
        self.show.measuring(min(len(self.text.valid), self.settings.valid_bytes))
        score = evaluate(self.model, self.text.valid, self.settings.length, self.settings.valid_bytes)
        done = self.history
        done.points.append(Point(done.step, done.seconds / 60, self.smooth or 0.0, score.bits))
        if self.folder is None:
            return
        if done.best is done.points[-1]:
            save(self.model, self.folder)
        write(self.folder / "history.json", json.dumps(asdict(done), indent=2).encode())

    def keep_early(self) -> None:
        """Before the first measurement, save what there is now and then: until then a kill would lose all of it."""
        if self.folder is not None and not self.history.points and monotonic() - self.saved >= EVERY:
            save(self.model, self.folder)
            self.saved = monotonic()

    def interrupt(self) -> None:
        """Save what there is, and stop as Ctrl-C does."""
        if self.folder is not None:
            save(self.model, self.folder)
        raise KeyboardInterrupt(f"stopped at step {self.history.step:,}; the weights are kept{self._place}")


def _stream(model: nn.Module, text: Text, settings: Settings) -> Lanes | Windows:
    if carries(model):
        return Lanes(text.train, settings.batch, settings.length)
    return Windows(text.train, settings.batch, settings.length, settings.seed)


def after_step(model: nn.Module, progress: float, stats: Mapping[str, Tensor]) -> None:
    """Tell every module that wants to know, once, that the optimiser has made a step.

    Each gets the stats that were reported at its place or beneath, the place cut off their names; a module that stands
    at several places, as layers that share it have it, gets the sum over them.
    """
    told: dict[nn.Module, dict[str, Tensor]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if callable(getattr(module, "after_step", None)):
            mine = told.setdefault(module, {})
            for name, value in beneath(path, stats).items():
                mine[name] = mine[name] + value if name in mine else value
    with torch.no_grad():
        for module, mine in told.items():
            module.after_step(progress, mine)  # type: ignore[operator]


def beneath(path: str, stats: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stats that were reported at a module's path or beneath it.

    Layers report under the number of a sublayer, models under the name of a part; other names of a path (`body`,
    `layers`, `mechanism`) stand in no key.
    """
    found: dict[str, Tensor] = {}
    for key, value in stats.items():
        rest = key.split(".")
        for name in filter(None, path.split(".")):
            if len(rest) > 1 and rest[0] == name:
                rest = rest[1:]
            elif name.isdigit():
                break
        else:
            found[".".join(rest)] = value
    return found


def fit(
    model: nn.Module,
    text: Text,
    budget: Budget,
    settings: Settings | None = None,
    *,
    folder: Path | None = None,
    show: Show | None = None,
) -> History:
    """Train a model on a text; the best of it by bits per byte on valid is kept in the folder, where one is given.

    Before valid is first measured the folder holds the model as it is, saved every ten seconds.
    A model that is `recurrent` is trained on lanes, its state carried and detached; another on random windows. After
    every optimiser step each module that has `after_step(progress, stats)` is called with its own stats. Ctrl-C saves
    what there is and raises KeyboardInterrupt; a loss or gradient that is not finite raises TrainingStopped before it
    touches a weight, and a full disk raises OSError: what was saved before is kept. Raises ValueError where a text is
    too short.
    """
    settings = settings or Settings()
    if len(text.valid) < 2:
        raise ValueError(f"{text.name} leaves {len(text.valid)} bytes to validate on, and 2 are needed; give more text")
    training = Training(model.train(), text, settings, folder, show or Show())
    with interrupts() as interrupted:
        spent = 0.0
        while spent < 1:
            training.step(spent)
            before, spent = spent, budget.spent(training.history.step, training.history.seconds)
            training.report(spent)
            training.keep_early()
            if interrupted():
                training.interrupt()
            if spent >= 1 or int(spent * settings.measures) > int(before * settings.measures):
                training.measure()
    return training.history
