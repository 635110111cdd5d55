"""`kinformer generate DIR`: let a trained model write."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinformer.cli.errors import noted, refuse_no_folder, refuse_useless
from kinformer.cli.options import LAST_SEED, SEED, Datastore, Device, Json, Knn, Own, Temperature, Trained
from kinformer.cli.support import option_checks as early
from kinformer.core.absent import absent
from kinformer.lab.errors import FAILED, UserError, from_user
from kinformer.pages.printable import for_stream

if TYPE_CHECKING:
    from kinformer.decoding.reading import Reading
    from kinformer.lab.writing import Continuation, WritingSettings

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
        Path | None, typer.Option(callback=early.state, help="Go on from what `kinformer read` has kept in this file.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="How many tokens to write at most.", min=1, max=MOST)] = 200,
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

    from kinformer.cli.support.calibrated_exits import layers_can_be_left, leave_as_calibrated_here
    from kinformer.cli.support.load_model import load_model, with_datastore
    from kinformer.decoding.saved import load_reading
    from kinformer.decoding.spelling import warn_of_loss
    from kinformer.lab.writing import WritingSettings

    model = load_model(folder, member, device, datastore=datastore)
    _refuse_layers(model, layers, beam)
    if model.reads == "images":
        from kinformer.cli.support import image_generation as gallery

        if (prompt, prompts, source, sources, state) != (None,) * 5:
            raise UserError("this model generates pictures and reads no prompt, source or state; leave it out")
        _refuse_given("a model that writes text", stop=stop, top_k=top_k, top_p=top_p, beam=beam if beam > 1 else None)
        _refuse_given("a model that writes text", knn=knn or None, datastore=datastore)
        refuse_useless(ctx, "on a model that generates pictures", "tokens")
        count = SOME if pictures is None else pictures
        return gallery.write(model, out, count, enlarge, temperature, seed, label, as_json)
    _refuse_given("a model that generates pictures", out=out, pictures=pictures, enlarge=enlarge, label=label)
    _asked(model, started, read, state)
    with from_user(ValueError, OSError):
        reading = None if state is None else load_reading(state, model)
    calibration = leave_as_calibrated_here(
        folder, model
    )  # behind what asks whether a file is of this model, whose rule may go
    model = with_datastore(model, folder, knn, datastore, continues=state is not None)
    settings = WritingSettings(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        beam=beam,
        length_penalty=length_penalty,
        seed=seed,
        stop=None if stop is None else os.fsencode(stop),
    )
    starts = started or [b""] * len(read or [b""])
    with noted():
        warn_of_loss(model, [*starts, *(read or [])])
    _refuse_no_room(model, starts, tokens, beam, read, reading)
    more: dict[str, Any] = {"sources": read, "reading": reading}
    with from_user(ValueError, LookupError), noted():
        if not as_json and prompts is None and sources is None:
            alone = _stream if beam == 1 else _searched
            written = alone(model, starts[0], tokens, settings, more)
        else:
            written, milliseconds = _in_batch(model, starts, tokens, settings, more)
            if as_json:
                _print_json(folder, written, starts, read)
            else:
                _print(starts, written, milliseconds)
    _said_layers(model, written, layers, "" if calibration is None else ", as calibrated")
    if calibration is None and layers_can_be_left(model):
        find = f"kinformer calibrate {folder} --data SPEC"
        print(f"not calibrated: tokens leave at the member's own threshold; {find} finds one", file=sys.stderr)


def _refuse_layers(model: Any, layers: Path | None, beam: int) -> None:
    """UserError where layers are asked for and none can be told."""
    from kinformer.decoding.layers_used import exits_of

    if layers is not None and exits_of(model) is None:
        raise UserError(f"every token of this {model.member.name} takes all layers; leave out --layers")
    if layers is not None and (beam > 1 or layers.suffix != ".png"):
        raise UserError("--layers draws what each token took into a FILE.png, and a search (--beam) tells of none")
    if layers is not None:
        refuse_no_folder(layers, "--layers")


def _said_layers(model: Any, written: "list[Continuation]", picture: Path | None, suffix: str) -> None:
    """How many layers the tokens took, on stderr and into a picture; nothing where all take all."""
    took = [n for continuation in written for n in continuation.layers]
    if not took:
        return
    most = len(model.exits.layers)
    print(f"{sum(took) / len(took):.2f} of {most} layers a token", file=sys.stderr)
    if picture is not None:
        from kinformer.decoding.spelling import spelling
        from kinformer.pages.exit_layers import save_exit_layers

        with from_user(OSError, code=FAILED):
            title = f"{model.member.name}: {sum(took) / len(took):.2f} of {most} layers a token{suffix}"
            texts = [(text.tokens, text.layers) for text in written]
            save_exit_layers(spelling(model), texts, most, picture, title)


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


def _refuse_no_room(
    model: Any, starts: list[bytes], tokens: int, beam: int, sources: list[bytes] | None, reading: "Reading | None"
) -> None:
    """UserError where the state of what is to be written is more than the memory that is there; says where none is."""
    from kinformer.cli.support.memory_limits import refuse_no_room
    from kinformer.lab.writing import has_state, rows_of

    with from_user(ValueError, LookupError):
        length = rows_of(model, starts, sources, reading)[0].shape[1] + tokens
        refuse_no_room(model, len(starts) * beam, length + (0 if reading is None else reading.tokens))
        if not has_state(model, length):
            print("this model has no state, so each token reads the whole text again", file=sys.stderr)


def _lines(text: str | None, file: Path | None, name: str) -> list[bytes] | None:
    """What was given, as it was typed, UTF-8 or not, or each line of a file; None for neither."""
    if text is not None:
        return [os.fsencode(text)]
    if file is None:
        return None
    from kinformer.checkpoint.unpacked import decoded

    try:
        with from_user(ValueError):
            lines = b"".join(decoded([file.read_bytes()], str(file))).removesuffix(b"\n").split(b"\n")
    except FileNotFoundError as error:
        raise UserError(absent(file, f"--{name}s names a file of one {name} a line")) from error
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}; --{name}s names a file of one {name} a line") from error
    lines = [line.removesuffix(b"\r") for line in lines]
    if lines == [b""]:
        raise UserError(f"{file} is empty; write one {name} a line")
    if b"" in lines:
        raise UserError(f"line {lines.index(b'') + 1:,} of {file} is empty; give it at least one character, or drop it")
    return lines


def _asked(model: Any, prompts: list[bytes] | None, sources: list[bytes] | None, state: Path | None) -> None:
    """UserError where what a model writes from is missing, or is given to one that does not read it."""
    if model.reads == "pairs":
        if sources is None:
            raise UserError("this model writes from a source; give --source TEXT or --sources FILE")
        if state is not None:
            raise UserError("this model writes from a source, and no text is kept for it; leave out --state")
        if prompts is not None and len(prompts) != len(sources):
            raise UserError(f"there are {len(prompts):,} prompts and {len(sources):,} sources; give each source one")
    elif sources is not None:
        raise UserError("this model reads no source; give --prompt TEXT alone")
    elif prompts is None and state is None:
        raise UserError("there is nothing to go on from; give --prompt TEXT, --prompts FILE or --state FILE")


def _stream(
    model: Any, start: bytes, tokens: int, settings: "WritingSettings", more: dict[str, Any]
) -> "list[Continuation]":
    """Write on from one prompt, and print what comes as it comes."""
    from kinformer.decoding.spelling import spelling
    from kinformer.lab.writing import write_all

    speak, stop, printed, spoken = spelling(model).speaker(), (settings.stop or b"").decode(errors="replace"), "", ""
    begun = False

    def begin() -> None:
        """The prompt, once what is warned of beforehand has been said."""
        nonlocal begun
        if not begun:
            print(for_stream(start.decode(errors="replace")), end="", flush=True)
        begun = True

    def say(new: list[int]) -> None:
        nonlocal printed, spoken
        begin()
        spoken += speak(new[0])
        end = spoken.find(stop) + len(stop) if stop and stop in spoken else len(spoken)
        print(for_stream(spoken[len(printed) : end]), end="", flush=True)
        printed = spoken[:end]

    try:
        (continuation,), milliseconds = write_all(model, [start], tokens, settings, hear=say, **more)
        text = continuation.text.decode(errors="replace")
        begin()
        print(
            for_stream(text[len(printed) :]) if text.startswith(printed) else "", end=""
        )  # a letter that is not whole
    finally:
        if begun:
            print()
    _said(len(continuation.tokens), milliseconds)
    return [continuation]


def _searched(
    model: Any, start: bytes, tokens: int, settings: "WritingSettings", more: dict[str, Any]
) -> "list[Continuation]":
    """Search for what goes on from one prompt, and print what was found."""
    (continuation,), milliseconds = _in_batch(model, [start], tokens, settings, more)
    print(for_stream((start + continuation.text).decode(errors="replace")))
    _said(len(continuation.tokens), milliseconds)
    return [continuation]


def _in_batch(
    model: Any, starts: list[bytes], tokens: int, settings: "WritingSettings", more: dict[str, Any]
) -> "tuple[list[Continuation], float]":
    """Write on from all prompts at once, and say how far it is."""
    from kinformer.cli.support.progress_bar import progress
    from kinformer.lab.writing import write_all

    with progress("writing", tokens, f"tokens of each of {len(starts):,}") as tell:
        steps = 0

        def hear(new: list[int]) -> None:
            nonlocal steps
            steps += 1
            tell(steps)

        return write_all(model, starts, tokens, settings, hear=hear, look=tell, **more)


def _print(starts: list[bytes], written: "list[Continuation]", milliseconds: float) -> None:
    for number, (start, continuation) in enumerate(zip(starts, written, strict=True), 1):
        print(f"[{number}]\n{for_stream((start + continuation.text).decode(errors='replace'))}")
    _said(sum(len(continuation.tokens) for continuation in written), milliseconds / len(written))


def _print_json(folder: Path, written: "list[Continuation]", starts: list[bytes], sources: list[bytes] | None) -> None:
    texts = [
        {
            "source": None if sources is None else sources[number].decode(errors="replace"),
            "prompt": start.decode(errors="replace"),
            "text": continuation.text.decode(errors="replace"),
            "tokens": continuation.tokens,
            "log_probability": continuation.log_probability,
            "ended": continuation.ended,
            **({"layers": continuation.layers} if continuation.layers else {}),
        }
        for number, (start, continuation) in enumerate(zip(starts, written, strict=True))
    ]
    print(for_stream(json.dumps({"folder": str(folder), "texts": texts}, ensure_ascii=False)))


def _said(tokens: int, milliseconds: float) -> None:
    print(f"{tokens:,} tokens, {milliseconds:.1f} ms each", file=sys.stderr)
