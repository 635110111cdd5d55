"""The command `kinformer classify`: label texts with a trained classifier."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kinformer.cli.errors import print_warnings
from kinformer.cli.options import Device, Json, Own, RunPrecision, trained_folder
from kinformer.cli.support.text_lines import read_texts
from kinformer.core.did_you_mean import suggest_names
from kinformer.lab.errors import UserError, from_user
from kinformer.pages.terminal_safe_text import for_stream


def classify(
    folder: Annotated[Path, trained_folder("of a member that labels texts, such as bert_classifier.")],
    text: Annotated[str | None, typer.Option(help="Text to label.")] = None,
    texts: Annotated[Path | None, typer.Option(help="File of texts to label, one per line.")] = None,
    task: Annotated[
        str | None,
        typer.Option(help="For a model of several tasks, such as camtl: name of the task; default: every task."),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(help="Number of likeliest labels to show; default: all for --text, one for --texts.", min=1),
    ] = None,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Label texts with a trained classifier.

    \b
    Examples:
        kinformer classify runs/bert_classifier --text "a wonderful film"
        # One label, its probability and the text per line of a file
        kinformer classify runs/bert_classifier --texts FILE

    The model was trained with --data labelled=FILE or multitask=FOLDER, and knows the labels of that data. The
    probabilities of a text add up to 1. With --texts, a line has the likeliest label, its probability and the text,
    separated by tabs. `kinformer evaluate` measures how often the labels are right.
    """
    if (text is None) == (texts is None):
        raise UserError("give one of --text TEXT and --texts FILE")
    rows = read_texts(text, texts, "text") or []
    # imported here, so that --help and early errors do not wait for torch or rich
    import torch

    from kinformer.cli.support.load_model import load_model
    from kinformer.decoding.byte_tokenizer import tokenizer_of_model, warn_of_loss
    from kinformer.decoding.label_texts import label_probabilities, task_names
    from kinformer.lab.data.batches import device_of
    from kinformer.models.support.row_classifier import RowClassifier

    model = load_model(folder, member, device, precision=precision)
    if not isinstance(model, RowClassifier):
        raise UserError(
            f"this model reads {model.reads} data and labels no texts; use a model of a member such as bert_classifier"
        )
    encode, names = tokenizer_of_model(model).encode, _chosen_tasks(task_names(model), task)
    with from_user(ValueError, LookupError), print_warnings():
        warn_of_loss(model, rows)
        tokens = [torch.tensor(encode(row), dtype=torch.long, device=device_of(model)) for row in rows]
        answers = [[label_probabilities(model, row, number) for number in names] for row in tokens]
    readable = [row.decode(errors="replace") for row in rows]
    if as_json:
        every = [
            {"text": row, "labels": answer[0] if names == {0: ""} else dict(zip(names.values(), answer, strict=True))}
            for row, answer in zip(readable, answers, strict=True)
        ]
        print(for_stream(json.dumps({"folder": str(folder), "texts": every}, ensure_ascii=False)))
        return
    shown = best or (None if texts is None else 1)
    for row, answer in zip(readable, answers, strict=True):
        for name, labels in zip(names.values(), answer, strict=True):
            likeliest = sorted(labels.items(), key=lambda pair: -pair[1])[:shown]
            print(for_stream(_line(name, likeliest, None if texts is None else row)))


def _chosen_tasks(names: list[str], wanted: str | None) -> dict[int, str]:
    """The names of the tasks to answer, by number; UserError if the model does not have the wanted one."""
    if wanted is not None and names == [""]:
        raise UserError("--task has no effect on a model of one task; leave it out")
    if wanted is not None and wanted not in names:
        raise UserError(f"this model has no task {wanted!r}{suggest_names(wanted, names)}")
    return {number: name for number, name in enumerate(names) if wanted in (None, name)}


def _line(task: str, likeliest: list[tuple[str, float]], text: str | None) -> str:
    """One line of the answer: for a file separated by tabs with the text at its end, else in words."""
    if text is not None:
        return "\t".join([*filter(None, [task]), *(f"{label}\t{p:.3f}" for label, p in likeliest), text])
    return f"{task}: " * bool(task) + ", ".join(f"{label} {p:.3f}" for label, p in likeliest)
