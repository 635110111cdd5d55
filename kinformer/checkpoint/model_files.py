"""Names of the files of a saved model, and the errors for missing or damaged files.

The module imports nothing heavy, so that a command can check its files before it starts. Use `contents` to read one of
them; `checkpoint/checkpoint.py` describes their content.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import contents as read_file
from kinformer.core.from_json import from_json
from kinformer.core.missing_path import missing_path

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
# the other names of transformers; a name with a star is a pattern
INDEX, SHARDS = f"{WEIGHTS}.index.json", "model-*-of-*.safetensors"  # the file of each tensor, if there are several
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")  # weights that are never opened
TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
CHAT_TEMPLATE, GENERATION_CONFIG = "chat_template.jinja", "generation_config.json"
VOCABULARIES = ("vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
TOKENIZER_FILES = (
    *(TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, "added_tokens.json", CHAT_TEMPLATE),
    *(*VOCABULARIES, "merges.txt"),
)
METRICS = "metrics.jsonl"  # the numbers of the training, in the folder of a run
BEST = "best"  # subfolder of a run with the best model
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # ORG/NAME
NAMED, DEEPEST = 6, 3  # runs that a message names; levels of folders in which it looks for them


class CheckpointError(ValueError):
    """Error for a folder that holds no loadable model; the message names the file and its fault."""


def contents(path: Path) -> bytes:
    """Return the bytes of a file of a saved model.

    path: file in the model's folder.

    Errors: OSError, in one line, if the file or its folder is missing or cannot be read.
    """
    folder = path.parent
    if folder.is_file():
        advice = ""
        if folder.suffix in (".pt", ".pth", ".bin", ".ckpt"):
            advice = "; a state_dict of torch.save is loaded by model.load_state_dict(torch.load(file))"
        if (folder.parent / CONFIG).is_file():
            advice = f"; give {folder.parent}"
        raise NotADirectoryError(f"{folder} is a file, but a model is a folder{advice}")
    if not folder.is_dir():
        is_hub_name = HUB_NAME.fullmatch(str(folder)) and not folder.parent.is_dir()
        advice = f"for a model of the Hugging Face Hub write hf:{folder}" if is_hub_name else ""
        raise FileNotFoundError(missing_path(folder, advice))
    if not path.is_file():
        runs = "" if (folder / CONFIG).is_file() else _describe_runs(folder)
        raise FileNotFoundError(runs or f"{folder} is not a model: it has no {path.name}")
    return read_file(path)


def read_config(path: Path) -> Any:
    """Return the content of a model's config.json, which `checkpoint.load` checks further.

    path: the file.

    Errors: OSError if the file is missing. CheckpointError if it is not JSON.
    """
    try:
        return from_json(contents(path))
    except ValueError as error:
        raise CheckpointError(f"{path} is truncated or not JSON: {error}") from error


def is_foreign(config: Any) -> bool:
    """Return whether the content of a config.json is of a model of Hugging Face transformers.

    config: the content.
    """
    return isinstance(config, dict) and "model_type" in config and "member" not in config


def _describe_runs(folder: Path) -> str:
    """The message about a folder without a model that holds runs, such as a folder of `compare`; "" without runs."""
    try:
        runs = sorted(_runs_in(folder, DEEPEST))
    except OSError:  # a folder that cannot be read
        return ""
    if not runs:
        return ""
    names = [str(run.relative_to(folder)) for run in runs]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    count = f"{len(names)} runs" if len(names) > 1 else "one run"
    best = _best_run(runs)
    advice = f"give {runs[0]}" if best is None else f"give {best}, which has the best validation metric"
    return f"{folder} holds {count}: {', '.join(names[:NAMED])}{more}; {advice}"


def _best_run(runs: Sequence[Path]) -> Path | None:
    """The run with the best metric on validation data; None unless all runs measured the same metric."""
    results = [_validation(run) for run in runs]
    names, better = {name for name, _, _ in results}, {less for _, less, _ in results}
    if len(runs) < 2 or len(names) != 1 or None in names:
        return None
    values = [value for _, _, value in results]
    return runs[values.index(min(values) if "less" in better else max(values))]


def _validation(run: Path) -> tuple[str | None, str, float]:
    """The name of a run's metric, the better side, and its best value; the name is None if they are unknown."""
    try:
        first, *rest = [from_json(line) for line in read_file(run / METRICS).splitlines()]
        values = [float(line["valid"]) for line in rest if "valid" in line]
        values = [value for value in values if math.isfinite(value)]
        better = first["metric"]["better"]
        return first["metric"]["name"], better, min(values) if better == "less" else max(values)
    except (OSError, ValueError, LookupError, TypeError):  # no run, or a damaged one
        return None, "less", 0.0


def _runs_in(folder: Path, levels: int) -> Iterator[Path]:
    """The folders below a folder that hold a model; the best model of a run does not count apart from the run."""
    for inside in folder.iterdir() if levels else ():
        if inside.name.startswith(".") or not inside.is_dir():
            continue
        if (inside / CONFIG).is_file():
            yield inside
        else:
            yield from _runs_in(inside, levels - 1)
