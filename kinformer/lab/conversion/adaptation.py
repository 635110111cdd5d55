"""Adaptation of a converted model: a short training beside its source, which is the teacher."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from kinformer.core.checks import check_in_range
from kinformer.core.model import Model
from kinformer.lab.data.batches import device_of
from kinformer.lab.data.text import TextData
from kinformer.lab.train.budget import Budget
from kinformer.lab.train.lora import LoRA
from kinformer.lab.train.progress import ProgressDisplay
from kinformer.lab.train.reads_ahead import SHORT, reads_ahead
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.startup_decisions import Decisions
from kinformer.lab.train.train import train
from kinformer.lab.train.with_teacher import with_teacher
from kinformer.models.lm import LM

ADAPTERS = LoRA(8)  # the rank of Zhang et al., 2024, arXiv:2410.10254
BATCH, LENGTH = 1, 512  # a step of a model with 135 million weights takes less than 6 GB
VALID_BYTES = 16_384  # bytes of validation data in each measurement


@dataclass(frozen=True)
class Adaptation:
    """Settings of the training after a conversion.

    budget: its length.
    settings: settings of the training; `adaptation_settings()` if None.
    teach: weight of the loss that compares predictions with the source's; 0 trains without the source. A source that
        teaches reads the same rows, so they are at most as long as the rows of its own training.
    folder: folder of the run, which the caller has locked; or None.
    resume: continue the training in the folder.
    show: display of the progress.

    Errors: ValueError if `teach` is negative.
    """

    budget: Budget
    settings: Settings | None = None
    teach: float = 1.0
    folder: Path | None = None
    resume: bool = False
    show: ProgressDisplay | None = None

    def __post_init__(self) -> None:
        check_in_range("teach", self.teach, 0, math.inf, open_end=True)

    def check(self, converted: Model, new: tuple[str, ...]) -> None:
        """Raise ValueError, before anything is computed, for a model that LoRA cannot adapt.

        converted: the model to train, with any weights.
        new: names of the parameters that the source does not have.
        """
        settings = self._fitted_settings(None, converted, new)
        if settings.adapters is not None:
            settings.adapters.plan(converted)

    def run(self, source: Model, converted: Model, text: TextData, new: tuple[str, ...]) -> dict[str, Any]:
        """Train the converted model in place, and return a description of the training.

        source: the teacher. Its mode and its device are as before in the end.
        converted: the model to train.
        text: the data.
        new: names of the parameters that the source does not have; LoRA trains them in full, with its own `train`.

        Errors: the errors of `train` and `LoRA.plan`.
        """
        no_teacher = self._why_no_teacher(source, converted)
        settings = self._fitted_settings(None if no_teacher else source, converted, new)
        wanted = (self.settings or adaptation_settings()).length
        if self.show is not None and settings.length < wanted and not no_teacher:
            self.show.note(
                f"rows have {settings.length:,} tokens instead of {wanted:,}, because the source cannot teach longer "
                "ones; give teach 0 to train on longer rows without it"
            )
        with _unchanged(source):
            model = converted
            if not no_teacher:
                model = with_teacher(cast(LM, converted), cast(LM, source), logits=self.teach)
            # a short row shows whether the new mechanism reads ahead; long ones would take a minute of a large model
            decisions = None if self.resume else Decisions(reads_ahead(converted, SHORT))
            history = train(
                model,
                text,
                self.budget,
                settings,
                folder=self.folder,
                show=self.show,
                resume=self.resume,
                claimed=True,
                decisions=decisions,
            )
        converted.eval()
        lora = settings.adapters
        trained = sum(p.numel() for p in converted.parameters() if p.requires_grad)
        facts = {
            "steps": history.step,
            "minutes": round(history.seconds / 60, 2),
            "batch": settings.batch,
            "length": settings.length,
            "lr": settings.recipe(converted).peak,
            "trained weights": trained if lora is None else lora.plan(converted).trained,
            "LoRA rank": None if lora is None else lora.rank,
            "weight of the teacher's loss": None if no_teacher else self.teach,
            "no teacher because": no_teacher or None,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def _why_no_teacher(self, source: Model, converted: Model) -> str:
        """Return the reason why the source does not teach the converted model; "" if it does."""
        if not self.teach:
            return "teach is 0"
        for role, model in (("source", source), ("converted model", converted)):
            if not isinstance(model, LM):
                return f"the {role} is of class {type(model).__name__}, and only an LM can teach or be taught"
            if model.lanes:
                return f"the {role} continues earlier rows (lanes), and a teacher reads whole rows"
        return ""

    def _fitted_settings(self, teacher: Model | None, converted: Model, new: tuple[str, ...]) -> Settings:
        """Return the settings with a length that the models can read, and with LoRA that trains the new parts."""
        settings = self.settings or adaptation_settings()
        lengths = [converted.longest]
        if teacher is not None:
            # beyond the rows of its training, a teacher predicts badly; beyond its learned positions, it fails
            lengths += [teacher.longest, teacher.window, teacher.trained_length]
        settings = replace(settings, length=min([settings.length, *(x for x in lengths if x is not None)]))
        if (lora := settings.adapters) is None:
            return settings
        trainable = {name for name, p in converted.named_parameters() if p.requires_grad}
        names = dict.fromkeys((*lora.train, *(name for name in new if name in trainable)))
        return replace(settings, lora=replace(lora, train=tuple(names)))


@contextmanager
def _unchanged(model: Model) -> Iterator[None]:
    """Enter a context that may change the mode and the device of a model; restore them at the exit.

    model: the model.
    """
    modes, device = [(module, module.training) for module in model.modules()], device_of(model)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        if device_of(model) != device:
            model.to(device)


def adaptation_settings(lora: LoRA | None = ADAPTERS, **changed: Any) -> Settings:
    """Return the settings of an adaptation on a small machine.

    lora: low-rank adaptation of the weights that the source has; None trains all of them, at a lower rate.
    changed: other fields of `Settings`.
    """
    usual = {"batch": BATCH, "length": LENGTH, "measures": 1, "valid_bytes": VALID_BYTES, "decay": 0.0}
    settings = Settings(**{**usual, **changed}, lora=lora)
    return settings if lora is not None else settings.fine_tuning()
