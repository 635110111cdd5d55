"""HubModel: models of kinformer on the Hugging Face Hub, through the mixin of huggingface_hub."""

import os
from pathlib import Path
from typing import Any

from torch import nn

from kinformer.bridge.hf_export import hf_folder
from kinformer.bridge.load import load
from kinformer.bridge.save import save
from kinformer.core.quote import shorten

try:
    from huggingface_hub import PyTorchModelHubMixin
except ImportError as error:
    raise ImportError(
        "HubModel needs the package huggingface_hub, which is not installed; run `pip install '.[hf]'` in kinformer's "
        "folder"
    ) from error


class HubModel(PyTorchModelHubMixin, library_name="kinformer", tags=["kinformer"]):
    """A model as a repository on the Hugging Face Hub: `HubModel(model).push_to_hub("ORG/NAME")`.

    Choose it for code that expects a `PyTorchModelHubMixin`. Otherwise the methods `push_to_hub` and `save_pretrained`
    of a model are shorter, and `load("hf:ORG/NAME")` reads it. The repository has the files of
    `save(model, folder, format="hf")`, so transformers loads it too. `HubModel.from_pretrained("ORG/NAME")` returns the
    model itself. The only option for reading that has an effect is `revision=`.

    model: a model that `save(model, folder, format="hf")` can write.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def save_pretrained(  # not the method of the mixin, which first deletes the config of an earlier model
        self,
        save_directory: str | Path,
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        config: Any = None,
        model_card_kwargs: Any = None,
        **options: Any,
    ) -> str | None:
        """Write the files of the model, and return the address of the commit if it is uploaded too.

        save_directory: folder to write.
        repo_id: name of the repository on the Hub; the name of the folder if None.
        push_to_hub: upload the model too.
        config, model_card_kwargs: no effect; arguments of the mixin.
        options: options of `push_to_hub`.
        """
        save(self.model, save_directory, format="hf")
        name = repo_id or Path(save_directory).resolve().name
        return self.push_to_hub(name, **options) if push_to_hub else None

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model, and return the address of the commit.

        repo_id: name of the repository on the Hub, as ORG/NAME, which is created if it is missing.
        options: options of the mixin, such as private=True.

        Errors: the errors of `save`; OSError, in one line, if the Hub cannot be reached or refuses the model.
        """
        hf_folder(self.model)  # a model that cannot be written is refused before its repository is created
        try:
            return str(super().push_to_hub(repo_id, **options))
        except (TypeError, ValueError):  # a wrong option or name
            raise
        except Exception as error:  # no connection, in the words of the HTTP client; no permission
            raise OSError(
                f"cannot upload {repo_id} to the Hugging Face Hub: {shorten(f'{type(error).__name__}: {error}', 240)}. "
                "Connect and log in with `hf auth login`, or write the files with save_pretrained(FOLDER) and upload "
                f"them later with `hf upload {repo_id} FOLDER`"
            ) from error

    @classmethod
    def _from_pretrained(cls, *, model_id: str, revision: str | None, **options: Any) -> Any:
        """Return the model of a folder, or of a repository on the Hub, as `load` does for hf:ORG/NAME."""
        if os.path.isdir(model_id):
            return load(model_id)
        return load(f"hf:{model_id}" if revision is None else f"hf:{model_id}@{revision}")
