"""The command `kinformer generate`: generate text or pictures with a trained model."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kinformer.cli.errors import print_warnings, refuse_useless, suggest_command
from kinformer.cli.options import (
    LAST_SEED,
    SEED,
    Datastore,
    Device,
    Json,
    Knn,
    Own,
    RunPrecision,
    Temperature,
    Trained,
    count,
)
from kinformer.cli.support import option_checks
from kinformer.cli.support.text_lines import read_texts
from kinformer.lab.errors import UserError, from_user

MOST = 10_000_000  # tokens
PICTURES, SOME = 400, 16
BEAM = 1024  # maximum number of beams; each has its own state


def generate(
    ctx: typer.Context,
    folder: Trained,
    prompt: Annotated[str | None, typer.Option(help="Text that the model continues.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="File of prompts, one per line.")] = None,
    chat: Annotated[str | None, typer.Option(help="Question to a chat model; prints the answer.")] = None,
    source: Annotated[str | None, typer.Option(help="Source text, for a model of pairs.")] = None,
    sources: Annotated[Path | None, typer.Option(help="File of such source texts, one per line.")] = None,
    state: Annotated[
        Path | None, typer.Option(callback=option_checks.state, help="File of `kinformer read`, to continue.")
    ] = None,
    tokens: Annotated[int, count("Largest number of new tokens for each text.", MOST)] = 200,
    stop: Annotated[str | None, typer.Option(help="Text that ends the generation; it is kept.")] = None,
    temperature: Temperature = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sample each token only from this many likeliest tokens.", min=1)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample from the fewest likeliest tokens whose probabilities sum to at least this."),
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Sample from tokens at least this fraction as likely as the likeliest.")
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Factor against tokens that the text already has, such as 1.2; default: 1, no penalty."),
    ] = None,
    beam: Annotated[
        int, typer.Option(help="Number of texts of a beam search; 1 samples instead.", min=1, max=BEAM)
    ] = 1,
    best: Annotated[int, typer.Option(help="With --beam: number of best texts to print.", min=1)] = 1,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="With --beam: exponent of the length penalty; 0 favours short texts; default: 0.6.", min=0),
    ] = None,
    prompt_lookup: Annotated[
        int | None, typer.Option(help="With --temperature 0: check this many copied tokens at once.", min=1)
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the sampling; each further text has the next seed.", min=0, max=LAST_SEED)
    ] = SEED,
    out: Annotated[Path | None, typer.Option(help="For a model of pictures: FILE.png to write.")] = None,
    pictures: Annotated[
        int | None, typer.Option(help="For a model of pictures: their number; default: 16.", min=1, max=PICTURES)
    ] = None,
    enlarge: Annotated[str | None, typer.Option(help="For super-resolution: images=FOLDER to enlarge.")] = None,
    label: Annotated[
        int | None, typer.Option(help="For pictures with classes: class to draw; default: all in turn.", min=0)
    ] = None,
    layers: Annotated[Path | None, typer.Option(help="With early exits: FILE.png of layers used.")] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile first; prints if it pays.")] = False,
    knn: Knn = False,
    datastore: Datastore = None,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Generate text or pictures with a trained model.

    \b
    Examples:
        kinformer generate runs/llama/best --prompt "def main(" --tokens 200
        # The three best texts of a beam search for each line of a file
        kinformer generate runs/llama --prompts FILE --beam 4 --best 3 --json
        kinformer generate hf:HuggingFaceTB/SmolLM2-135M-Instruct --chat "Who wrote Emma?"
        # Continue a long text that `kinformer read` has read
        kinformer generate runs/xl --state long.state --prompt "Who"
        kinformer generate runs/pictures --out FILE.png --pictures 36

    A single --prompt is printed while the model generates. With --prompts FILE, each line has the next --seed. Bytes
    that are not UTF-8 are shown as �, and so are control characters on a terminal.

    If --temperature, --top-k, --top-p and --min-p are all absent, tokens are sampled with temperature 0.6 and top-p
    0.9, as by `kinformer.generate` in Python; the same seed gives the same text there.

    A model that was trained on images=FOLDER generates pictures, --out. Exit thresholds that `kinformer calibrate` has
    saved decide how many layers each token uses.
    """
    if stop == "":
        raise UserError("the stop is empty; give --stop at least one character")
    if chat is not None and (prompt, prompts, source, sources, state) != (None,) * 5:
        raise UserError("--chat is the whole text that the model reads; leave out prompts, sources and --state")
    _refuse_both(prompt=(prompt, prompts), source=(source, sources))
    sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    _refuse_choices(sampling, beam, best, length_penalty)
    _refuse_lookup(prompt_lookup, temperature, prompts, sources, layers)
    for option, value in (("prompt-lookup", prompt_lookup), ("layers", layers)):
        if compiled and value is not None:
            raise UserError(f"--{option} cannot be combined with --compile; leave one of them out")
    if beam > 1 or temperature == 0:
        refuse_useless(ctx, "when no token is random, with --beam or --temperature 0", "seed")
    started, read = read_texts(prompt, prompts, "prompt"), read_texts(source, sources, "source")

    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support import generation, image_generation
    from kinformer.cli.support.calibrated_exits import layers_can_be_left, leave_as_calibrated_here
    from kinformer.cli.support.load_model import load_model, with_datastore
    from kinformer.decoding.byte_tokenizer import warn_of_loss
    from kinformer.decoding.compiled_steps import CompiledSteps
    from kinformer.decoding.saved_state import load_reading
    from kinformer.lab.text_continuation import WritingSettings

    model = load_model(folder, member, device, datastore=datastore, precision=precision)
    generation.refuse_layers(model, layers, beam)
    if model.reads == "images":
        if (prompt, prompts, chat, source, sources, state) != (None,) * 6:
            raise UserError(
                "this model generates pictures and reads no prompt, source or state; leave these options out"
            )
        _refuse_other_readers(
            "a model that writes text",
            stop=stop,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            beam=beam if beam > 1 else None,
            best=best if best > 1 else None,
            prompt_lookup=prompt_lookup,
        )
        _refuse_other_readers(
            "a model that writes text", knn=knn or None, datastore=datastore, compile=compiled or None
        )
        refuse_useless(ctx, "on a model that generates pictures", "tokens")
        count = SOME if pictures is None else pictures
        return image_generation.write(model, out, count, enlarge, temperature, seed, label, as_json)
    _refuse_other_readers("a model that generates pictures", out=out, pictures=pictures, enlarge=enlarge, label=label)
    if chat is not None:
        started = [generation.chat_prompt(model, chat)]
    generation.check_inputs(model, started, read, state)
    with from_user(ValueError, OSError):
        reading = None if state is None else load_reading(state, model)
    # after the check that the state belongs to this model, because this may replace the model's exit rule
    calibration = leave_as_calibrated_here(folder, model)
    model = with_datastore(model, folder, knn, datastore, continues=state is not None)
    settings = WritingSettings(
        **sampling,
        repetition_penalty=repetition_penalty,
        beam=beam,
        best=best,
        length_penalty=length_penalty,
        seed=seed,
        stop=None if stop is None else os.fsencode(stop),
        prompt_lookup=prompt_lookup,
    )
    starts = started or [b""] * len(read or [b""])
    with from_user(ValueError), print_warnings():
        warn_of_loss(model, [*starts, *(read or [])])
    generation.check_room(model, starts, tokens, beam, read, reading)
    graph = CompiledSteps(model) if compiled else None
    inputs: dict[str, Any] = {"sources": read, "reading": reading, "compile": graph}
    with from_user(ValueError, LookupError), print_warnings():
        if not as_json and prompts is None and sources is None:
            alone = generation.stream_text if beam == 1 else generation.search_text
            written = alone(model, starts[0], tokens, settings, inputs, starts[0] if chat is None else b"")
        else:
            written, milliseconds = generation.write_batch(model, starts, tokens, settings, inputs)
            if as_json:
                generation.print_json(folder, written, starts, read)
            else:
                generation.print_texts(starts, written, milliseconds)
    if graph is not None:
        generation.report_compilation(graph)
    generation.report_layers(model, written, layers, "" if calibration is None else ", as calibrated")
    if calibration is None and layers_can_be_left(model):
        find = suggest_command("calibrate", folder, "--data", "KIND=PLACE", member=member)
        print(
            f"not calibrated: tokens exit early at the threshold that the member sets; `{find}` finds a tested one",
            file=sys.stderr,
        )


def _refuse_other_readers(readers: str, **options: object) -> None:
    """Raise UserError for options that only another kind of model reads."""
    for name, value in options.items():
        if value is not None:
            raise UserError(f"--{name.replace('_', '-')} applies only to {readers}; leave it out, or give such a model")


def _refuse_both(**pairs: tuple[str | None, Path | None]) -> None:
    """Raise UserError if a text and a file of texts are given for the same option."""
    for name, alternatives in pairs.items():
        if None not in alternatives:
            raise UserError(f"give one of --{name} and --{name}s")


def _refuse_lookup(
    prompt_lookup: int | None,
    temperature: float | None,
    prompts: Path | None,
    sources: Path | None,
    layers: Path | None,
) -> None:
    """Raise UserError for options that exclude --prompt-lookup."""
    if prompt_lookup is None:
        return
    if temperature != 0:
        raise UserError("--prompt-lookup gives the text of greedy decoding; add --temperature 0, or leave it out")
    if (prompts, sources) != (None, None):
        raise UserError("--prompt-lookup continues a single text; give --prompt TEXT or --source TEXT, not a file")
    if layers is not None:
        raise UserError("--layers records the layers of each token and excludes --prompt-lookup; leave one of them out")


def _refuse_choices(sampling: dict[str, Any], beam: int, best: int, length_penalty: float | None) -> None:
    """Raise UserError for sampling options that are out of range or exclude each other."""
    top_p, min_p = sampling["top_p"], sampling["min_p"]
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(
            f"wrong --top-p: got {top_p:g}, expected a probability above 0 and at most 1; 1 keeps all tokens"
        )
    if min_p is not None and not 0 <= min_p <= 1:
        raise UserError(f"wrong --min-p: got {min_p:g}, expected a number from 0 to 1; 0 keeps all tokens")
    given = [f"--{name.replace('_', '-')}" for name, value in sampling.items() if value is not None]
    if beam > 1 and given:
        raise UserError(f"--beam {beam} does not sample; leave out {' and '.join(given)}, or --beam")
    if sampling["temperature"] == 0 and len(given) > 1:
        raise UserError(
            f"--temperature 0 takes the likeliest token and does not sample; leave out {' and '.join(given[1:])}"
        )
    if best > beam:
        raise UserError(f"--best {best} needs a beam search that keeps {best} texts or more; give --beam {best}")
    if length_penalty is not None and beam == 1:
        raise UserError("--length-penalty has no effect without --beam; leave it out, or give --beam 4")
