"""The command `kinformer export`: write a trained model for other libraries."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from kinformer.cli.errors import print_warnings
from kinformer.cli.options import Json, Own, trained_folder
from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, from_user


def export(
    ctx: typer.Context,
    folder: Annotated[Path, trained_folder("that reads text, or a .gguf file.")],
    *,
    out: Annotated[Path, typer.Option(callback=option_checks.folder, help="Folder to write, new or empty.")],
    format: Annotated[
        Literal["hf", "pt2"],
        typer.Option(
            help="hf: a folder for from_pretrained of Hugging Face transformers. pt2: model.pt2, a graph for "
            "torch.export.load that maps tokens to logits."
        ),
    ] = "hf",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", is_eager=True, help="Write into --out although it has files.")
    ] = False,
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Write a trained model for other libraries.

    \b
    Examples:
        # For transformers: a GPT2LMHeadModel with its tokenizer and a model card
        kinformer export runs/gpt --out FOLDER
        # A graph of tokens [B, T] to logits, which runs without kinformer's Python code
        kinformer export runs/gpt --out FOLDER --format pt2

    With hf, the folder has config.json, model.safetensors, the files of the tokenizer, and README.md, a model card for
    the hub. If a class of transformers computes the same output, such as GPT2LMHeadModel or LlamaForCausalLM, the
    folder is of that class. Otherwise the output names the reason, and the folder is of a class of kinformer:
    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True) then needs kinformer installed. A model of
    bytes gets a tokenizer whose ids are the bytes of a text.

    With pt2, the graph takes any number of rows, of 3 tokens up to the longest row of the model. -1 is padding. It has
    no cache. Members whose computation depends on the data, beyond its shape, are refused.
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.exported_files import export_for_hf, export_graph, refuse_files
    from kinformer.cli.support.load_model import load_model

    model = load_model(folder, member, "cpu")
    refuse_files(folder, out, overwrite)
    with from_user(ValueError, TypeError), from_user(OSError, code=FAILED), print_warnings():
        result = (export_for_hf if format == "hf" else export_graph)(model, folder, out)
    print(json.dumps(result.record, indent=2) if as_json else result.text)
