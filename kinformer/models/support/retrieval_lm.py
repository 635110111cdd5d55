"""RetrievalLM: a kNN-LM whose datastore lies in a folder, and is opened when it is first needed."""

import filecmp
import importlib
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.layer import Context, Out
from kinformer.core.neighbours import Neighbours, Store
from kinformer.models.lm import LM
from kinformer.models.nearest_neighbour_lm import NearestNeighbourLM
from kinformer.models.support.hidden_taps import Tap

OWN = "datastore"  # the datastore in the folder of the model itself


class RetrievalLM(NearestNeighbourLM):
    """A `NearestNeighbourLM` that is saved and loaded together with its datastore.

    Without a datastore, and with weight 0, it returns the logits of its model unchanged.

    model: a trained `LM`.
    datastore: path of the datastore; "datastore" is the folder of this name in the model's own folder. None: none.
    tap, k, weight, temperature: as in `NearestNeighbourLM`.
    """

    def __init__(
        self,
        model: LM,
        datastore: str | None,
        tap: str,
        *,
        k: int = 1024,
        weight: float = 0.25,
        temperature: float = 1.0,
    ):
        super().__init__(model, _NoEntries(), tap, k=k, weight=weight, temperature=temperature)
        self.datastore = datastore
        self.place: Path | None = None  # of the open datastore

    def logits(
        self, tokens: Int[Tensor, "B T"], state: Any = None, ctx: Context | None = None, *, last: bool = False
    ) -> Out:
        """Return the log-probabilities of each next token; the model's logits without a datastore."""
        if self.datastore is None or not self.weight:
            return self.model.logits(tokens, state, ctx, last=last)
        if self.place is None:
            self.open_files()
        return super().logits(tokens, state, ctx, last=last)

    def open_files(self) -> None:
        """Open the datastore; ValueError, in one line, if it is missing or belongs to another model."""
        for name in ("tokenizer", "foreign_ends", "trained_length", "trained_on", "headless", "labels"):
            setattr(self.model, name, getattr(self, name))  # a loaded folder gives these facts to the outer model only
        if self.datastore is None:
            return
        place = self._own_place(self.folder) if self.datastore == OWN else Path(self.datastore)
        # Datastore is a public name of the package, which lies above the models, so it is imported late
        store = importlib.import_module("kinformer").Datastore.open(place)
        store.check(self.model)
        if (tap := Tap(self.model, store.tap).place) != self.tap:
            raise ValueError(
                f"the keys in {place} are the hidden states {tap}, but this model looks up by {self.tap}: give "
                f"tap={store.tap}, or another datastore"
            )
        self.store, self.place = store, place

    def write_files(self, folder: Path) -> None:
        """Put a copy of the model's own datastore into another folder; files on the same disk are linked.

        folder: the folder that the model is saved in.
        """
        if self.datastore != OWN or self.place is None or folder.resolve() == self.place.resolve().parent:
            return
        if (folder / OWN).exists():
            if _have_equal_files(self.place, folder / OWN):
                return
            raise FileExistsError(
                f"cannot save the datastore of the model: got {folder / OWN}, which holds another datastore. Give "
                "another folder"
            )
        shutil.copytree(self.place, folder / OWN, copy_function=_link)

    def _own_place(self, folder: Path | None) -> Path:
        if folder is None:
            raise ValueError("this model has a datastore in its own folder, but was not loaded from a folder")
        return folder / OWN


class _NoEntries(Store):
    """A store without entries, in place of a datastore that is not open."""

    @property
    def width(self) -> int:
        return 0

    def values(self) -> Int[Tensor, " N"]:
        return torch.zeros(0, dtype=torch.long)

    def search(self, queries: Float[Tensor, "N d"], k: int) -> Neighbours:
        empty = torch.zeros(len(queries), 0, dtype=torch.long, device=queries.device)
        return Neighbours(empty.float(), empty, empty)


def _have_equal_files(first: Path, second: Path) -> bool:
    """Return True if two folders hold files of the same names and contents."""
    names, others = ({path.relative_to(place) for path in place.rglob("*")} for place in (first, second))
    # two names of one file need no reading
    return names == others and all(
        (first / name).samefile(second / name)
        or ((first / name).is_dir() and (second / name).is_dir())
        or filecmp.cmp(first / name, second / name, shallow=False)
        for name in names
    )


def _link(source: str, target: str) -> str:
    """Make a second name of a file, or a copy on another disk; files of datastores are only ever replaced."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
