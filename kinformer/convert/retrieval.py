"""The conversion `retrieval`: a trained language model that looks up similar contexts in a datastore."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from kinformer.convert.support.changed_model import copy_facts, record_change
from kinformer.core.conversion import Conversion, Promise, WeightSource
from kinformer.core.model import Model, display_name
from kinformer.models.lm import LM
from kinformer.models.multi_exit import MultiExit
from kinformer.models.support.hidden_taps import LAST_FFN_INPUT, Tap
from kinformer.models.support.retrieval_lm import OWN, RetrievalLM


@dataclass(frozen=True)
class RetrievalConversion(Conversion):
    """Mix a frozen model's predictions with the tokens that followed similar contexts in a text.

        p = weight p_kNN + (1 - weight) p_LM

    Choose it to give a model a corpus, such as the first half of a book or the texts of a firm, without training. Each
    token then costs a search, and the datastore needs 2 d bytes per token of the corpus. With data, the command builds
    the datastore from its training part inside the new folder, and finds k, weight and temperature on its validation
    part. The weights stay as they are, and further training is refused because it would make the keys wrong.

    datastore: folder of a datastore that this model built. "datastore" is the folder of this name inside the new
        model's own folder, which may be moved. None: no datastore, and the model predicts as before.
    k: number of entries to look up; with data, the largest number that is tried.
    weight: share of their prediction; with data, it is found by measurement.
    temperature: temperature of the squared distances; with data, it is found by measurement.
    tap: name of the hidden state that is the key: "last_ffn_input", or a name as in `ctx.taps`.

    Source: Khandelwal et al., 2019, arXiv:1911.00172.
    """

    spellings: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"knn_lm": {}})

    datastore: str | None = None
    k: int = 1024
    weight: float = 0.25
    temperature: float = 1.0
    tap: str = LAST_FFN_INPUT

    def resolve(self, model: Model) -> Conversion:
        self._check(model)
        path = None if self.datastore in (None, OWN) else str(Path(str(self.datastore)).resolve())
        return replace(self, datastore=path or self.datastore, tap=Tap(model, self.tap).place)

    def restructure(self, model: Model) -> Model:
        self._check(model)
        assert isinstance(model, LM)
        model.requires_grad_(False)
        numbers: dict[str, Any] = {"k": self.k, "weight": self.weight, "temperature": self.temperature}
        new = RetrievalLM(model, self.datastore, self.tap, **numbers)
        return record_change(copy_facts(model, new), self)

    def weight_sources(self, source: Model, converted: Model) -> Mapping[str, WeightSource]:
        return {f"model.{name}": WeightSource("moved", (name,)) for name in source.state_dict()}

    def promise(self, model: Model) -> Promise:
        if self.datastore is None:
            return Promise(torch.inf, "without a datastore the model predicts as before")
        if not self.weight:
            return Promise(torch.inf, "the datastore has the weight 0")
        return Promise(0, "every prediction is mixed with the tokens of the datastore")

    def without_data(self) -> str:
        return "" if self.datastore else "without data there is no datastore, and the model predicts as before"

    def check_adaptation(self) -> None:
        raise ValueError(
            "a model with a datastore is not trained, because its keys would become wrong: got minutes or steps. Leave "
            "them out, or adapt the source first"
        )

    def _check(self, model: Model) -> None:
        """Raise ValueError for a model that cannot have a datastore."""
        if not isinstance(model, LM) or isinstance(model, MultiExit):
            raise ValueError(
                f"cannot give a datastore to this {display_name(model)}: expected a language model without early "
                "exits, such as gpt or llama"
            )
