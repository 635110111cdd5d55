"""Texts that a trained model writes: printed as they come, in a batch or as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

from kinformer.cli.errors import refuse_no_folder
from kinformer.cli.support.memory_limits import refuse_no_room
from kinformer.cli.support.progress_bar import progress
from kinformer.decoding.byte_tokenizer import tokenizer_of_model
from kinformer.decoding.layers_used import exits_of
from kinformer.decoding.prefill import PrefilledText
from kinformer.lab.errors import FAILED, UserError, from_user
from kinformer.lab.text_continuation import Continuation, WritingSettings, has_state, rows_of, write_all
from kinformer.pages.exit_layers import save_exit_layers
from kinformer.pages.terminal_safe_text import for_stream


def refuse_layers(model: Any, layers: Path | None, beam: int) -> None:
    """UserError where layers are asked for and none can be told."""
    if layers is not None and exits_of(model) is None:
        raise UserError(f"every token of this {model.member.name} takes all layers; leave out --layers")
    if layers is not None and (beam > 1 or layers.suffix != ".png"):
        raise UserError("--layers draws what each token took into a FILE.png, and a search (--beam) tells of none")
    if layers is not None:
        refuse_no_folder(layers, "--layers")


def report_layers(model: Any, written: list[Continuation], picture: Path | None, suffix: str) -> None:
    """How many layers the tokens took, on stderr and into a picture; nothing where all take all."""
    took = [n for continuation in written for n in continuation.layers]
    if not took:
        return
    depth = len(model.exits.layers)
    print(f"{sum(took) / len(took):.2f} of {depth} layers a token", file=sys.stderr)
    if picture is not None:
        with from_user(OSError, code=FAILED):
            title = f"{model.member.name}: {sum(took) / len(took):.2f} of {depth} layers a token{suffix}"
            texts = [(text.tokens, text.layers) for text in written]
            save_exit_layers(tokenizer_of_model(model), texts, depth, picture, title)


def check_room(
    model: Any, starts: list[bytes], tokens: int, beam: int, sources: list[bytes] | None, reading: PrefilledText | None
) -> None:
    """UserError where the state of what is to be written is more than the memory that is there; says where none is."""
    with from_user(ValueError, LookupError):
        length = rows_of(model, starts, sources, reading)[0].shape[1] + tokens
        refuse_no_room(model, len(starts) * beam, length + (0 if reading is None else reading.tokens))
        if not has_state(model, length):
            print("this model has no state, so each token reads the whole text again", file=sys.stderr)


def check_inputs(model: Any, prompts: list[bytes] | None, sources: list[bytes] | None, state: Path | None) -> None:
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


def stream_text(
    model: Any, start: bytes, tokens: int, settings: WritingSettings, inputs: dict[str, Any]
) -> list[Continuation]:
    """Write on from one prompt, and print what comes as it comes."""
    speak, stop, printed, spoken = (
        tokenizer_of_model(model).speaker(),
        (settings.stop or b"").decode(errors="replace"),
        "",
        "",
    )
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
        (continuation,), milliseconds = write_all(model, [start], tokens, settings, on_tokens=say, **inputs)
        text = continuation.text.decode(errors="replace")
        begin()
        rest = text[len(printed) :] if text.startswith(printed) else ""  # a letter that is not whole
        print(for_stream(rest), end="")
    finally:
        if begun:
            print()
    _report_speed(len(continuation.tokens), milliseconds)
    return [continuation]


def search_text(
    model: Any, start: bytes, tokens: int, settings: WritingSettings, inputs: dict[str, Any]
) -> list[Continuation]:
    """Search for what goes on from one prompt, and print what was found."""
    (continuation,), milliseconds = write_batch(model, [start], tokens, settings, inputs)
    print(for_stream((start + continuation.text).decode(errors="replace")))
    _report_speed(len(continuation.tokens), milliseconds)
    return [continuation]


def write_batch(
    model: Any, starts: list[bytes], tokens: int, settings: WritingSettings, inputs: dict[str, Any]
) -> tuple[list[Continuation], float]:
    """Write on from all prompts at once, and say how far it is."""
    with progress("writing", tokens, f"tokens of each of {len(starts):,}") as tell:
        steps = 0

        def count_step(new: list[int]) -> None:
            nonlocal steps
            steps += 1
            tell(steps)

        return write_all(model, starts, tokens, settings, on_tokens=count_step, look=tell, **inputs)


def print_texts(starts: list[bytes], written: list[Continuation], milliseconds: float) -> None:
    for number, (start, continuation) in enumerate(zip(starts, written, strict=True), 1):
        print(f"[{number}]\n{for_stream((start + continuation.text).decode(errors='replace'))}")
    _report_speed(sum(len(continuation.tokens) for continuation in written), milliseconds / len(written))


def print_json(folder: Path, written: list[Continuation], starts: list[bytes], sources: list[bytes] | None) -> None:
    texts = [
        {
            "source": None if sources is None else sources[number].decode(errors="replace"),
            "prompt": start.decode(errors="replace"),
            "text": continuation.text.decode(errors="replace"),
            **{name: getattr(continuation, name) for name in ("tokens", "log_probability", "ended")},
            **({"layers": continuation.layers} if continuation.layers else {}),
        }
        for number, (start, continuation) in enumerate(zip(starts, written, strict=True))
    ]
    print(for_stream(json.dumps({"folder": str(folder), "texts": texts}, ensure_ascii=False)))


def _report_speed(tokens: int, milliseconds: float) -> None:
    print(f"{tokens:,} tokens, {milliseconds:.1f} ms each", file=sys.stderr)
