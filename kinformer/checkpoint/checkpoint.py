"""Checkpoints: a model in a folder, as a config (`config.json`) and weights (`model.safetensors`).

Nothing is unpickled, and no code from a folder is run. Every write goes to a temporary file beside the old one, which
it replaces once all files of the model are on disk (`checkpoint/atomic_files.py`). A crash, a kill or a full disk
therefore leaves the old files whole. If it happens between two replacements, `load` reports it: the weights store a
hash of the config that they belong to.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinformer import __version__
from kinformer.checkpoint.atomic_files import write_together
from kinformer.checkpoint.model_files import (
    BEST,
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    CheckpointError,
    contents,
    is_foreign,
    read_config,
)
from kinformer.checkpoint.own_config import EDITION, NO_TOKENIZER, UNKNOWN, read_own_config
from kinformer.checkpoint.special_tokens import read_special_tokens
from kinformer.checkpoint.tokenizer import NO_SPECIAL, Tokenizer
from kinformer.checkpoint.unknown_tokenizer import UnknownTokenizer, own_tokenizer
from kinformer.checkpoint.weights_file import format_weights, load_tensors, read_tensors, tensors_of
from kinformer.convert.support.changed_model import build_changed
from kinformer.core.change import Change
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import MemberRecord, Origin, members
from kinformer.core.keyword_hints import hint_keywords
from kinformer.core.keywords import check_keywords, name_of
from kinformer.core.missing_path import refuse_long_paths
from kinformer.core.model import ColumnScales, Metric, Model
from kinformer.core.uninitialised import Uninitialised
from kinformer.core.warn import warn


class MemberNeeded(CheckpointError):
    """Error for a model that a user's own member function built, if that function was not passed.

    folder: folder of the model.
    name: name of the member.
    file: file that defines the member.
    """

    def __init__(self, folder: Path, name: str, file: str) -> None:
        super().__init__(f"the model in {folder} was built by {name!r} of {file}: give load(folder, member={name})")
        self.folder, self.name, self.file = folder, name, file


@hint_keywords
@refuse_long_paths()
def save(model: nn.Module, folder: str | Path, *, step: int | None = None) -> None:
    """Save a model in a folder, which is created if it is missing.

    A member function (a function with `@member`) must have built the model.

    A tensor that several parameters share is written once, under its first name.

    model: model to save.
    folder: folder to write.
    step: training step of the weights.

    Errors: TypeError if no member function built the model; ValueError if its tokenizer has more tokens than the model;
    OSError if the folder cannot be written. An earlier checkpoint in the folder then stays.
    """
    if isinstance(model, str | Path):
        raise TypeError("save takes the model first: got a folder. Call save(model, folder)")
    config, folder, tokenizer = config_of(model), Path(folder), own_tokenizer(model)
    folder.mkdir(parents=True, exist_ok=True)
    small_files = {CONFIG: f"{json.dumps(config, indent=2)}\n".encode()}
    if config["tokenizer"] == TOKENIZER and tokenizer is not None:
        small_files = {TOKENIZER: tokenizer.text.encode(), **small_files}
    if isinstance(model, Model):
        model.write_files(folder)
    paths = {folder / name: data for name, data in small_files.items()}
    new = {path: data for path, data in paths.items() if not path.is_file() or contents(path) != data}
    write_together({**new, folder / WEIGHTS: format_model(model, config, step)})


def config_of(model: nn.Module) -> dict[str, Any]:
    """Return the content of the config.json of a model.

    model: model to save.

    Errors: TypeError if no member function built the model; ValueError if its tokenizer has more tokens than the model.
    """
    record, tokenizer = member_record(model), own_tokenizer(model)
    config = _config(record) | _training_facts(model, tokenizer)
    vocab = record.keywords.get("vocab")  # a user's own member may have None or another keyword
    if config["tokenizer"] == TOKENIZER and tokenizer and isinstance(vocab, int) and tokenizer.size > vocab:
        raise ValueError(
            f"cannot save the model: its tokenizer has {tokenizer.size:,} tokens, expected at most vocab={vocab}. "
            f"Build it with vocab={tokenizer.size}"
        )
    return config


def format_model(model: nn.Module, config: Mapping[str, Any], step: int | None = None) -> bytes:
    """Return the content of the model.safetensors of a model.

    model: model to save.
    config: its config, by `config_of`.
    step: training step of the weights.
    """
    metadata = {"format": "pt", "built": _identity_hash(config)} | ({} if step is None else {"step": str(step)})
    return format_weights(dict(tensors_of(model)), metadata)


def member_record(model: nn.Module) -> MemberRecord:
    """Return the name and keywords of the member function that built a model, as a `MemberRecord`.

    model: model to save.

    Errors: TypeError for a model without a record, which cannot be saved.
    """
    record = getattr(model, "member", None)
    if not isinstance(record, MemberRecord):
        if isinstance(getattr(getattr(model, "module", None), "member", None), MemberRecord):
            raise TypeError(f"the model is inside a {type(model).__name__}; save the model itself: model.module")
        raise TypeError(
            "only a model that a member function built can be saved; put @member above the function, or save "
            "model.state_dict() with torch.save"
        )
    return record


def find_conflict(folder: Path, model: nn.Module, *, same: bool = False) -> str | None:
    """Return a description of the files in a folder that saving a model would destroy, or None.

    folder: folder to save to.
    model: model to save.
    same: True does not report a model of the same member function with the same keywords.
    """
    if not (folder / WEIGHTS).is_file():
        return None
    if not (folder / CONFIG).is_file():
        return f"a {WEIGHTS} without its {CONFIG}"
    try:
        stored = read_own_config(folder / CONFIG)
    except CheckpointError:
        return f"a {CONFIG} that was not written by kinformer"
    except OSError:
        return f"a {CONFIG} that cannot be read"
    record = getattr(model, "member", None)
    mine = json.loads(json.dumps(_config(record))) if isinstance(record, MemberRecord) else {}
    if any(stored.get(key) != mine.get(key) for key in ("member", "file")):
        return f"a model of {stored['member']!r}" + (f" of {stored['file']}" if "file" in stored else "")
    # The defaults stand for keywords that are newer than the folder.
    usual = {} if record is None else json.loads(json.dumps(record.defaults))
    old, new = {**usual, **stored["keywords"]}, mine["keywords"]
    for name in sorted({*old, *new}):
        if name not in old or name not in new or old[name] != new[name]:
            return f"a model of {stored['member']!r} with {name}={old.get(name)!r}"
    if stored.get("changes", []) != mine.get("changes", []):
        return f"a model of {stored['member']!r} with {'other' if stored.get('changes') else 'no'} conversions"
    return None if same else f"a model of {stored['member']!r} that was trained before"


def check_same_model(folder: Path, model: nn.Module) -> None:
    """Raise CheckpointError unless a folder holds an intact model of the same member and keywords.

    It is part of resuming a training, which needs the model that the training state belongs to.

    folder: folder to check.
    model: model with the expected member function and keywords.
    """
    config = read_own_config(folder / CONFIG)
    if (other := find_conflict(folder, model, same=True)) is not None:
        raise CheckpointError(f"{folder} holds {other}, but its training state is of another model; restore its files")
    _, metadata = read_tensors(folder / WEIGHTS)
    _refuse_mixed(folder, config, metadata.get("built"))
    _tokenizer(config, folder)


def _config(record: MemberRecord) -> dict[str, Any]:
    """Return the config of a member: its name, its keywords, its changes, and the file of a user's own member."""
    config: dict[str, Any] = {"format": EDITION, "member": record.name, "keywords": record.keywords}
    if record.changes:
        config["changes"] = [change._asdict() for change in record.changes]
    if record.file is not None:
        config |= {"file": Path(record.file).name, "sha256": record.sha256}
    return config | {"kinformer": __version__}


def _training_facts(model: Any, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the facts of the training that a model stores: row length, data, labels, columns and metric."""
    metric, columns = getattr(model, "metric", None), getattr(model, "columns", None)
    entry = NO_TOKENIZER if tokenizer is None else UNKNOWN if isinstance(tokenizer, UnknownTokenizer) else TOKENIZER
    return {
        "tokenizer": entry,
        **({"tokenizer_sha256": tokenizer.sha256} if entry == TOKENIZER and tokenizer is not None else {}),
        **({"special_tokens": special._asdict()} if tokenizer and (special := tokenizer.special) != NO_SPECIAL else {}),
        **({"headless": True} if getattr(model, "headless", False) else {}),
        "trained_length": getattr(model, "trained_length", None),
        "trained_on": getattr(model, "trained_on", None),
        "metric": None if metric is None else metric._asdict(),
        **({} if (labels := getattr(model, "labels", None)) is None else {"labels": labels}),
        **({} if columns is None else {"columns": columns._asdict()}),
    }


def _identity_hash(config: Mapping[str, Any]) -> str:
    """Return a hash of member, keywords, changes and tokenizer.

    It is stored with the weights, so that two saves cannot be mixed up.
    """
    identity = [config["member"], config["keywords"], *config.get("changes", [])]
    if config["tokenizer"] != NO_TOKENIZER:
        identity.append(config.get("tokenizer_sha256"))
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def _refuse_mixed(folder: Path, config: Mapping[str, Any], built: str | None) -> None:
    """Raise CheckpointError if weights with the hash `built` do not belong to a config.

    The config of the best model, if present, helps to name the difference.
    """
    if built == _identity_hash(config):
        return
    message = f"{CONFIG} and {WEIGHTS} in {folder} belong to different models: their members or keywords differ"
    path, best = folder / BEST / CONFIG, None
    with suppress(CheckpointError, OSError):
        best = read_own_config(path)
    if best is None or built != _identity_hash(best):
        raise CheckpointError(f"{message}. Restore the {CONFIG} that the training wrote, or train the model again")
    actual, expected = (dict(member=part["member"], **part["keywords"]) for part in (config, best))
    names = [name for name in sorted({*actual, *expected}) if actual.get(name) != expected.get(name)]
    differs = f": got {names[0]}={actual.get(names[0])}, expected {names[0]}={expected.get(names[0])}" if names else ""
    raise CheckpointError(f"{message}{differs}. Copy {path} to {folder / CONFIG}, or train the model again")


@hint_keywords
@refuse_long_paths()
def load(folder: str | Path, member: Callable[..., Any] | None = None, paths: Mapping[str, str] | None = None) -> Any:
    """Return the model that `save` wrote to a folder, in eval mode, with the dtype it was saved in.

    folder: folder of the model.
    member: function that built the model; required only if it is a user's own. A warning is given if its file has
        changed.
    paths: new values of keywords that are paths of files, if the files have moved, such as spalm's datastore.

    Errors: FileNotFoundError for a missing folder or file. NotADirectoryError for a file in place of the folder.
    CheckpointError, in one line, for a truncated or foreign file, and for tensors that are missing, unexpected or of
    another shape. MemberNeeded if `member` is required and None.
    """
    folder = Path(folder)
    config, (tensors, metadata) = read_own_config(folder / CONFIG), read_tensors(folder / WEIGHTS)
    if "model_type" in config:  # transformers puts the name of its own attribute before ours when it saves
        tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    function = _member(config, folder, member)
    _refuse_mixed(folder, config, metadata.get("built", _identity_hash(config)))
    keywords = {name: tuple(value) if isinstance(value, list) else value for name, value in config["keywords"].items()}
    keywords |= paths or {}
    try:
        check_keywords(function, keywords)
    except TypeError as error:
        raise CheckpointError(f"{folder / CONFIG} does not fit its member: {error}") from error
    ours = function.__module__.startswith("kinformer.")  # a user's member may compute something from its first weights
    build, changes = getattr(function, "rebuild", function), changes_of(config)
    try:
        with torch.random.fork_rng(devices=[]), Uninitialised() if ours else nullcontext():
            model = build_changed(build, keywords, changes)
    except ValueError as error:
        if not changes:
            raise
        raise CheckpointError(f"{folder / CONFIG} has a conversion that cannot be applied: {error}") from error
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(kinds) == 1:
        model.to(dtype=kinds.pop())
    load_tensors(model, tensors, folder / WEIGHTS)
    model.trained_length, model.trained_on = config.get("trained_length"), config.get("trained_on")
    model.tokenizer = _tokenizer(config, folder)
    if isinstance(model.tokenizer, UnknownTokenizer) and model.trained_on is None:  # of another library
        model.tokenizer, model.foreign_ends = None, model.tokenizer.ends
    model.headless = config.get("headless") is True
    model.labels = tuple(config["labels"]) if "labels" in config else None
    model.columns = _columns(config)
    if (metric := config.get("metric")) is not None:
        model.metric = Metric(**metric)  # a task may override the metric of the model's class
    model.folder = folder
    if isinstance(model, Model):
        model.open_files()
    return model.eval()


def built_by(folder: str | Path) -> str:
    """Return the name of the member function that built the model in a folder.

    folder: folder of the model.

    Errors: the errors of `load`.
    """
    return str(read_own_config(Path(folder) / CONFIG)["member"])


def keywords_of(folder: str | Path) -> dict[str, Any]:
    """Return the keywords that the member function got when it built the model in a folder.

    folder: folder of the model.

    Errors: the errors of `load`.
    """
    return dict(read_own_config(Path(folder) / CONFIG)["keywords"])


def changes_of(config: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return the conversions that a config lists.

    config: content of a config.json.
    """
    return tuple(Change(entry["name"], entry["options"]) for entry in config.get("changes", []))


def is_pretrained(folder: str | Path) -> bool:
    """Return True if another library trained the model in a folder of kinformer.

    A later training of kinformer makes it False.

    folder: folder of the model.

    Errors: the errors of `load`.
    """
    config = read_own_config(Path(folder) / CONFIG)
    return config.get("trained_length") is not None and config.get("trained_on") is None


def columns_of(folder: str | Path) -> ColumnScales | None:
    """Return the names and scales of the columns of the time series that a saved model was trained on.

    It is None for models of other data, and for models of other libraries.

    folder: folder of the model.

    Errors: the errors of `load`.
    """
    path = Path(folder) / CONFIG
    return None if is_foreign(read_config(path)) else _columns(read_own_config(path))


def _columns(config: Mapping[str, Any]) -> ColumnScales | None:
    """Return the columns of a config, if it has them."""
    if "columns" not in config:
        return None
    return ColumnScales(*(tuple(config["columns"][name]) for name in ColumnScales._fields))


def _tokenizer(config: Mapping[str, Any], folder: Path) -> Tokenizer | None:
    """Load the tokenizer that a config names; None for bytes. CheckpointError if it is another one."""
    if config["tokenizer"] != TOKENIZER:
        return UnknownTokenizer(read_special_tokens(folder)) if config["tokenizer"] == UNKNOWN else None
    data = contents(folder / TOKENIZER)
    # transformers writes the same tokenizer in other words, after a training for example
    if hashlib.sha256(data).hexdigest() != config.get("tokenizer_sha256") and "model_type" not in config:
        raise CheckpointError(
            f"{folder / TOKENIZER} is not the tokenizer of the model: its hash is wrong. Restore the file"
        )
    return Tokenizer(data.decode(), str(folder / TOKENIZER), read_special_tokens(folder))


def _member(config: Mapping[str, Any], folder: Path, function: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return the member function of a config, from the registered members or as the caller gives it."""
    name, file = config["member"], config.get("file")
    if function is not None:
        if name_of(function) != name:
            raise CheckpointError(
                f"wrong member for the model in {folder}: got {name_of(function)!r}, expected {name!r}"
            )
        origin = getattr(function, "origin", Origin())
        if file is not None and config.get("sha256") != origin.sha256:
            warn(f"{file} has changed since the model in {folder} was saved")
        return function
    if file is not None:
        raise MemberNeeded(folder, name, file)
    registered = members()
    if name not in registered:
        raise CheckpointError(
            f"the model in {folder} was built by {name!r}, but there is no member of this "
            f"name{suggest_names(name, registered)}"
        )
    return registered[name]
