"""load: a trained model of kinformer, of Hugging Face transformers, or of a GGUF file."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kinformer.bridge.gguf_file import load_gguf
from kinformer.bridge.hf_folder import is_hf_folder, load_folder
from kinformer.checkpoint import checkpoint
from kinformer.checkpoint.hub import hf_path
from kinformer.core.keyword_hints import hint_keywords
from kinformer.core.missing_path import refuse_long_paths
from kinformer.core.quote import quote


@hint_keywords
@refuse_long_paths()
def load(folder: str | Path, member: Callable[..., Any] | None = None, paths: Mapping[str, str] | None = None) -> Any:
    """Return the trained model of a folder, in eval mode, with the dtype it was saved in.

    Choose it for every model that is on a disk or on the Hugging Face Hub. A new model comes from its member, such as
    `kf.gpt(...)`.

    The folder was written by `save`, by a training, or by Hugging Face transformers (`save_pretrained`). A .gguf file
    of llama.cpp is read too. A foreign model becomes one of our members, with the config as its keywords: GPT-2, OPT,
    Llama, Mistral, Qwen2, Qwen3, GPT-NeoX, BLOOM, BERT, RoBERTa, DistilBERT, Longformer, BigBird, Nystromformer,
    Marian, BART, T5 and Decision Transformer. From GGUF: Llama, Mistral, Qwen2 and Qwen3. Only safetensors and GGUF
    are read; a pickle is never opened, and no code of a folder is run.

    A model of the Hugging Face Hub is "hf:ORG/NAME", "hf:ORG/NAME@REVISION" or "hf:ORG/NAME/FILE.gguf". It is
    downloaded into the cache of huggingface_hub. Without a connection a complete copy is loaded from there.

    folder: folder of the model, a .gguf file, or the name of a model of the Hub, which begins with hf:.
    member: function that built the model; required only if it is a user's own. A warning is given if its file has
        changed.
    paths: new values of keywords that are paths of files, if the files have moved, such as spalm's datastore.

    Errors: FileNotFoundError for a missing folder or file. NotADirectoryError for a file in place of the folder.
    CheckpointError, in one line, for a truncated or unknown file, and for tensors that are missing, unexpected or of
    another shape. CheckpointError also for a key of a foreign config that changes results and is not understood.
    MemberNeeded if `member` is required and None. ImportError without the package gguf, huggingface_hub or tokenizers.
    ValueError for a wrong name after hf:. FileNotFoundError and PermissionError, in one line, for a model of the Hub
    that cannot be downloaded. TypeError for a `folder` of another type, such as a model.
    """
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(
            f"load takes a folder or a name: got {quote(folder)}. Save a model of transformers with "
            "save_pretrained(FOLDER), then call load(FOLDER)"
        )
    path = hf_path(str(folder))
    if path.suffix.lower() == ".gguf":
        return load_gguf(path)
    if is_hf_folder(path):
        return load_folder(path)
    return checkpoint.load(path, member, paths)
