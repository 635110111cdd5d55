"""Writing of models for Hugging Face transformers, under one of its classes or one of kinformer."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from kinformer.bridge.family import NoFamily, native
from kinformer.bridge.hf_tokenizer import TokenizerFiles, tokenizer_files
from kinformer.checkpoint.atomic_files import write_together
from kinformer.checkpoint.checkpoint import config_of, format_model, member_record
from kinformer.checkpoint.model_files import CONFIG, GENERATION_CONFIG, INDEX, SHARDS, TOKENIZER_FILES, WEIGHTS
from kinformer.checkpoint.weights_file import format_weights, tensors_of
from kinformer.core.model import display_name
from kinformer.decoding.generate import end_tokens

CODE = "modeling_kinformer"  # module in the folder that names our classes to transformers
CLASSES = {  # by the kind of data that a model reads: the class that wraps it, and transformers' name for its task
    "text": ("KinformerForCausalLM", "AutoModelForCausalLM"),
    "masked": ("KinformerForMaskedLM", "AutoModelForMaskedLM"),
    "pairs": ("KinformerForSeq2SeqLM", "AutoModelForSeq2SeqLM"),
    "labelled": ("KinformerForSequenceClassification", "AutoModelForSequenceClassification"),
}

# files that not every model has; those of another model would be read with this one
OPTIONAL = (*TOKENIZER_FILES, GENERATION_CONFIG, INDEX, SHARDS, f"{CODE}.py")
OTHER = ("", "AutoModel")  # of a model of other data that a class of transformers computes


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

    model: a model of text that a member built.

    Errors: TypeError if no member built the model; ValueError for a model of other data, and of a user's own member.
    """
    record = member_record(model)
    if record.file is not None:
        raise ValueError(
            f"cannot write {record.name} for transformers: its member is in {Path(record.file).name}, which "
            "transformers would not find. Put the member into an installed package, as a plugin"
        )
    tokenizer = tokenizer_files(model)
    try:
        return _native(model, tokenizer)
    except NoFamily as error:
        if (reads := getattr(model, "reads", None)) not in CLASSES:
            raise ValueError(
                f"cannot write {display_name(model)} for transformers: it reads {reads}, expected a model of text, as "
                "gpt or bert. kf.save(model, folder) writes it for kinformer"
            ) from error
        return _wrapped(model, tokenizer, str(error))


def save_for_hf(model: nn.Module, folder: Path) -> HFFolder:
    """Write a model for transformers, and return what was written.

    Files of an earlier model in the folder that this one does not have are removed.

    model: a model of text that a member built.
    folder: folder to write, which is created if it is missing.

    Errors: the errors of `hf_folder`; OSError if the folder cannot be written.
    """
    result = hf_folder(model)
    folder.mkdir(parents=True, exist_ok=True)
    write_together({folder / name: data for name, data in result.files.items()})
    for path in [path for pattern in OPTIONAL for path in folder.glob(pattern)]:
        if path.name not in result.files:
            path.unlink()
    return result


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
    # transformers would take the ids of the published models for None
    none = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    if family.length_key is not None and model.trained_length is not None:
        config[family.length_key] = model.trained_length
    config = none | _ends(model, tokenizer) | config | {"dtype": _dtype(model)}
    files = {CONFIG: _json(config), WEIGHTS: format_weights(tensors, {"format": "pt"})}
    return HFFolder(
        {**tokenizer.files, **_generation(model, tokenizer), **files},
        family.architecture,
        CLASSES.get(model.reads, OTHER)[1],
        None,
    )


def _wrapped(model: Any, tokenizer: TokenizerFiles, reason: str) -> HFFolder:
    """The files for a class of kinformer: those of `kf.save`, which transformers reads by a module in the folder."""
    name, loader = CLASSES[model.reads]
    own, pairs = config_of(model), model.reads == "pairs"
    classes = {"AutoConfig": "KinformerConfig", "AutoModel": "KinformerModel", loader: name}
    config = {
        **own,
        "model_type": "kinformer",
        "architectures": [name],
        "auto_map": {key: f"{CODE}.{value}" for key, value in classes.items()},
        "dtype": _dtype(model),
        "vocab_size": model.embedding.num_embeddings,
        "is_encoder_decoder": pairs,
        **_ends(model, tokenizer),
        **({} if model.labels is None else {"id2label": dict(enumerate(model.labels))}),
    }
    files = {f"{CODE}.py": module_text(name).encode(), CONFIG: _json(config), WEIGHTS: format_model(model, own)}
    return HFFolder({**tokenizer.files, **_generation(model, tokenizer), **files}, name, loader, reason)


def _ends(model: Any, tokenizer: TokenizerFiles) -> dict[str, int]:
    """The ids of the tokens that begin and end a text, as far as they are known, by their names in transformers."""
    begin = {"decoder_start_token_id": model.begin} if model.reads == "pairs" else {}
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: number for name, number in tokenizer.ids.items() if name in names} | begin


def _generation(model: Any, tokenizer: TokenizerFiles) -> dict[str, bytes]:
    """The file of the settings of generation, for a model that writes texts with known ends."""
    named: dict[str, Any] = _ends(model, tokenizer) if model.reads in ("text", "pairs") else {}
    if model.reads == "text" and (ends := end_tokens(model)):
        named["eos_token_id"] = ends[0] if len(ends) == 1 else list(ends)
    return {"generation_config.json": _json(named)} if named else {}


def _dtype(model: nn.Module) -> str:
    kinds = {tensor.dtype for _, tensor in tensors_of(model) if tensor.is_floating_point()}
    return str(kinds.pop() if len(kinds) == 1 else next(model.parameters()).dtype).removeprefix("torch.")


def _json(content: Any) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()
