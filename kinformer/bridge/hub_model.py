"""HubModel: models of kinformer on the Hugging Face Hub, through the mixin of huggingface_hub."""

import os
from pathlib import Path
from typing import Any

from torch import nn

from kinformer.bridge.hf_export import save_for_hf
from kinformer.bridge.load import load
from kinformer.bridge.model_card import model_card
from kinformer.checkpoint.atomic_files import write

try:
    from huggingface_hub import PyTorchModelHubMixin
except ImportError as error:
    raise ImportError(
        "HubModel needs the package huggingface_hub, which is not installed; run `pip install '.[hf]'` in kinformer's "
        "folder"
    ) from error


class HubModel(PyTorchModelHubMixin, library_name="kinformer", tags=["kinformer"]):
    """A model as an entry of the Hugging Face Hub: `HubModel(model).push_to_hub("ORG/NAME")`.

    `HubModel.from_pretrained("ORG/NAME")` returns the model itself, as `load` does for a folder. The entry has the
    files of `save(model, folder, format="hf")` and a model card, so transformers loads it too. A model has the
    methods `push_to_hub` and `save_pretrained` of this class. All options of the mixin for writing work, such as
    `private=True`; for reading, only `revision=` does.

    model: a model of text that a member built.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write the files of the model, and a model card if there is none."""
        written = save_for_hf(self.model, save_directory)
        card = save_directory / "README.md"
        if not card.exists():
            write(card, model_card(self.model, written, save_directory.name))

    @classmethod
    def _from_pretrained(cls, *, model_id: str, revision: str | None, **options: Any) -> Any:
        """Return the model of a folder, or of an entry of the Hub, as `load` does for hf:ORG/NAME."""
        if os.path.isdir(model_id):
            return load(model_id)
        return load(f"hf:{model_id}" if revision is None else f"hf:{model_id}@{revision}")
