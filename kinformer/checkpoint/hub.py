"""hf_path: the local copy of a model of the Hugging Face Hub, which is written as hf:ORG/NAME."""

import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from kinformer.checkpoint.model_files import (
    CONFIG,
    GENERATION_CONFIG,
    INDEX,
    PICKLES,
    SHARDS,
    TOKENIZER,
    TOKENIZER_FILES,
    VOCABULARIES,
    WEIGHTS,
    CheckpointError,
    read_config,
)
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.quote import quote, shorten

PREFIX = "hf:"
FORM = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>refs/pr/\d+|[^/]+))?(/(?P<file>.+\.(?i:gguf)))?")
TOKENIZERS = (TOKENIZER, *VOCABULARIES)  # each of them is enough for a tokenizer
BESIDE_WEIGHTS = (CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES)  # none of them is code
CONNECT, READ = 1.5, 30.0  # seconds: to reach the Hub, and to get an answer
NAMED = 4  # files that a message names


def hf_path(text: str, *, weights: bool = True) -> Path:
    """Return the local folder or .gguf file of a model that a text names.

    "hf:ORG/NAME" is a folder of the Hugging Face Hub, "hf:ORG/NAME@REVISION" one of its revisions, and
    "hf:ORG/NAME/FILE.gguf" one of its files. The config, the tokenizer and safetensors are downloaded unless the cache
    of the package huggingface_hub holds them. A pickle or code is never downloaded. Without a connection a complete
    copy in the cache is used. "hf:PATH" is the folder or file PATH, if it exists; any other text is a path.

    text: the text.
    weights: False leaves out the weights, for a tokenizer.

    Errors: ValueError for a name of another form. ImportError without the package huggingface_hub. FileNotFoundError,
    in one line, for a model that does not exist, cannot be downloaded, or has no weights that kinformer reads.
    PermissionError for a model whose terms were not accepted.
    """
    if not text.startswith(PREFIX):
        return Path(text)
    path = Path(os.path.expanduser(text.removeprefix(PREFIX)))  # unlike Path.expanduser, accepts an unknown user
    if text != PREFIX and path.exists():
        return path
    source = _parse(text)
    hub = _hub_package(text)
    try:
        hub.utils.validate_repo_id(source.name)
    except ValueError:
        raise _wrong_name(text) from None
    try:
        return _download(hub, source, weights)
    except _Unreadable:
        raise
    except Exception as error:  # the package raises the errors of its HTTP client and of the disk too
        cause = error.__cause__ if isinstance(error, hub.errors.LocalEntryNotFoundError) else None
        fault = error if cause is None else cause
        if _is_connection_error(hub, fault) and (cached := _cached_copy(hub, source, weights)) is not None:
            return cached
        raise _refusal(hub, source, fault) from error


class _Source(NamedTuple):
    """A model of the Hub: the text that names it, ORG/NAME, the revision or None, and the .gguf file or None."""

    text: str
    name: str
    revision: str | None
    file: str | None


class _Unreadable(FileNotFoundError):
    """Error for a repository that has no file to download."""


def _parse(text: str) -> _Source:
    match = FORM.fullmatch(text.removeprefix(PREFIX))
    if match is None or ".." in text:
        raise _wrong_name(text)
    return _Source(text, match["name"], match["revision"], match["file"])


def _wrong_name(text: str) -> ValueError:
    return ValueError(
        f"wrong name of a model of the Hugging Face Hub: got {quote(text)}, expected hf:ORG/NAME or "
        "hf:ORG/NAME/FILE.gguf, with @REVISION after the name if needed. For a folder, check that it exists"
    )


def _hub_package(text: str) -> Any:
    try:
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise ImportError(
            f"{text} needs the package huggingface_hub, which is not installed; run `pip install '.[hf]'` in "
            "kinformer's folder"
        ) from error
    return huggingface_hub


def _download(hub: Any, source: _Source, weights: bool) -> Path:
    """Return the path of the files, which are downloaded unless the cache has them."""
    timeout: Any = (CONNECT, READ, READ, READ)  # httpx takes four numbers, of which the annotation knows one
    siblings = hub.HfApi().model_info(source.name, revision=source.revision, timeout=timeout).siblings or []
    wanted = _choose(source, [sibling.rfilename for sibling in siblings], weights)
    if source.file is not None:
        return Path(hub.hf_hub_download(source.name, source.file, revision=source.revision))
    return Path(hub.snapshot_download(source.name, revision=source.revision, allow_patterns=wanted))


def _choose(source: _Source, names: Sequence[str], weights: bool) -> list[str]:
    """Return the names of the files to download; _Unreadable if the repository has none that is read."""
    text, files = source.text, [name for name in names if name.lower().endswith(".gguf")]
    if source.file is not None:
        if source.file not in files:
            raise _Unreadable(f"{text} does not exist{suggest_names(source.file, files)}; {_listed(files)}")
        return [source.file]
    small = [name for name in names if name in BESIDE_WEIGHTS]
    if not weights:
        if not {*TOKENIZERS} & {*names}:
            raise _Unreadable(f"cannot load the tokenizer of {text}: expected {TOKENIZER} or {VOCABULARIES[0]}")
        return small
    if WEIGHTS in names:
        return [*small, WEIGHTS]
    if INDEX in names:
        return [*small, INDEX, *_matching(names, [SHARDS])]
    if files:
        raise _Unreadable(f"{text} has no {WEIGHTS}; {_listed(files)}. Give one of them: {text}/{files[0]}")
    if pickles := _matching(names, PICKLES):
        raise _Unreadable(
            f"{text} has its weights only in {pickles[0]}, a pickle, which can run code when it is opened. Look for a "
            "copy with safetensors, or load it with transformers if you trust it, and save it with save_pretrained"
        )
    raise _Unreadable(f"cannot load {text}: expected {WEIGHTS} or {INDEX}. Write it with save_pretrained")


def _matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def _listed(files: list[str]) -> str:
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    return f"its GGUF files are {', '.join(files[:NAMED])}{more}" if files else "it has no GGUF files"


def _is_connection_error(hub: Any, error: BaseException) -> bool:
    """True if the Hub was not reached; an error with the Hub's answer, such as status 500, is no connection error."""
    if isinstance(error, hub.errors.HfHubHTTPError):
        return False
    return isinstance(error, hub.errors.HTTPError | ConnectionError | TimeoutError)  # HTTPError of the HTTP client


def _cached_copy(hub: Any, source: _Source, weights: bool) -> Path | None:
    """Return the file, or the complete folder with weights or a tokenizer, in the local cache; None without one."""
    name, revision, file = source.name, source.revision, source.file
    if file is not None:
        path = hub.try_to_load_from_cache(name, file, revision=revision)
        return Path(path) if isinstance(path, str) else None
    for patterns in ([WEIGHTS], [INDEX, SHARDS]) if weights else ([],):
        wanted = [*BESIDE_WEIGHTS, *patterns]
        try:
            folder = Path(hub.snapshot_download(name, revision=revision, allow_patterns=wanted, local_files_only=True))
        except FileNotFoundError:  # there is no copy, or it lacks one of the files that were listed at its download
            continue
        if _has_weights(folder) if weights else any((folder / name).is_file() for name in TOKENIZERS):
            return folder
    return None


def _has_weights(folder: Path) -> bool:
    """True if a folder has a config and all weights; the package lists no files for copies of its older versions."""
    if not (folder / CONFIG).is_file() or (folder / WEIGHTS).is_file():
        return (folder / CONFIG).is_file()
    try:
        return all((folder / name).is_file() for name in read_config(folder / INDEX)["weight_map"].values())
    except (OSError, CheckpointError, LookupError, TypeError, AttributeError):
        return False


def _refusal(hub: Any, source: _Source, error: BaseException) -> OSError:
    """Return the error about a model that cannot be downloaded."""
    text, name, revision, file = source
    if isinstance(error, hub.errors.GatedRepoError):
        return PermissionError(
            f"{text} is open only to users who accepted its terms: accept them at https://huggingface.co/{name}, and "
            "log in with `hf auth login`"
        )
    if isinstance(error, hub.errors.RevisionNotFoundError):
        return FileNotFoundError(f"{text} does not exist: {name} has no revision {revision!r}")
    if isinstance(error, hub.errors.RepositoryNotFoundError):
        hint = "check the name, or log in with `hf auth login`"
        return FileNotFoundError(f"{text} does not exist, or is private: {hint}")
    fault, advice = shorten(f"{type(error).__name__}: {error}", 240), "Try again"
    if isinstance(error, hub.errors.OfflineModeIsEnabled):
        fault, advice = "HF_HUB_OFFLINE is set, and the cache has no complete copy", "Unset it"
    elif _is_connection_error(hub, error):
        fault, advice = f"{fault}, and the cache has no complete copy", "Connect"
    words = ["hf download", name, *([file] if file else []), *([f"--revision {revision}"] if revision else [])]
    return FileNotFoundError(
        f"cannot download {text}: {fault}. {advice}, or run `{' '.join(words)}` on another machine and give the folder"
    )
