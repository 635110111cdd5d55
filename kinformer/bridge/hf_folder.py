"""Folders of Hugging Face transformers: config.json, safetensors files and a tokenizer."""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinformer.bridge.family import FLOATS, Family, family_of
from kinformer.bridge.hf_tokenizer import is_byte_tokenizer
from kinformer.bridge.settings import UnreadableKey
from kinformer.checkpoint.model_files import CONFIG, INDEX, PICKLES, WEIGHTS, CheckpointError, is_foreign, read_config
from kinformer.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from kinformer.checkpoint.tokenizer import BYTES, Tokenizer
from kinformer.checkpoint.tokenizer_choice import folder_tokenizer
from kinformer.checkpoint.weights_file import ITS_CONFIG, load_tensors, read_tensors, tensors_of
from kinformer.core.from_json import from_json
from kinformer.core.quote import quote, shorten
from kinformer.core.uninitialised import Uninitialised
from kinformer.core.warn import warn

TARGET_KEYS = ("decoder_start_token_id", "eos_token_id", "forced_bos_token_id", "bad_words_ids")
# errors raised by wrong types or sizes in the config
FAULTS = (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, RuntimeError, MemoryError)


def is_hf_folder(folder: Path) -> bool:
    """Return whether a folder holds a model of transformers, by its config.json.

    folder: the folder.
    """
    try:
        return is_foreign(read_config(folder / CONFIG))
    except (OSError, CheckpointError):
        return False


def load_folder(folder: Path) -> Any:
    """Return the model of a folder of transformers, in eval mode, in the dtype of its config.

    Without a dtype in the config, it is the widest dtype of the weights.

    The model is one of our members, with the config as its keywords. So it can be saved, trained and changed like any
    other. It has the tokenizer of the folder, with its special tokens. Without one it takes only token ids.

    folder: the folder.

    Errors: CheckpointError, in one line, for a config or weights that are damaged, not understood, or pickled.
    """
    config = read_config(folder / CONFIG)
    try:
        family, weights = family_of(config.get("model_type")), read_weights(folder, config)
        tokenizer = folder_tokenizer(folder)
        mask = None if tokenizer is None else tokenizer.special_token("mask_token")
        config = ({} if mask is None else {"mask_token_id": mask}) | config | _target_tokens(folder)
        model = build(family, config, weights)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    set_tokenizer(model, tokenizer, read_special_tokens(folder))
    return model


def set_tokenizer(model: Any, tokenizer: Tokenizer | None, special: SpecialTokens) -> None:
    """Give a foreign model its tokenizer, or mark it as a model that reads no texts.

    The ids of a model with 256 tokens count as bytes. Ends that are no tokens of the model end no text, so they are
    left out.

    model: the model.
    tokenizer: the tokenizer that it came with, or None.
    special: its special tokens.
    """
    vocab = getattr(model, "vocab", None)
    ends = tuple(token for token in special.ends if vocab is None or 0 <= token < vocab)
    if tokenizer is not None:
        tokenizer.special = tokenizer.special._replace(ends=ends)
    model.foreign_ends = None if tokenizer is not None or vocab == BYTES else ends
    model.tokenizer = None if tokenizer is not None and is_byte_tokenizer(tokenizer) else tokenizer


def _target_tokens(folder: Path) -> dict[str, Any]:
    """Return the keys of generation_config.json that open and close a target; they precede those of config.json."""
    path = folder / "generation_config.json"
    config = read_config(path) if path.is_file() else {}
    if not isinstance(config, dict):
        raise CheckpointError(f"{path.name} is damaged: got {quote(config)}, expected an object of JSON")
    return {key: config[key] for key in TARGET_KEYS if config.get(key) is not None}


def build(family: Family, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Any:
    """Return the model of a config and foreign weights, in eval mode.

    family: the family of the config.
    config: the foreign config.
    weights: foreign tensors by name.

    Errors: CheckpointError.
    """
    with torch.random.fork_rng(devices=[]), Uninitialised():
        try:
            keywords = family.read(config)
            model: Any = family.member(**keywords)
        except CheckpointError:
            raise
        except FAULTS as error:  # settings compute with the numbers of the config
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise CheckpointError(f"the config cannot be built: {shorten(reason, 200)}") from error
    tensors = family.join(model, weights)
    head = {name: tensor for name, tensor in tensors_of(model) if name not in tensors}
    if head:
        model.headless = True
        warn(
            f"the weights have no head, so this model of type {family.model_type} gives hidden states, but no "
            "predictions"
        )
    load_tensors(model, {**tensors, **_initial_head(head)}, Path(WEIGHTS))
    model.to(dtype=_dtype(config, weights))
    length = None if family.length_key is None else config.get(family.length_key)
    model.trained_length = keywords.get("length", length)
    return model.eval()


def _dtype(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> torch.dtype:
    """Return the dtype of a model: that of its config, or else the widest dtype of its weights."""
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    names = {str(dtype).removeprefix("torch."): dtype for dtype in FLOATS}
    if (name := config.get(key)) is None:
        dtypes = {tensor.dtype for tensor in weights.values()} & set(FLOATS)
        return reduce(torch.promote_types, dtypes) if dtypes else torch.get_default_dtype()
    if name not in list(names):
        raise UnreadableKey(key, name, " or ".join(names))
    return names[name]


def _initial_head(head: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return numbers for a head that the weights lack: small maps and plain norms, the same in every load."""
    generator = torch.Generator().manual_seed(0)
    numbers = {}
    for name, tensor in head.items():
        if tensor.dim() > 1:
            numbers[name] = torch.randn(tensor.shape, generator=generator) * 0.02
        else:
            numbers[name] = torch.full(tensor.shape, float(name.endswith("weight")))
    return numbers


def read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a folder, from one safetensors file or from several.

    folder: the folder.
    config: its config. If `save` wrote the weights, they name the config that they belong to, which is compared.

    Errors: CheckpointError for damaged files, for weights of another config, and for folders that only have pickles,
    which are never opened.
    """
    if (folder / WEIGHTS).is_file():
        weights, metadata = read_tensors(folder / WEIGHTS)
        _refuse_other_config(config, metadata.get(ITS_CONFIG, "{}"))
        return weights
    if (folder / INDEX).is_file():
        index = read_config(folder / INDEX)
        files = index.get("weight_map") if isinstance(index, dict) else index
        if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
            raise CheckpointError(
                f"{INDEX} is damaged: got weight_map={quote(files)}, expected the name of a file for each tensor"
            )
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


def _refuse_other_config(config: Mapping[str, Any], entry: str) -> None:
    """Raise CheckpointError if a config differs from the one in the metadata of its weights."""
    try:
        expected = from_json(entry)
    except ValueError:
        expected = None
    if not isinstance(expected, dict):
        raise CheckpointError(
            f"{WEIGHTS} is damaged: got {ITS_CONFIG}={quote(entry)} in its metadata, expected an object of JSON. Write "
            "the model again"
        )
    for key, value in expected.items():
        if key in config and config[key] != value:
            raise CheckpointError(
                f"{CONFIG} and {WEIGHTS} belong to different models: got {key}={quote(config[key])}, expected "
                f"{key}={quote(value)}, which the weights name. Restore {CONFIG}, or write the model again"
            )
