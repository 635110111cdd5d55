"""Callbacks of options (`cli/options.py`) that check a value before torch is imported.

The callbacks use only the command line and the disk. A callback accepts a value if it cannot decide. The command then
checks the value, with the same messages.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from kinformer.checkpoint.atomic_files import existing_path
from kinformer.checkpoint.hub import hf_path
from kinformer.checkpoint.model_files import CONFIG, WEIGHTS, contents, read_config
from kinformer.cli.support import static_source
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import check_member_name, has_plugins, part_files
from kinformer.core.from_json import from_json
from kinformer.core.keywords import parse_keywords, split
from kinformer.core.missing_path import missing_path
from kinformer.core.training_recipe import Recipe, check_betas, check_eps
from kinformer.lab.data.support.spec_options import refuse_unknown, words_of
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import split_keywords

PLAN, RESULTS = "comparison.json", "results.json"  # files in the folder of a comparison
# spellings of number formats, and the name that settings and runs record
PRECISIONS = {
    "float32": "float32",
    "fp32": "float32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
}
ON_DISK = re.compile(r"\w+=(PATH|FILE|FOLDER)")  # the FORM of a kind of data that is read from files
WRITES = ("bits per byte", "bits per token")  # metrics of models that predict the next token
NOT_A_PATH = re.compile(r"hf:|stdlib$|.*[*?[]", re.DOTALL)


def member(name: str | None) -> str | None:
    """Check that the library has the named member, or that the user's file with the member exists.

    name: the name of the member, or FILE.py:NAME; None is accepted.

    Errors: UserError.
    """
    if name is None:
        return None
    file = name.rpartition(":")[0] if ".py:" in name else name if name.endswith(".py") else None
    if file is not None:
        if not Path(file).expanduser().is_file():
            raise UserError(missing_path(file))
    elif not has_plugins("members") and static_source.member_stub(name) is None:
        if (trained := saved_config(Path(name)).get("member")) is not None:
            raise UserError(
                f"{name} is a run, not a member: write {trained}, with --out {name} --resume or --from {name}"
            )
        with from_user(LookupError):
            check_member_name(name, static_source.member_names())
    return name


def keywords(ctx: typer.Context, texts: list[str] | None) -> list[str] | None:
    """Check the keywords that a command gives to its member, and their values.

    ctx: the context of the command, which holds the member and --data.
    texts: the keywords, such as "depth=2".

    Errors: UserError.
    """
    _check_keywords(ctx, str(ctx.params.get("member")), texts or ())
    return texts


def changed(ctx: typer.Context, texts: list[str] | None) -> list[str] | None:
    """Check keywords that a command changes in a trained model, and their values.

    ctx: the context of the command, which holds the model's folder.
    texts: the keywords, such as "memory=512".

    Errors: UserError.
    """
    name = saved_config(Path(ctx.params["folder"])).get("member")
    if name is not None and (like := static_source.member_stub(name)) is not None:
        with from_user(TypeError):
            parse_keywords(like, texts or ())
    return texts


def saved_config(folder: Path) -> dict[str, Any]:
    """The member and metric of a model's config; empty if the member is in a user's file.

    folder: the folder. An unreadable config in it is empty too, because the command that reads it refuses it.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        config = from_json(contents(folder / CONFIG))
        if "file" not in config:
            return {"member": config.get("member"), "metric": config.get("metric", {}).get("name")}
    return {}


def members(ctx: typer.Context, texts: list[str]) -> list[str]:
    """Check that each member exists, and has the keywords that stand in brackets after it.

    ctx: the context of the command, which holds --data.
    texts: the members, such as "gpt(depth=2)".

    Errors: UserError.
    """
    for text in texts:
        name, bracket, inside = text.strip().partition("(")
        member(name.strip())
        if bracket:
            _check_keywords(ctx, name.strip(), [piece for piece in split(inside.rpartition(")")[0]) if piece])
    return texts


def _check_keywords(ctx: typer.Context, name: str, texts: Iterable[str]) -> None:
    """Refuse keywords that neither the member has, nor the host that uses its layers for this kind of data."""
    like = static_source.member_stub(name)
    kind = str(ctx.params.get("data") or "").partition("=")[0]
    host = static_source.constant(part_files("data")[kind], "lends") if kind in part_files("data") else None
    over = static_source.member_stub(host) if host else None
    if like is None or (host and over is None):
        return
    with from_user(TypeError):
        member_texts, host_texts = (texts, ()) if over is None else split_keywords(like, over, texts)
        parse_keywords(like, member_texts)
        if over is not None:
            parse_keywords(over, host_texts)


def data(spec: str | None) -> str | None:
    """Check --data: its kind and options are known, and its files exist and are not empty.

    spec: the value of --data, such as "text=notes.txt,documents=blank"; None is accepted.

    Errors: UserError.
    """
    if spec is None or has_plugins("data"):
        return spec
    files = {name: file for name, file in part_files("data").items() if static_source.defines(file, "read")}
    forms = {name: str(static_source.constant(file, "FORM")) for name, file in files.items()}
    with from_user(ValueError):
        kind, where, options = words_of(spec, forms)
        if (names := static_source.arguments(files[kind], "read")) is not None:
            refuse_unknown(kind, options, names[1:])
    if ON_DISK.match(forms[kind]):
        _check_path(where, f"write {'text=stdlib or ' if kind == 'text' else ''}{forms[kind]}", f"{kind}={where}")
    if "=NAME" in forms[kind] and ".py:" not in where and not has_plugins(f"{kind}s"):
        if where not in (files_of_kind := part_files(f"{kind}s")):
            raise UserError(f"there is no {kind} {where!r}{suggest_names(where, files_of_kind)}")
    return spec


def valid(where: str | None) -> str | None:
    """Check that the validation data of --valid exists.

    where: path of a file or folder; None is accepted.

    Errors: UserError.
    """
    if where is not None:
        _check_path(where, "give --valid a file or folder of validation data", where)
    return where


def _check_path(where: str, advice: str, name: str) -> None:
    if NOT_A_PATH.match(where):
        return
    with from_user(OSError):
        path = existing_path(where, advice)
    if path.is_file() and not path.stat().st_size:
        raise UserError(f"{name} holds no byte. Give a file that is not empty")


def trained_model(folder: Path | None) -> Path | None:
    """Check that a folder holds a model, and return it.

    folder: the folder, a .gguf file, or hf:ORG/NAME, which is downloaded; None is accepted.

    Errors: UserError.
    """
    with from_user(OSError, ValueError, ImportError):
        folder = None if folder is None else hf_path(str(folder))
        if folder is not None and (folder.suffix.lower() != ".gguf" or not folder.is_file()):
            if not folder.exists() and static_source.member_stub(str(folder)) is not None:
                train = f"kinformer train {folder} --data text=stdlib --minutes 3 --out runs/{folder}"
                raise FileNotFoundError(missing_path(folder, f"to make a trained {folder}: `{train}`"))
            read_config(folder / CONFIG)
    return folder


def masked_model(folder: Path) -> Path:
    """Check that a folder holds a model that fills in gaps of a text, by the metric in its config.

    folder: the folder.

    Errors: UserError if the folder holds no model, or if the metric shows that the model predicts the next token.
    """
    folder = trained_model(folder) or folder
    if (metric := saved_config(folder).get("metric")) in WRITES:
        raise no_blanks(f"run `kinformer generate`: its metric, {metric}, is of models that predict the next token")
    return folder


def no_blanks(instead: str) -> UserError:
    """Return the error for a model that does not fill in gaps of a text.

    instead: advice for this model, such as another command.
    """
    return UserError(f"this model does not fill in gaps of a text. Use a model of a member such as bert, or {instead}")


def fraction_or_steps(text: str) -> float | int:
    """Parse the value of --warmup.

    text: a fraction of the training, such as "0.05", or a number of steps, such as "400".

    Errors: UserError if it is not a number.
    """
    try:
        return int(text) if text.strip().isdecimal() else float(text)
    except ValueError:
        raise UserError(
            f"wrong --warmup: got {text}, expected a fraction of the training, such as 0.05, or a number of steps"
        ) from None


def warmup(ctx: typer.Context, length: float | int | None) -> float | int | None:
    """Check that the schedule of --schedule accepts the warm-up of --warmup.

    ctx: the context of the command, which holds --schedule.
    length: the warm-up as a fraction or a number of steps; None is accepted.

    Errors: UserError.
    """
    if length is not None:
        with from_user(ValueError):
            Recipe(warmup=length, schedule=ctx.params.get("schedule") or "cosine")
    return length


def betas(text: str) -> tuple[float, float]:
    """Parse the value of --betas, the decay rates of the optimiser Adam.

    text: two numbers from 0 to below 1, separated by a comma.

    Errors: UserError.
    """
    try:
        first, second = map(float, text.split(","))
    except ValueError:
        raise UserError(
            f"wrong --betas: got {text}, expected two numbers separated by a comma, such as 0.9,0.98"
        ) from None
    with from_user(ValueError):
        return check_betas((first, second))


def eps(value: float | None) -> float | None:
    """Check the value of --eps, the constant in the denominator of the optimiser Adam.

    value: the constant, which must be above 0; None is accepted.

    Errors: UserError.
    """
    with from_user(ValueError):
        return None if value is None else check_eps(value)


def precision(name: str) -> str:
    """Check the number format of --precision, and return its short name.

    name: "float32", "bf16" or "fp16"; other spellings, such as "fp32" and "bfloat16", are accepted.

    Errors: UserError.
    """
    name = PRECISIONS.get(name, name)
    if name not in PRECISIONS.values():
        raise UserError(f"wrong --precision: got {name!r}, expected float32, bf16 or fp16")
    return name


def training_precision(name: str) -> Any:
    """Check the number format of --precision for a training, and return its short name.

    name: "float32" or "bf16", or another spelling of these.

    Errors: UserError, also for fp16, which would need a scaled loss.
    """
    if (name := precision(name)) == "fp16":
        raise UserError("wrong --precision: got fp16, whose gradients underflow without a scaled loss. Use bf16")
    return name


def datastore(folder: Path | None) -> Path | None:
    """Check that the folder of a datastore exists.

    folder: its folder; None is accepted.

    Errors: UserError.
    """
    return _check_exists(folder, "`kinformer datastore build` makes a datastore")


def state(file: Path | None) -> Path | None:
    """Check that the file of a saved text exists.

    file: the file that `kinformer read` wrote; None is accepted.

    Errors: UserError.
    """
    return _check_exists(file, "`kinformer read` writes a saved text")


def _check_exists(path: Path | None, advice: str) -> Path | None:
    if path is not None and not path.exists():
        raise UserError(missing_path(path, advice))
    return path


def folder(ctx: typer.Context, out: Path) -> Path:
    """Check that --out names no file, and that --resume and --overwrite are not both given.

    ctx: the context of the command, which holds --resume and --overwrite.
    out: the folder; `refuse_model` and `refuse_comparison` check its contents later.

    Errors: UserError.
    """
    _refuse_resume_and_overwrite(ctx)
    refuse_file(out)
    return out


def refuse_file(out: Path) -> None:
    """Refuse the path of --out if it is a file.

    out: the path.

    Errors: UserError.
    """
    if out.is_file():
        raise UserError(f"wrong --out: got the file {out}, expected a folder")


def refuse_model(out: Path, overwrite: bool, resume: bool) -> None:
    """Refuse a folder that holds a model, unless it may be overwritten or is resumed.

    out: the folder.
    overwrite: True if --overwrite is given.
    resume: True if --resume is given.

    Call it after all other checks, so that a user who then adds --overwrite meets no further error. Errors: UserError.
    """
    if (out / WEIGHTS).is_file() and not (overwrite or resume):
        raise UserError(
            f"{out} holds {_describe_model(out)}, which would be overwritten. Give another --out, --overwrite to "
            "replace it, or --resume to continue it"
        )


def refuse_comparison(out: Path, overwrite: bool, resume: bool) -> None:
    """Refuse a folder that holds a comparison, unless it may be overwritten or is resumed.

    out: the folder.
    overwrite: True if --overwrite is given.
    resume: True if --resume is given.

    Call it after all other checks, so that a user who then adds --overwrite meets no further error. Errors: UserError.
    """
    going_on = overwrite or (resume and (out / PLAN).is_file())
    if not going_on and any((out / name).exists() for name in (PLAN, RESULTS)):
        advice = "Give another --out, --overwrite to replace it, or --resume to continue it"
        raise UserError(f"{out} holds a comparison, which would be overwritten. {advice}")


def _refuse_resume_and_overwrite(ctx: typer.Context) -> None:
    """Refuse a command with both --resume and --overwrite."""
    if ctx.params.get("overwrite") and ctx.params.get("resume"):
        raise UserError("--resume continues the run in --out, but --overwrite starts it again; give one of the two")


def _describe_model(out: Path) -> str:
    if not (out / CONFIG).is_file():
        return f"a {WEIGHTS} without its {CONFIG}"
    try:
        config = from_json(contents(out / CONFIG))
        of = f" of {config['file']}" if "file" in config else ""
        return f"a model of {config['member']!r}{of} that was trained before"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"a {CONFIG} that was not written by kinformer"
    except OSError:
        return f"a {CONFIG} that cannot be read"
