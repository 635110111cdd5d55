"""The command `kinformer export`: write a trained model for other libraries."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kinformer.checkpoint.model_files import CONFIG, METRICS, read_config
from kinformer.cli.errors import print_warnings
from kinformer.cli.options import Json, Own, Trained
from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, UserError, from_user

NAMED = 3  # most files that a message names


def export(
    ctx: typer.Context,
    folder: Trained,
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
        bool,
        typer.Option("--overwrite", is_eager=True, help="Replace an earlier export in --out; other files there stay."),
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
    the Hub. If a class of transformers computes the same output, such as GPT2LMHeadModel or LlamaForCausalLM, the
    folder is of that class. Otherwise the output names the reason, and the folder is of a class of kinformer:
    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True) then needs kinformer installed. Only models of
    text have a class of kinformer. A model of bytes gets a tokenizer whose ids are the bytes of a text.

    With pt2, the model is a language model or a masked language model. Its graph takes tokens [B, T], with any B, and T
    from 3 to the model's longest row. -1 is padding. It has no cache. A model is refused if PyTorch finds no graph that
    serves all shapes, as for topk_transformer.
    """
    _refuse_files(folder, out, overwrite)
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.exported_files import export_for_hf, export_graph
    from kinformer.cli.support.load_model import load_model

    model = load_model(folder, member, "cpu")
    with from_user(ValueError, TypeError), from_user(OSError, code=FAILED), print_warnings():
        result = (export_for_hf if format == "hf" else export_graph)(model, folder, out)
    print(json.dumps(result.record, indent=2) if as_json else result.text)


def _refuse_files(folder: Path, out: Path, overwrite: bool) -> None:
    """Refuse a folder with files unless --overwrite is given, and always a run or the folder of the model itself.

    Hidden files are ignored.
    """
    if out.resolve() == folder.resolve():
        raise UserError(f"--out {out} is the folder of the model itself, which is not overwritten. Give another --out")
    if (foreign := _not_of_export(out)) is not None:
        raise UserError(f"{out} holds {foreign}, which --overwrite does not replace. Give another --out")
    names = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.is_dir() else []
    if names and not overwrite:
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        raise UserError(
            f"{out} holds {', '.join(names[:NAMED])}{more}. Give another --out, or --overwrite to replace an earlier "
            "export there"
        )


def _not_of_export(out: Path) -> str | None:
    """A model or comparison in a folder that is no earlier export, in words; None if there is none."""
    if any((out / name).exists() for name in (option_checks.PLAN, option_checks.RESULTS)):
        return "a comparison"
    config: Any = None
    with suppress(OSError, ValueError):
        config = read_config(out / CONFIG)
    keys = config.keys() if isinstance(config, dict) else set()
    if (out / METRICS).exists() or ("member" in keys and "model_type" not in keys):
        return "a model of kinformer"
    # every model of transformers has a model_type
    return f"a {CONFIG} of another program" if (out / CONFIG).exists() and "model_type" not in keys else None
