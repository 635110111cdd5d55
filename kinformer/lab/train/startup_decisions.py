"""Decisions: facts about a model that a training tests once before the first step and saves."""

from dataclasses import dataclass
from typing import Any

from kinformer.checkpoint.model_files import CheckpointError
from kinformer.core.batch import TokenBatch
from kinformer.core.model import Model, Predictor
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data
from kinformer.lab.data.data_fits_model import refuse_unfit
from kinformer.lab.data.text import TextData
from kinformer.lab.train.distributed import SingleProcess
from kinformer.lab.train.packs_documents import packs_documents
from kinformer.lab.train.reads_ahead import reads_ahead, refuse_no_state
from kinformer.lab.train.settings import Settings


@dataclass(frozen=True)
class Decisions:
    """Facts about a model that a new training tests; a resumed training reads them from its folder.

    They determine the batches. They are not tested again, because trained weights could give other results.

    reads_ahead: why the model reads ahead (its outputs depend on later tokens), as one of its parts declares; "" if it
        does not.
    packs_documents: True if documents may share a row, because the model reads each one as if it had its own row.
    """

    reads_ahead: str = ""
    packs_documents: bool = False


def decide(model: Model, data: Data | Batches, settings: Settings, group: SingleProcess) -> Decisions:
    """Test the model for a new training, with rows of the training's length.

    All processes of a training get the same decisions. Documents share rows only if no process finds a difference.

    model: the model.
    data: the training data.
    settings: settings of the training.
    group: the processes that share the training.

    Errors: ValueError if the model does not read such data, or if its outputs depend on later tokens although no part
    declares it. ValueError if it predicts the next token but cannot decode.
    """
    if isinstance(data, Data):
        refuse_unfit(model, data, settings.length)
    length = row_length(model, data, settings)
    reason = reads_ahead(model, length)
    refuse_no_state(model, settings.length)
    shares = isinstance(data, TextData) and bool(data.begins) and not model.lanes and packs_documents(model, length)
    return Decisions(reason, packs_documents=not group.reduce_max(not shares))


def row_length(model: Model, data: Data | Batches, settings: Settings) -> int:
    """Return the length of the longest training row.

    For a text it is at most the length of the text. For given batches it is the row length of the first batch.

    model: the model.
    data: the training data.
    settings: settings with the length.
    """
    if isinstance(data, TextData):
        return min(settings.length, len(data.train))
    if isinstance(data, Data):
        return data.longest_length(settings.length) or settings.length
    if not isinstance(model, Predictor):
        return settings.length
    batch = data.at(0)
    return (batch.tokens if isinstance(batch, TokenBatch) else model.inputs(batch)[0]).shape[1]


def saved_decisions(state: dict[str, Any]) -> Decisions | None:
    """Return the `Decisions` of a saved run; None if an earlier version saved it without them.

    state: the training state of the run.

    Errors: CheckpointError if another version of kinformer saved facts that this version does not know.
    """
    if "decisions" not in state:
        return None
    try:
        return Decisions(**state["decisions"])
    except TypeError as error:
        raise CheckpointError(
            f"cannot resume: another version of kinformer saved this run with facts that this version does not know "
            f"({error}). Resume with that version"
        ) from error
