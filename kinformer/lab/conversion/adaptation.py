"""Adaptation of a converted model: a short training beside its source, which is the teacher."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinformer.core.model import Model
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
    teach: weight of the loss that compares predictions with the source's; 0 trains without the source.
    folder: folder of the run, which the caller has locked; or None.
    resume: continue the training in the folder.
    show: display of the progress.
    """

    budget: Budget
    settings: Settings | None = None
    teach: float = 1.0
    folder: Path | None = None
    resume: bool = False
    show: ProgressDisplay | None = None

    def run(self, source: Model, converted: Model, text: TextData, new: tuple[str, ...]) -> dict[str, Any]:
        """Train the converted model in place, and return a description of the training.

        source: the teacher.
        converted: the model to train.
        text: the data.
        new: names of the parameters that the source does not have; LoRA trains them in full.
        """
        settings = self.settings or adaptation_settings()
        if converted.longest is not None:
            settings = replace(settings, length=min(settings.length, converted.longest))
        if (lora := settings.adapters) is not None and not lora.train:
            settings = replace(settings, lora=replace(lora, train=new))
        model, taught = converted, False
        if self.teach > 0 and isinstance(converted, LM) and isinstance(source, LM) and not converted.lanes:
            model, taught = with_teacher(converted, source, logits=self.teach), True
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
        count = sum(p.numel() for p in converted.parameters()) if lora is None else lora.plan(converted).trained
        facts = {
            "steps": history.step,
            "minutes": round(history.seconds / 60, 2),
            "batch": settings.batch,
            "length": settings.length,
            "lr": settings.recipe(converted).peak,
            "trained weights": count,
            "LoRA rank": None if lora is None else lora.rank,
            "loss of the source's predictions": self.teach if taught else None,
        }
        return {name: value for name, value in facts.items() if value is not None}


def adaptation_settings(lora: LoRA | None = ADAPTERS, **changed: Any) -> Settings:
    """Return the settings of an adaptation on a small machine.

    lora: low-rank adaptation of the weights that the source has; None trains all of them, at a lower rate.
    changed: other fields of `Settings`.
    """
    usual = {"batch": BATCH, "length": LENGTH, "measures": 1, "valid_bytes": VALID_BYTES, "decay": 0.0}
    settings = Settings(**{**usual, **changed}, lora=lora)
    return settings if lora is not None else settings.fine_tuning()
