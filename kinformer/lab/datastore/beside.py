"""Beside: what `kinformer knn-lm` found for a model and a datastore, kept in the model's folder; the two together."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinformer.checkpoint.files import write
from kinformer.core.from_json import from_json
from kinformer.lab.datastore.datastore import Datastore, DatastoreError
from kinformer.models.continuous_cache import ContinuousCache
from kinformer.models.lm import LM
from kinformer.models.nearest_neighbour_lm import NearestNeighbourLM, refuse_exits
from kinformer.models.support.taps import Tap
from kinformer.models.support.wrapped_lm import WrappedLM

FILE = "knn-lm.json"
EDITION = 1  # of its form


@dataclass(frozen=True)
class Tuned:
    """The numbers of a `NearestNeighbourLM` for one model and datastore, and of a `ContinuousCache` beneath it, if any.

    datastore: the folder that it was tuned on. store: what tells it from others.
    k, weight, temperature: of `NearestNeighbourLM`.
    size, share, theta: of the cache; a size of 0 is none.
    """

    datastore: str
    store: str
    k: int
    weight: float
    temperature: float
    size: int = 0
    share: float = 0.0
    theta: float = 0.0

    def cached(self, model: LM) -> LM | WrappedLM:
        """The model, over its cache if there is one."""
        return ContinuousCache(model, size=self.size, weight=self.share, theta=self.theta) if self.size else model

    def beside(self, model: LM, store: Datastore) -> NearestNeighbourLM:
        """The model with all of it."""
        place = Tap(model, store.tap).place
        numbers: dict[str, Any] = {"k": self.k, "weight": self.weight, "temperature": self.temperature}
        return NearestNeighbourLM(self.cached(model), store, place, **numbers)

    def save(self, folder: Path) -> None:
        """Write it beside the model, in one step. OSError, in one clear line, where it cannot be written."""
        write(folder / FILE, f"{json.dumps({'edition': EDITION, **dataclasses.asdict(self)}, indent=2)}\n".encode())

    @classmethod
    def load(cls, folder: Path) -> "Tuned":
        """What lies beside a model; DatastoreError where nothing does, or nothing that can be."""
        path = folder / FILE
        try:
            told = from_json(path.read_bytes())
        except FileNotFoundError as error:
            tune = f"kinformer knn-lm {folder} --datastore DS --data text=PATH"
            raise DatastoreError(f"{folder} has no {FILE}, which is tuned first: {tune}") from error
        except OSError as error:
            raise DatastoreError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise DatastoreError(f"{path} is truncated or no JSON: {error}; run kinformer knn-lm again") from error
        if not isinstance(told, dict) or told.pop("edition", None) != EDITION:
            raise DatastoreError(f"{path} is not of edition {EDITION} of its form; run kinformer knn-lm again")
        if {name: type(value) for name, value in told.items()} != {
            one.name: one.type for one in dataclasses.fields(cls)
        }:
            raise DatastoreError(f"{path} is damaged: it does not say what it must; run kinformer knn-lm again")
        return cls(**told)


def identity(store: Datastore) -> str:
    """What tells a datastore from others: the SHA-256 of all that it says of itself."""
    return hashlib.sha256(json.dumps(dataclasses.asdict(store.manifest), sort_keys=True).encode()).hexdigest()


def nearest(model: LM, folder: Path, datastore: Path | None = None) -> NearestNeighbourLM:
    """A model of a folder beside the datastore that it was tuned on, which may lie elsewhere now.

    Errors: DatastoreError, in one line, where it was never tuned, and for a datastore that is missing, damaged or
    another; ValueError for a model that tokens leave early.
    """
    refuse_exits(model)
    tuned = Tuned.load(folder)
    place = datastore or Path(tuned.datastore)
    if datastore is None and not place.is_dir():
        raise DatastoreError(f"the datastore {place} of {folder / FILE} is no longer there; give --datastore its place")
    store = Datastore.open(place)
    store.check(model)
    if identity(store) != tuned.store:
        raise DatastoreError(
            f"{place} is not the datastore that {folder / FILE} was tuned on; run kinformer knn-lm with this one"
        )
    return tuned.beside(model, store)
