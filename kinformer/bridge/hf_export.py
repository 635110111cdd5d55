"""Writing of models for Hugging Face transformers, under one of its classes or one of kinformer."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from kinformer.bridge.family import UNREAD, Family, NoFamily, native
from kinformer.bridge.hf_tokenizer import TokenizerFiles, tokenizer_files
from kinformer.checkpoint.atomic_files import write_together
from kinformer.checkpoint.checkpoint import config_of, format_model, member_record
from kinformer.checkpoint.model_files import CONFIG, GENERATION_CONFIG, INDEX, SHARDS, TOKENIZER_FILES, WEIGHTS
from kinformer.checkpoint.weights_file import ITS_CONFIG, format_weights, tensors_of
from kinformer.core.model import display_name
from kinformer.decoding.generate import end_tokens
from kinformer.models.support.retrieval_lm import RetrievalLM

CODE = "modeling_kinformer"  # module in the folder that names our classes to transformers
CLASSES = {  # by the kind of data that a model reads: the class that wraps it, and transformers' name for its task
    "text": ("KinformerForCausalLM", "AutoModelForCausalLM"),
    "masked": ("KinformerForMaskedLM", "AutoModelForMaskedLM"),
    "pairs": ("KinformerForSeq2SeqLM", "AutoModelForSeq2SeqLM"),
    "labelled": ("KinformerForSequenceClassification", "AutoModelForSequenceClassification"),
}

# files that not every model has; those of another model would be read with this one
OPTIONAL = (*TOKENIZER_FILES, GENERATION_CONFIG, INDEX, SHARDS, f"{CODE}.py")
NO_WRAPPER = ("", "AutoModel")  # for models of other data, which only a class of transformers itself can compute


class HFFolder(NamedTuple):
    """The files of a model for transformers.

    files: content of each file, by name.
    architecture: name of the class that computes the model.
    loader: the class of transformers that loads the folder, such as "AutoModelForCausalLM".
    reason: why no class of transformers itself computes the model; None if one does.
    """

    files: dict[str, bytes]
    architecture: str
    loader: str
    reason: str | None


def hf_folder(model: nn.Module) -> HFFolder:
    """Return the files of a model that `from_pretrained` of transformers loads.

    If a class of transformers computes the same output, such as GPT2LMHeadModel, the files are of that class.
    Otherwise they are of a class that wraps the model, which needs the package kinformer and trust_remote_code=True.

    model: a model of text that a member built; or of other data if a class of transformers computes its output, such as
        `decision_transformer`.

    Errors: TypeError if no member built the model; ValueError for other models, for a user's own member, and if the
    tokenizer has more tokens than the model.
    """
    record, own = member_record(model), config_of(model)
    if record.file is not None:
        raise ValueError(
            f"cannot write {record.name} for transformers: its member is in {Path(record.file).name}, which "
            "transformers would not find. Put the member into an installed package, as a plugin"
        )
    if isinstance(model, RetrievalLM) and model.datastore is not None:
        raise ValueError(
            "cannot write a model with a datastore for transformers, which would not find the datastore. Export the "
            "model that it was made from, or save it by kf.save(model, folder)"
        )
    tokenizer = tokenizer_files(model)
    try:
        return _native(model, tokenizer)
    except NoFamily as error:
        if getattr(model, "reads", None) not in CLASSES:
            raise ValueError(
                f"cannot write {display_name(model)} for transformers: {error}. kf.save(model, folder) writes it for "
                "kinformer"
            ) from error
        return _wrapped(model, own, tokenizer, str(error))


def write_hf_folder(content: HFFolder, folder: Path, extras: Mapping[str, bytes]) -> None:
    """Write the files of a model for transformers, and remove the other files of an earlier model.

    content: the files, by `hf_folder`.
    folder: folder to write, which is created if it is missing.
    extras: content of further files, such as a model card, by name.

    Errors: OSError if the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_together({folder / name: data for name, data in {**extras, **content.files}.items()})
    for path in [path for pattern in OPTIONAL for path in folder.glob(pattern)]:
        if path.name not in content.files:
            path.unlink()


def without_folders(text: str) -> str:
    """Return the name of data, or a path, without folders: text=book.txt for text=/home/me/book.txt.

    text: the name or the path. Relative paths are kept.
    """
    return re.sub(r"(^|=)(?:/|~[\w.-]*/)(?:[^,]*/)?", r"\1", text)


def module_text(name: str) -> str:
    """Return the code of the module in a folder that names the classes of kinformer to transformers.

    name: the class that wraps the model.
    """
    return (
        f'"""The classes of transformers for this model of kinformer, which must be installed."""\n\n'
        f"from kinformer.bridge.hf_wrapper import KinformerConfig, KinformerModel, {name}\n\n"
        f'__all__ = ["KinformerConfig", "KinformerModel", "{name}"]\n'
    )


def _native(model: Any, tokenizer: TokenizerFiles) -> HFFolder:
    """The files for a class of transformers; NoFamily if no class computes the model."""
    family, config = native(model)
    tensors = family.split(model)
    architecture, loader = family.architecture, CLASSES.get(model.reads, NO_WRAPPER)[1]
    if model.headless:  # BertModel, not BertForMaskedLM
        architecture, loader = f"{architecture.partition('For')[0]}Model", "AutoModel"
        config["architectures"] = [architecture]
    # an absent id would get the default of the class (50256 for GPT-2), so null is written
    absent_ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    if family.length_key is not None and model.trained_length is not None:
        config[family.length_key] = model.trained_length
    config = absent_ids | _ends(model, tokenizer) | config | {"dtype": _dtype(model)}
    weights = format_weights(tensors, {"format": "pt", ITS_CONFIG: _identity(family, config)})
    # the config first and the weights last: a kill in between leaves a folder that `load` refuses
    files = {CONFIG: _json(config), **tokenizer.files, **_generation(model, tokenizer), WEIGHTS: weights}
    return HFFolder(files, architecture, loader, None)


def _identity(family: Family, config: Mapping[str, Any]) -> str:
    """The JSON of the entries of a config that determine the model; the weights store it, and `load` compares it."""
    keys = {key for setting in family.settings for key in setting.keys} - UNREAD | {"model_type"}
    return json.dumps({key: value for key, value in config.items() if key in keys})


def _wrapped(model: Any, own: dict[str, Any], tokenizer: TokenizerFiles, reason: str) -> HFFolder:
    """The files for a class of kinformer: those of `kf.save`, which transformers reads by a module in the folder."""
    name, loader = CLASSES[model.reads]
    classes = {"AutoConfig": "KinformerConfig", "AutoModel": "KinformerModel", loader: name}
    config = {
        **own,
        "trained_on": None if model.trained_on is None else without_folders(model.trained_on),
        "model_type": "kinformer",
        "architectures": [name],
        "auto_map": {key: f"{CODE}.{value}" for key, value in classes.items()},
        "dtype": _dtype(model),
        "vocab_size": model.embedding.num_embeddings,
        "is_encoder_decoder": model.reads == "pairs",
        **_ends(model, tokenizer),
        **({} if model.labels is None else {"id2label": dict(enumerate(model.labels))}),
    }
    others = {**tokenizer.files, **_generation(model, tokenizer), f"{CODE}.py": module_text(name).encode()}
    return HFFolder({CONFIG: _json(config), **others, WEIGHTS: format_model(model, own)}, name, loader, reason)


def _ends(model: Any, tokenizer: TokenizerFiles) -> dict[str, int]:
    """The ids of the tokens that begin and end a text, as far as they are known, by their names in transformers."""
    begin = {"decoder_start_token_id": model.begin} if model.reads == "pairs" else {}
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: number for name, number in tokenizer.ids.items() if name in names} | begin


def _generation(model: Any, tokenizer: TokenizerFiles) -> dict[str, bytes]:
    """The file of the settings of generation, for a model that writes texts with known ends."""
    settings: dict[str, Any] = _ends(model, tokenizer) if model.reads in ("text", "pairs") else {}
    if model.reads == "text" and (ends := end_tokens(model)):
        settings["eos_token_id"] = ends[0] if len(ends) == 1 else list(ends)
    return {"generation_config.json": _json(settings)} if settings else {}


def _dtype(model: nn.Module) -> str:
    dtypes = {tensor.dtype for _, tensor in tensors_of(model) if tensor.is_floating_point()}
    return str(dtypes.pop() if len(dtypes) == 1 else next(model.parameters()).dtype).removeprefix("torch.")


def _json(content: Any) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()
