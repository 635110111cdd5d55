"""Folders of Hugging Face transformers: config.json, safetensors files and a tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinformer.bridge.family import Family, family_of
from kinformer.bridge.hf_tokenizer import is_byte_tokenizer
from kinformer.checkpoint.model_files import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    CheckpointError,
    contents,
    is_foreign,
    read_config,
)
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.checkpoint.tokenizer_choice import read_tokenizer
from kinformer.checkpoint.weights_file import load_tensors, read_tensors
from kinformer.core.from_json import from_json

INDEX = "model.safetensors.index.json"  # names the file of each tensor, where there are several
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


def is_hf_folder(folder: Path) -> bool:
    """Return whether a folder holds a model of transformers, by its config.json.

    folder: the folder.
    """
    try:
        return is_foreign(read_config(folder / CONFIG))
    except (OSError, CheckpointError):
        return False


def load_folder(folder: Path) -> Any:
    """Return the model of a folder of transformers, in eval mode, with the dtype of its weights.

    The model is one of our members, with the config as its keywords. So it can be saved, trained and changed like any
    other. It has the tokenizer of the folder, and None if there is none.

    folder: the folder.

    Errors: CheckpointError, in one line, for a config or weights that are damaged, not understood, or pickled.
    """
    config = read_config(folder / CONFIG)
    try:
        family = family_of(config.get("model_type"))
        tokenizer = read_tokenizer(folder / TOKENIZER) if (folder / TOKENIZER).is_file() else None
        model = build(family, _special_tokens(folder, tokenizer) | config, read_weights(folder))
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    model.tokenizer = None if tokenizer is not None and is_byte_tokenizer(tokenizer) else tokenizer
    return model


def _special_tokens(folder: Path, tokenizer: Tokenizer | None) -> dict[str, int]:
    """Return the id of the mask token, as a key of the config; empty if the folder names none."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if tokenizer is not None and (folder / name).is_file():
            token = read_config(folder / name).get("mask_token")
            token = token.get("content") if isinstance(token, dict) else token
            if token is not None and (number := tokenizer.backend.token_to_id(token)) is not None:
                return {"mask_token_id": number}
    return {}


def build(family: Family, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Any:
    """Return the model of a config and foreign weights, in eval mode.

    family: the family of the config.
    config: the foreign config.
    weights: foreign tensors by name.

    Errors: CheckpointError.
    """
    keywords = family.read(config)
    with torch.random.fork_rng(devices=[]):
        try:
            model: Any = family.member(**keywords)
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"the config cannot be built: {error}") from error
    kinds = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    if len(kinds) == 1:
        model.to(dtype=kinds.pop())
    load_tensors(model, family.join(model, weights), Path(WEIGHTS))
    length = None if family.length_key is None else config.get(family.length_key)
    model.trained_length = keywords.get("length", length)
    return model.eval()


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder, from one safetensors file or from several.

    folder: the folder.

    Errors: CheckpointError for damaged files, and for folders that only have pickles, which are never opened.
    """
    if (folder / WEIGHTS).is_file():
        return read_tensors(folder / WEIGHTS)[0]
    if (folder / INDEX).is_file():
        try:
            files = from_json(contents(folder / INDEX))["weight_map"]
        except (ValueError, LookupError, TypeError) as error:
            raise CheckpointError(f"{INDEX} is damaged: {error}") from error
        tensors: dict[str, Tensor] = {}
        for name in sorted(set(files.values())):
            if Path(name).name != name:
                raise CheckpointError(f"{INDEX} names a file outside of its folder: {name!r:.80}")
            if not (folder / name).is_file():
                raise CheckpointError(f"{name} is missing, which {INDEX} names")
            tensors |= read_tensors(folder / name)[0]
        return tensors
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"the weights are only in {pickles[0]}, a pickle, which can run code when it is opened. Load it with "
            "transformers if you trust it, and save it with save_pretrained, which writes safetensors"
        )
    raise CheckpointError(f"there is no {WEIGHTS}")
