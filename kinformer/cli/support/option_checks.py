"""What the command line and the disk alone can tell to be wrong: told by each option itself, before torch is imported.

Callbacks of options (`cli/options.py`). They let pass whatever they are not sure of: what is really there is found out
by the command, in the same words.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from kinformer.checkpoint.atomic_files import existing_path
from kinformer.checkpoint.model_files import CONFIG, WEIGHTS, contents
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

PLAN, RESULTS = "comparison.json", "results.json"  # of a comparison, in its folder
ON_DISK = re.compile(r"\w+=(PATH|FILE|FOLDER)")  # the FORM of a kind of data that lies in files
WRITES = ("bits per byte", "bits per token")  # metrics of what writes and hides nothing
NOT_A_PATH = re.compile(r"hf:|stdlib$|.*[*?[]", re.DOTALL)


def member(name: str | None) -> str | None:
    """A member of the library, or a file with one of the user's own, is there."""
    if name is None:
        return None
    file = name.rpartition(":")[0] if ".py:" in name else name if name.endswith(".py") else None
    if file is not None:
        if not Path(file).expanduser().is_file():
            raise UserError(missing_path(file))
    elif not has_plugins("members") and static_source.member_stub(name) is None:
        with from_user(LookupError):
            check_member_name(name, static_source.member_names())
    return name


def keywords(ctx: typer.Context, texts: list[str] | None) -> list[str] | None:
    """The member has such keywords, and they take such values."""
    _check_keywords(ctx, str(ctx.params.get("member")), texts or ())
    return texts


def changed(ctx: typer.Context, texts: list[str] | None) -> list[str] | None:
    """The member of a model that is kept has such keywords, and they take such values."""
    name = _config(Path(ctx.params["folder"])).get("member")
    if name is not None and (like := static_source.member_stub(name)) is not None:
        with from_user(TypeError):
            parse_keywords(like, texts or ())
    return texts


def _config(folder: Path) -> dict[str, Any]:
    """The config of a trained model of the library; empty where it says nothing, which is refused where it is read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        config = from_json(contents(folder / CONFIG))
        if "file" not in config:
            return {"member": config.get("member"), "metric": config.get("metric", {}).get("name")}
    return {}


def members(ctx: typer.Context, texts: list[str]) -> list[str]:
    """Each of some members is there, with its keywords in brackets."""
    for text in texts:
        name, bracket, inside = text.strip().partition("(")
        member(name.strip())
        if bracket:
            _check_keywords(ctx, name.strip(), [piece for piece in split(inside.rpartition(")")[0]) if piece])
    return texts


def _check_keywords(ctx: typer.Context, name: str, texts: Iterable[str]) -> None:
    """UserError for keywords that neither the member takes, nor what takes its layers on this kind of data."""
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


def data(spec: str) -> str:
    """A spec has a form that is known, and what lies on the disk is there and holds something."""
    if has_plugins("data"):
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
    """What is watched in place of a part of the data is there."""
    if where is not None:
        _check_path(where, "--valid names a file or folder to watch", where)
    return where


def _check_path(where: str, advice: str, name: str) -> None:
    if NOT_A_PATH.match(where):
        return
    with from_user(OSError):
        path = existing_path(where, advice)
    if path.is_file() and not path.stat().st_size:
        raise UserError(f"{name} holds no byte; give a file that does")


def trained_model(folder: Path | None) -> Path | None:
    """A folder holds a model, if one is named."""
    if folder is not None:
        with from_user(OSError):
            contents(folder / CONFIG)
    return folder


def masked_model(folder: Path) -> Path:
    """A folder holds a model that fills in, as far as what it is judged by tells."""
    trained_model(folder)
    if (metric := _config(folder).get("metric")) in WRITES:
        raise no_blanks(f"generate with it: {metric} are of what comes next")
    return folder


def no_blanks(instead: str) -> UserError:
    """The error for a model that does not fill in."""
    return UserError(f"this model fills in no blanks; use one of a member like bert, or {instead}")


def fraction_or_steps(text: str) -> float | int:
    """Parse --warmup: a fraction of the training or a number of steps."""
    try:
        return int(text) if text.strip().isdecimal() else float(text)
    except ValueError:
        raise UserError(f"--warmup {text}: give a part of the training, such as 0.05, or a number of steps") from None


def warmup(ctx: typer.Context, length: float | int | None) -> float | int | None:
    """Check --warmup against the schedule."""
    if length is not None:
        with from_user(ValueError):
            Recipe(warmup=length, schedule=ctx.params.get("schedule") or "cosine")
    return length


def betas(text: str) -> tuple[float, float]:
    """Parse --betas: two numbers from 0 to below 1, with a comma between."""
    try:
        first, second = map(float, text.split(","))
    except ValueError:
        raise UserError(f"--betas {text}: give two numbers with a comma between, such as 0.9,0.98") from None
    with from_user(ValueError):
        return check_betas((first, second))


def eps(value: float | None) -> float | None:
    """Check --eps, which must be above 0."""
    with from_user(ValueError):
        return None if value is None else check_eps(value)


def datastore(folder: Path | None) -> Path | None:
    """A datastore is there, if it is named."""
    return _check_exists(folder, "`kinformer datastore build` makes a datastore")


def state(file: Path | None) -> Path | None:
    """What was kept of a text is there, if it is named."""
    return _check_exists(file, "`kinformer read` writes one")


def _check_exists(path: Path | None, advice: str) -> Path | None:
    if path is not None and not path.exists():
        raise UserError(missing_path(path, advice))
    return path


def folder(ctx: typer.Context, out: Path) -> Path:
    """A folder to train in is no file; what it holds is checked last, by `refuse_model` and `refuse_comparison`."""
    _refuse_resume_and_overwrite(ctx)
    refuse_file(out)
    return out


def refuse_file(out: Path) -> None:
    """UserError for a file where --out names a folder."""
    if out.is_file():
        raise UserError(f"{out} is a file; --out names a folder")


def refuse_model(out: Path, overwrite: bool, resume: bool) -> None:
    """UserError for a folder with a model, unless it may be overwritten or is resumed.

    Call it once everything else is checked: a user who adds --overwrite must not learn of another mistake afterwards.
    """
    if (out / WEIGHTS).is_file() and not (overwrite or resume):
        raise UserError(
            f"{out} holds {_describe_model(out)}, which would be overwritten; give another --out, or --overwrite, or "
            "--resume to go on with it"
        )


def refuse_comparison(out: Path, overwrite: bool, resume: bool) -> None:
    """UserError for a folder with a comparison, unless it may be overwritten or is resumed; call it last too."""
    going_on = overwrite or (resume and (out / PLAN).is_file())
    if not going_on and any((out / name).exists() for name in (PLAN, RESULTS)):
        advice = "give another --out, --overwrite, or --resume to go on with it"
        raise UserError(f"{out} holds a comparison, which would be overwritten; {advice}")


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
