"""kNN-LM settings: a file in a model's folder with the numbers that `kinformer knn-lm` has tuned."""

import dataclasses
import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import write
from kinformer.core.from_json import from_json
from kinformer.lab.datastore.datastore import Datastore, DatastoreError
from kinformer.models.continuous_cache import ContinuousCache
from kinformer.models.lm import LM
from kinformer.models.nearest_neighbour_lm import NearestNeighbourLM, refuse_exits
from kinformer.models.support.hidden_taps import Tap
from kinformer.models.support.wrapped_lm import WrappedLM

FILE = "knn-lm.json"
EDITION = 1  # version of the file format


@dataclass(frozen=True)
class KnnLMSettings:
    """The tuned numbers of a model with a datastore (`NearestNeighbourLM`) and an optional cache.

    The cache (`ContinuousCache`) holds recent hidden states of the current text.

    datastore: the folder of the datastore.
    store: the datastore's hash, see `hash_manifest`.
    k, weight, temperature: number of neighbours, share of their prediction, and temperature of their distances.
    size, share, theta: tokens in the cache, share of its prediction, and sharpness of its distribution. There is no
        cache if the size is 0.
    """

    datastore: str
    store: str
    k: int
    weight: float
    temperature: float
    size: int = 0
    share: float = 0.0
    theta: float = 0.0

    def add_cache(self, model: LM) -> LM | WrappedLM:
        """Return the model with its continuous cache; the model itself if the size is 0.

        model: the language model.
        """
        return ContinuousCache(model, size=self.size, weight=self.share, theta=self.theta) if self.size else model

    def add_datastore(self, model: LM, store: Datastore) -> NearestNeighbourLM:
        """Return the model with its continuous cache, if any, and its datastore.

        model: the language model.
        store: the datastore.
        """
        place = Tap(model, store.tap).place
        numbers: dict[str, Any] = {"k": self.k, "weight": self.weight, "temperature": self.temperature}
        return NearestNeighbourLM(self.add_cache(model), store, place, **numbers)

    def save(self, folder: Path) -> None:
        """Write the settings file into a model's folder, in one step; OSError, in one line, if that fails.

        folder: the folder of the model.
        """
        write(folder / FILE, f"{json.dumps({'edition': EDITION, **dataclasses.asdict(self)}, indent=2)}\n".encode())

    @classmethod
    def load(cls, folder: Path) -> "KnnLMSettings":
        """Read the settings from a model's folder; DatastoreError if they are missing or damaged.

        folder: the folder of the model.
        """
        path = folder / FILE
        try:
            settings = from_json(path.read_bytes())
        except FileNotFoundError as error:
            tune = f"`kinformer knn-lm {shlex.quote(str(folder))} --datastore STORE --data text=PATH`"
            raise DatastoreError(f"{folder} has no {FILE}; tune the kNN-LM first: {tune}") from error
        except OSError as error:
            raise DatastoreError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise DatastoreError(f"{path} is truncated or not JSON: {error}; run kinformer knn-lm again") from error
        if not isinstance(settings, dict) or settings.pop("edition", None) != EDITION:
            raise DatastoreError(f"{path} has another format, not edition {EDITION}; run kinformer knn-lm again")
        if {name: type(value) for name, value in settings.items()} != {
            field.name: field.type for field in dataclasses.fields(cls)
        }:
            raise DatastoreError(f"{path} is damaged: it has wrong entries; run kinformer knn-lm again")
        return cls(**settings)


def hash_manifest(store: Datastore) -> str:
    """Return the SHA-256 of a datastore's manifest, which distinguishes it from other datastores.

    store: the datastore.
    """
    return hashlib.sha256(json.dumps(dataclasses.asdict(store.manifest), sort_keys=True).encode()).hexdigest()


def load_nearest(model: LM, folder: Path, datastore: Path | None = None) -> NearestNeighbourLM:
    """Return a model with the datastore and the numbers that `kinformer knn-lm` tuned for it.

    model: the model.
    folder: its folder, with the settings.
    datastore: the folder of the datastore, if it was moved.

    Errors: DatastoreError, in one line, if the model was never tuned, or if the datastore is missing, damaged or
    different; ValueError if the model has early exits.
    """
    refuse_exits(model)
    settings = KnnLMSettings.load(folder)
    place = datastore or Path(settings.datastore)
    if datastore is None and not place.is_dir():
        raise DatastoreError(f"the datastore {place} of {folder / FILE} is missing; give its folder with --datastore")
    store = Datastore.open(place)
    store.check(model)
    if hash_manifest(store) != settings.store:
        raise DatastoreError(
            f"{place} is not the datastore that {folder / FILE} was tuned on; run kinformer knn-lm with this one"
        )
    return settings.add_datastore(model, store)
