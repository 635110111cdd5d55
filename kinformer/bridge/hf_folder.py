"""Folders of Hugging Face transformers: config.json, safetensors files and a tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinformer.bridge.family import Family, family_of
from kinformer.checkpoint.model_files import CONFIG, WEIGHTS, CheckpointError, contents, is_foreign, read_config
from kinformer.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.checkpoint.tokenizer_choice import folder_tokenizer
from kinformer.checkpoint.unknown_tokenizer import UnknownTokenizer
from kinformer.checkpoint.weights_file import load_tensors, read_tensors
from kinformer.core.from_json import from_json

INDEX = "model.safetensors.index.json"  # names the file of each tensor, where there are several
BYTES = 256  # tokens of a model of bytes
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
    other. It has the tokenizer of the folder, with its special tokens; without one it takes and gives only token ids.

    folder: the folder.

    Errors: CheckpointError, in one line, for a config or weights that are damaged, not understood, or pickled.
    """
    config = read_config(folder / CONFIG)
    try:
        family = family_of(config.get("model_type"))
        tokenizer = folder_tokenizer(folder)
        mask = None if tokenizer is None else tokenizer.special_token("mask_token")
        config = config if mask is None else {"mask_token_id": mask, **config}
        model = build(family, config, read_weights(folder))
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    model.tokenizer = tokenizer_or_unknown(tokenizer, read_special_tokens(folder), model)
    return model


def tokenizer_or_unknown(tokenizer: Tokenizer | None, special: SpecialTokens, model: Any) -> Tokenizer | None:
    """Return the tokenizer of a foreign model; an `UnknownTokenizer` without one, which refuses texts.

    The ids of a model with 256 tokens count as bytes.

    tokenizer: the tokenizer that the model came with, or None.
    special: its special tokens.
    model: the model.
    """
    is_settled = tokenizer is not None or getattr(model, "vocab", None) == BYTES
    return tokenizer if is_settled else UnknownTokenizer(special)


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
