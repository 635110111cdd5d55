"""Model card: the README.md of a model's folder, with the metadata that the Hugging Face Hub reads."""

import inspect
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from kinformer.bridge.hf_export import HFFolder, without_folders
from kinformer.checkpoint.model_files import TOKENIZER
from kinformer.checkpoint.tokenizer_choice import as_tokenizer
from kinformer.core.discover import find_member

CARD = "README.md"  # name of the file
TASKS = {
    "text": "text-generation",
    "masked": "fill-mask",
    "pairs": "text2text-generation",
    "labelled": "text-classification",
    "trajectories": "reinforcement-learning",
}


class MeasuredValue(NamedTuple):
    """One measured number of a model.

    name, unit: name and unit of the measure, such as "bits per byte" in "bits".
    value: the number.
    on: the data that it was measured on.
    """

    name: str
    unit: str
    value: float
    on: str


class TrainingResults(NamedTuple):
    """The facts about the training of a model that its card shows.

    steps: number of steps.
    tokens: number of tokens trained on.
    minutes: training time.
    values: the measured numbers, the main one first.
    picture: name of a picture in the folder; None without.
    hardware: the machine of the training; None if it is not known.
    """

    steps: int
    tokens: int
    minutes: float
    values: tuple[MeasuredValue, ...]
    picture: str | None = None
    hardware: str | None = None


def model_card(model: Any, content: HFFolder, name: str, results: TrainingResults | None = None) -> bytes:
    """Return the README.md of a model's folder.

    model: the model.
    content: its files for transformers, by `hf_folder`.
    name: title of the card.
    results: the facts about the training; None if they are not known.
    """
    metadata = "\n".join(f"{key}: {json.dumps(value)}" for key, value in _metadata(model, content, name, results))
    parts = (_summary(model, content), *_usage(content), *_training(model, results), *_limits(model, content))
    return "\n\n".join((f"---\n{metadata}\n---", f"# {name}", *parts)).encode() + b"\n"


def _metadata(model: Any, content: HFFolder, name: str, results: TrainingResults | None) -> Iterator[tuple[str, Any]]:
    """Yield the entries that the Hub reads; JSON is YAML too."""
    task = TASKS[model.reads]
    yield "library_name", "transformers"
    yield "pipeline_tag", task
    yield "tags", ["kinformer", model.member.name, *([] if content.reason is None else ["custom_code"])]
    if results is not None and results.values:
        metrics = [
            {"type": value.name.replace(" ", "_"), "name": value.name, "value": value.value} for value in results.values
        ]
        data = {"type": model.reads, "name": f"{_data(model)}: {results.values[0].on}"}
        yield (
            "model-index",
            [{"name": name, "results": [{"task": {"type": task}, "dataset": data, "metrics": metrics}]}],
        )


def _summary(model: Any, content: HFFolder) -> str:
    record = model.member
    doc = inspect.getdoc(find_member(record.name)) or ""
    first = " ".join(doc.split("\n\n")[0].split())
    count = sum(weight.numel() for weight in model.parameters())
    values = {
        key: without_folders(value) if isinstance(value, str) else value for key, value in record.keywords.items()
    }
    keywords = ", ".join(f"{key}={value!r}" for key, value in values.items())
    vocab, tokenizer = getattr(model, "vocab", None), as_tokenizer(model.tokenizer)
    tokens = model.reads if vocab is None else f"{vocab:,} tokens" if tokenizer else "the bytes of a text (UTF-8)"
    package = "a class of transformers" if content.reason is None else "a class of kinformer"
    return (
        f"The member `{record.name}` of kinformer. {first}\n\n"
        f"- Parameters: {count:,}\n- Reads: {tokens}\n- Class: `{content.architecture}`, {package}\n"
        f"- Keywords: `{keywords}`"
        + "".join(f"\n- Converted: `{change.name}` with `{change.options}`" for change in record.changes)
    )


def _usage(content: HFFolder) -> Iterator[str]:
    trust = "" if content.reason is None else ", trust_remote_code=True"
    yield "## Use"
    if content.reason is not None:
        yield f"It needs kinformer installed, because {content.reason}."
    classes = [("model", content.loader), *([("tokenizer", "AutoTokenizer")] if TOKENIZER in content.files else [])]
    names = ", ".join(loader for _, loader in classes)
    lines = [f'{name} = {loader}.from_pretrained("FOLDER"{trust})' for name, loader in classes]
    yield "\n".join(["```python", f"from transformers import {names}", "", *lines, "```"])
    yield 'With kinformer:\n\n```python\nimport kinformer as kf\n\nmodel = kf.load("FOLDER")\n```'


def _training(model: Any, results: TrainingResults | None) -> Iterator[str]:
    if results is None and model.trained_on is None:
        return
    yield "## Training"
    lines = [f"- Data: `{_data(model)}`"] if model.trained_on is not None else []
    if model.trained_length is not None:
        lines.append(f"- Longest row: {model.trained_length:,} tokens")
    if results is None:
        yield "\n".join(lines)
        return
    lines.append(f"- {results.steps:,} steps, {results.tokens:,} tokens, {results.minutes:.1f} minutes")
    if results.hardware is not None:
        lines.append(f"- Machine: {results.hardware}")
    yield "\n".join(lines)
    if results.values:
        table = ["| metric | value | unit | data |", "|---|---|---|---|"]
        yield "\n".join([*table, *(f"| {v.name} | {v.value:.4f} | {v.unit} | {v.on} |" for v in results.values)])
    if results.picture is not None:
        yield f"![curves of the training]({results.picture})"


def _data(model: Any) -> str:
    return without_folders(model.trained_on or "unknown data")


def _limits(model: Any, content: HFFolder) -> Iterator[str]:
    yield "## Limits"
    lines = []
    if model.window is not None:
        lines.append(f"Its positions are learned for rows of up to {model.window:,} tokens.")
    elif model.trained_length is not None:
        lines.append(f"Rows of more than {model.trained_length:,} tokens are longer than all rows of the training.")
    if content.reason is not None and model.reads == "text":
        lines.append("Each step of `generate` in transformers reads the whole row again. `kf.generate` keeps a cache.")
    lines.append(
        "Nobody has tested its outputs for errors or bias. The licence of the training data is not recorded here."
    )
    yield "\n".join(f"- {line}" for line in lines)
