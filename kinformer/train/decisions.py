"""Decisions: what a training finds out about its model once, before the first step, and keeps in its folder."""

from dataclasses import dataclass
from typing import Any

from kinformer.core.batch import TokenBatch
from kinformer.core.model import Model, Predictor
from kinformer.data.batches import Batches
from kinformer.data.kind import Data, refuse_unfit
from kinformer.data.text import Text
from kinformer.train.checkpoint import CheckpointError
from kinformer.train.packs import packs
from kinformer.train.parallel import Alone
from kinformer.train.peek import reads_ahead, refuse_no_state
from kinformer.train.settings import Settings


@dataclass(frozen=True)
class Decisions:
    """What a training finds out about its model once, and keeps when it is resumed.

    Batches follow from them. A resumed training reads them from its folder: trained weights could decide otherwise.

    reads_ahead: the reason by which a part of the model declares that it reads ahead; "" if the model does not.
    packs_documents: documents share rows, since the model reads them in one row as it reads each alone.
    """

    reads_ahead: str = ""
    packs_documents: bool = False


def decide(model: Model, data: Data | Batches, settings: Settings, group: Alone) -> Decisions:
    """The decisions for a training that begins, at the sizes of its own rows.

    All processes of a training decide alike: what one of them finds holds for all.

    Errors: ValueError for data that the model does not read, for a model that reads ahead although no part of it
    declares so, and for a model that predicts what comes next and cannot decode.
    """
    if isinstance(data, Data):
        refuse_unfit(model, data, settings.length)
    length = row_length(model, data, settings)
    reason = reads_ahead(model, length)
    refuse_no_state(model, settings.length)
    shares = isinstance(data, Text) and bool(data.begins) and not model.lanes and packs(model, length)
    return Decisions(reason, packs_documents=not group.most(not shares))


def row_length(model: Model, data: Data | Batches, settings: Settings) -> int:
    """The tokens of the longest row that is learned from, no more than a text has; of batches, those of the first."""
    if isinstance(data, Text):
        return min(settings.length, len(data.train))
    if isinstance(data, Data):
        return data.longest(settings.length) or settings.length
    if not isinstance(model, Predictor):
        return settings.length
    steps = model.inputs(data.at(0))[0]
    return (steps.tokens if isinstance(steps, TokenBatch) else steps).shape[1]


def saved(state: dict[str, Any]) -> Decisions | None:
    """The decisions that a run has written down; None for a run of a version that wrote none down.

    Errors: CheckpointError for decisions that this version does not know.
    """
    if "decisions" not in state:
        return None
    try:
        return Decisions(**state["decisions"])
    except TypeError as error:
        raise CheckpointError(
            f"the run holds decisions of another version of kinformer ({error}); go on with that version"
        ) from error
