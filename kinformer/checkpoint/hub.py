"""hf_path: the local copy of a model of the Hugging Face Hub, which is written as hf:ORG/NAME."""

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from kinformer.checkpoint.model_files import CONFIG, TOKENIZER, WEIGHTS
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.quote import quote, shorten

WORD = "hf:"
FORM = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>refs/pr/\d+|[^/]+))?(/(?P<file>.+\.gguf))?")
SMALL = (  # files beside the weights that are read, none of which is code
    *(CONFIG, TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("generation_config.json", "chat_template.jinja", "vocab.txt", "vocab.json", "merges.txt"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
)
SHARDS, INDEX = "model-*.safetensors", f"{WEIGHTS}.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
CONNECT, READ = 1.5, 30.0  # seconds: to reach the Hub, and to get an answer
NAMED = 4  # files that a message names


def hf_path(text: str, *, weights: bool = True) -> Path:
    """Return the local folder or .gguf file of a model that a text names.

    "hf:ORG/NAME" is a folder of the Hugging Face Hub, "hf:ORG/NAME@REVISION" one of its revisions, and
    "hf:ORG/NAME/FILE.gguf" one of its files. The config, the tokenizer and safetensors are downloaded unless the cache
    of the package huggingface_hub holds them. A pickle or code is never downloaded. Without a connection the cache is
    used. "hf:PATH" is the folder or file PATH, if it exists; any other text is a path.

    text: the text.
    weights: False leaves out the weights, for a tokenizer.

    Errors: ValueError for a name of another form. ImportError without the package huggingface_hub. FileNotFoundError,
    in one line, for a model that does not exist, cannot be reached, or has no weights that kinformer reads.
    PermissionError for a model whose terms were not accepted.
    """
    if not text.startswith(WORD):
        return Path(text)
    word = text.removeprefix(WORD)
    path = Path(word).expanduser()
    if word and path.exists():
        return path
    if (match := FORM.fullmatch(word)) is None or ".." in text:
        raise ValueError(
            f"wrong name of a model of the Hugging Face Hub: got {quote(text)}, expected hf:ORG/NAME or "
            "hf:ORG/NAME/FILE.gguf, with @REVISION after the name if needed. For a folder, check that it exists"
        )
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise ImportError(
            f"{text} needs the package huggingface_hub, which is not installed; pip install 'kinformer[hf]'"
        ) from error
    name, revision, file = match["name"], match["revision"], match["file"]
    try:
        timeout: Any = (CONNECT, READ, READ, READ)  # httpx takes four numbers, of which the annotation knows one
        siblings = hub.HfApi().model_info(name, revision=revision, timeout=timeout).siblings or []
        wanted = _choose(text, [part.rfilename for part in siblings], file, weights)
        if file is not None:
            return Path(hub.hf_hub_download(name, file, revision=revision))
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=wanted))
    except _Unread as error:
        raise FileNotFoundError(str(error)) from None
    except hub.errors.GatedRepoError as error:
        raise PermissionError(
            f"{text} is open only to users who accepted its terms: accept them at https://huggingface.co/{name}, and "
            "log in with `hf auth login`"
        ) from error
    except hub.errors.RevisionNotFoundError as error:
        raise FileNotFoundError(f"{text} does not exist: {name} has no revision {revision!r}") from error
    except hub.errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"{text} does not exist, or is private: check the name, or log in with `hf auth login`"
        ) from error
    except Exception as error:  # no connection, in the words of the HTTP client; a full disk
        if (cached := _cached(hub, name, revision, file, weights)) is not None:
            return cached
        offline = isinstance(error, hub.errors.OfflineModeIsEnabled)
        fault = "HF_HUB_OFFLINE is set" if offline else shorten(f"{type(error).__name__}: {error}", 240)
        raise FileNotFoundError(
            f"cannot download {text}: {fault}, and the cache has no copy. {'Unset it' if offline else 'Connect'}, or "
            f"run `hf download {name}{f' {file}' if file else ''}` on another machine and give the folder"
        ) from error


class _Unread(Exception):
    """Reason why no file of a repository is downloaded."""


def _choose(text: str, names: list[str], file: str | None, weights: bool) -> list[str]:
    """Return the names of the files to download; _Unread if the repository has no weights that are read."""
    files = [name for name in names if name.endswith(".gguf")]
    if file is not None:
        if file not in files:
            raise _Unread(f"{text} does not exist{suggest_names(file, files)}; {_listed(files)}")
        return [file]
    small = [name for name in names if name in SMALL]
    if not weights:
        return small
    if WEIGHTS in names:
        return [*small, WEIGHTS]
    if INDEX in names:
        return [*small, INDEX, *(name for name in names if fnmatch(name, SHARDS))]
    if files:
        raise _Unread(f"{text} has no {WEIGHTS}; {_listed(files)}. Give one of them: {text}/{files[0]}")
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        raise _Unread(
            f"{text} has its weights only in {pickles[0]}, a pickle, which can run code when it is opened. Look for a "
            "copy with safetensors, or load it with transformers if you trust it, and save it with save_pretrained"
        )
    raise _Unread(f"{text} is no model of transformers: it has no {WEIGHTS}")


def _listed(files: list[str]) -> str:
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    return f"its GGUF files are {', '.join(files[:NAMED])}{more}" if files else "it has no GGUF files"


def _cached(hub: Any, name: str, revision: str | None, file: str | None, weights: bool) -> Path | None:
    """Return the file, or the folder with weights or a tokenizer, that the local cache has; None without one."""
    for needed in (file,) if file else (WEIGHTS, INDEX) if weights else (TOKENIZER, *SMALL):
        found = hub.try_to_load_from_cache(name, needed, revision=revision)
        if isinstance(found, str):
            return Path(found) if file else Path(found).parent
    return None
