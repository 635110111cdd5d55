"""`kinformer generate DIR`: let a trained model write."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kinformer.cli.errors import print_warnings, refuse_useless
from kinformer.cli.options import LAST_SEED, SEED, Datastore, Device, Json, Knn, Own, Temperature, Trained, count
from kinformer.cli.support import option_checks
from kinformer.core.missing_path import missing_path
from kinformer.lab.errors import UserError, from_user

MOST = 10_000_000  # tokens
PICTURES, SOME = 400, 16
BEAM = 1024  # texts that are kept at most, each with a state of its own


def generate(
    ctx: typer.Context,
    folder: Trained,
    prompt: Annotated[str | None, typer.Option(help="The text to go on from.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A file with a text to go on from in each line.")] = None,
    source: Annotated[str | None, typer.Option(help="The source, for what was trained on pairs.")] = None,
    sources: Annotated[Path | None, typer.Option(help="A file with a source in each line.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(callback=option_checks.state, help="Go on from what `kinformer read` has kept in this file."),
    ] = None,
    tokens: Annotated[int, count("How many tokens to write at most.", MOST)] = 200,
    stop: Annotated[str | None, typer.Option(help="End a text where this was written.")] = None,
    temperature: Temperature = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest alone.", min=1)] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest that reach this probability: above 0, up to 1.")
    ] = None,
    beam: Annotated[
        int,
        typer.Option(help="Above 1: search for the likeliest text, keeping so many; draw nothing.", min=1, max=BEAM),
    ] = 1,
    length_penalty: Annotated[
        float | None, typer.Option(help="Of --beam: 0 favours short texts, more longer ones; 0.6 unless given.", min=0)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the samples; each line has the next one.", min=0, max=LAST_SEED)] = SEED,
    out: Annotated[Path | None, typer.Option(help="Of a member that generates pictures: the PNG.")] = None,
    pictures: Annotated[
        int | None, typer.Option(help="Of such a member: how many; 16 unless given.", min=1, max=PICTURES)
    ] = None,
    enlarge: Annotated[str | None, typer.Option(help="What a super-resolution begins with: images=FOLDER.")] = None,
    label: Annotated[
        int | None, typer.Option(help="Of one trained with classes=: of which; in turn unless given.", min=0)
    ] = None,
    layers: Annotated[
        Path | None, typer.Option(help="Of a member with exits, like calm: a PNG of the layers each token took.")
    ] = None,
    knn: Knn = False,
    datastore: Datastore = None,
    device: Device = None,
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Let a trained model write on from a prompt, or from each line of a file in one batch.

    To stdout: of one prompt as it comes, of several each behind its number in brackets, [1]. A line is written on as it
    would be alone, with --seed one higher than the line before. Bytes that are no UTF-8 are shown as �. With --json:
    each text with its tokens, its log-probability, and whether it ended by --stop or by itself.

    Where none of --temperature, --top-k and --top-p is given, tokens are drawn at a temperature of 0.6 from the
    likeliest that reach 0.9; --temperature 1 alone draws as the model says.

    A terminal shows � for control characters other than newline and tab; a pipe or file gets them as they are.

    A member that was trained on images=FOLDER draws --pictures into the PNG --out, each with a seed of its own.

    Tokens of a member with exits leave as `kinformer calibrate` found; how many layers they took is said, drawn
    into --layers FILE.png, and with --json told of each.
    """
    _refuse_empty(prompt=prompt, source=source, stop=stop)
    _refuse_both(prompt=(prompt, prompts), source=(source, sources))
    _refuse_choices(temperature, top_k, top_p, beam, length_penalty)
    if beam > 1 or temperature == 0:
        refuse_useless(ctx, "when no token is random, with --beam or --temperature 0", "seed")
    started, read = _lines(prompt, prompts, "prompt"), _lines(source, sources, "source")

    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.cli.support import generation, image_generation
    from kinformer.cli.support.calibrated_exits import layers_can_be_left, leave_as_calibrated_here
    from kinformer.cli.support.load_model import load_model, with_datastore
    from kinformer.decoding.byte_tokenizer import warn_of_loss
    from kinformer.decoding.saved_state import load_reading
    from kinformer.lab.text_continuation import WritingSettings

    model = load_model(folder, member, device, datastore=datastore)
    generation.refuse_layers(model, layers, beam)
    if model.reads == "images":
        if (prompt, prompts, source, sources, state) != (None,) * 5:
            raise UserError("this model generates pictures and reads no prompt, source or state; leave it out")
        _refuse_given("a model that writes text", stop=stop, top_k=top_k, top_p=top_p, beam=beam if beam > 1 else None)
        _refuse_given("a model that writes text", knn=knn or None, datastore=datastore)
        refuse_useless(ctx, "on a model that generates pictures", "tokens")
        count = SOME if pictures is None else pictures
        return image_generation.write(model, out, count, enlarge, temperature, seed, label, as_json)
    _refuse_given("a model that generates pictures", out=out, pictures=pictures, enlarge=enlarge, label=label)
    generation.check_inputs(model, started, read, state)
    with from_user(ValueError, OSError):
        reading = None if state is None else load_reading(state, model)
    # after the checks whether a file is of this model, whose rule may go
    calibration = leave_as_calibrated_here(folder, model)
    model = with_datastore(model, folder, knn, datastore, continues=state is not None)
    settings = WritingSettings(
        temperature, top_k, top_p, beam, length_penalty, seed, None if stop is None else os.fsencode(stop)
    )
    starts = started or [b""] * len(read or [b""])
    with print_warnings():
        warn_of_loss(model, [*starts, *(read or [])])
    generation.check_room(model, starts, tokens, beam, read, reading)
    inputs: dict[str, Any] = {"sources": read, "reading": reading}
    with from_user(ValueError, LookupError), print_warnings():
        if not as_json and prompts is None and sources is None:
            alone = generation.stream_text if beam == 1 else generation.search_text
            written = alone(model, starts[0], tokens, settings, inputs)
        else:
            written, milliseconds = generation.write_batch(model, starts, tokens, settings, inputs)
            if as_json:
                generation.print_json(folder, written, starts, read)
            else:
                generation.print_texts(starts, written, milliseconds)
    generation.report_layers(model, written, layers, "" if calibration is None else ", as calibrated")
    if calibration is None and layers_can_be_left(model):
        find = f"kinformer calibrate {folder} --data SPEC"
        print(f"not calibrated: tokens leave at the member's own threshold; {find} finds one", file=sys.stderr)


def _refuse_empty(**texts: str | None) -> None:
    """UserError for an option whose text is empty."""
    for name, text in texts.items():
        if text == "":
            raise UserError(f"the {name} is empty; give --{name} at least one character")


def _refuse_given(readers: str, **options: object) -> None:
    """UserError for options that only another kind of model reads."""
    for name, value in options.items():
        if value is not None:
            raise UserError(f"--{name.replace('_', '-')} is of {readers}, and this one does not; leave it out")


def _refuse_both(**pairs: tuple[str | None, Path | None]) -> None:
    """UserError for a text and a file of texts at once."""
    for name, alternatives in pairs.items():
        if None not in alternatives:
            raise UserError(f"give one of --{name} and --{name}s")


def _refuse_choices(
    temperature: float | None, top_k: int | None, top_p: float | None, beam: int, length_penalty: float | None
) -> None:
    """UserError for ways to choose a token that make no sense, or none together."""
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"--top-p {top_p:g} is no probability above 0 and up to 1; 1 draws from all")
    if beam > 1 and (temperature, top_k, top_p) != (None, None, None):
        raise UserError(f"--beam {beam} draws nothing; leave out --temperature, --top-k and --top-p, or --beam")
    if temperature == 0 and (top_k, top_p) != (None, None):
        raise UserError("--temperature 0 takes the likeliest token and draws nothing; leave out --top-k and --top-p")
    if length_penalty is not None and beam == 1:
        raise UserError("--length-penalty is of --beam, which did not come; give --beam 4, or leave it out")


def _lines(text: str | None, file: Path | None, name: str) -> list[bytes] | None:
    """What was given, as it was typed, UTF-8 or not, or each line of a file; None for neither."""
    if text is not None:
        return [os.fsencode(text)]
    if file is None:
        return None
    from kinformer.checkpoint.decompress import decode_text

    try:
        with from_user(ValueError):
            lines = b"".join(decode_text([file.read_bytes()], str(file))).removesuffix(b"\n").split(b"\n")
    except FileNotFoundError as error:
        raise UserError(missing_path(file, f"--{name}s names a file of one {name} a line")) from error
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}; --{name}s names a file of one {name} a line") from error
    lines = [line.removesuffix(b"\r") for line in lines]
    if lines == [b""]:
        raise UserError(f"{file} is empty; write one {name} a line")
    if b"" in lines:
        raise UserError(f"line {lines.index(b'') + 1:,} of {file} is empty; give it at least one character, or drop it")
    return lines
