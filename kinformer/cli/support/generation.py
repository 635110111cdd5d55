"""Text generation by a trained model: streamed to the terminal, in a batch, or printed as JSON."""

import json
import sys
from math import inf
from pathlib import Path
from typing import Any

from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.cli.errors import refuse_no_folder
from kinformer.cli.support.memory_limits import refuse_no_room
from kinformer.cli.support.progress_bar import progress
from kinformer.decoding.byte_tokenizer import tokenizer_of_model
from kinformer.decoding.compiled_steps import CompiledSteps
from kinformer.decoding.generate import end_tokens
from kinformer.decoding.layers_used import exits_of
from kinformer.decoding.prefill import PrefilledText
from kinformer.lab.errors import FAILED, UserError, from_user
from kinformer.lab.text_continuation import Continuation, WritingSettings, has_state, last_token, rows_of, write_all
from kinformer.pages.exit_layers import save_exit_layers
from kinformer.pages.terminal_safe_text import for_stream


def refuse_layers(model: Any, layers: Path | None, beam: int) -> None:
    """Refuse --layers for a model without early exits, with --beam, and for a file that is not a PNG.

    model: the model.
    layers: the picture file that --layers names; None is accepted.
    beam: number of beams.

    Errors: UserError.
    """
    if layers is not None and exits_of(model) is None:
        raise UserError(f"--layers has no effect on this {model.member.name}: it has no early exits. Leave it out")
    if layers is not None and (beam > 1 or layers.suffix != ".png"):
        raise UserError(
            "--layers takes FILE.png and cannot be combined with --beam, because a beam search does not record the "
            "layers of each token"
        )
    if layers is not None:
        refuse_no_folder(layers, "--layers")


def report_layers(model: Any, written: list[Continuation], picture: Path | None, suffix: str) -> None:
    """Print on stderr how many layers generated tokens used on average, and draw it for each token.

    model: the model that generated; without early exits nothing is printed.
    written: the generated texts.
    picture: the PNG file to draw; no file is written if None.
    suffix: end of the picture's title, such as ", as calibrated".

    Errors: UserError if the picture cannot be written.
    """
    took = [n for continuation in written for n in continuation.layers]
    if not took:
        return
    depth = len(model.exits.layers)
    print(f"{sum(took) / len(took):.2f} of {depth} layers per token", file=sys.stderr)
    if picture is not None:
        with from_user(OSError, code=FAILED):
            title = f"{model.member.name}: {sum(took) / len(took):.2f} of {depth} layers per token{suffix}"
            texts = [(text.tokens, text.layers) for text in written]
            save_exit_layers(tokenizer_of_model(model), texts, depth, picture, title)


def check_room(
    model: Any, starts: list[bytes], tokens: int, beam: int, sources: list[bytes] | None, reading: PrefilledText | None
) -> None:
    """Refuse to generate if the decoding state exceeds the memory; note on stderr if there is none.

    model: the model.
    starts: the prompts.
    tokens: number of tokens to generate for each prompt.
    beam: number of beams.
    sources: the source texts of an encoder-decoder; None for other models.
    reading: a text that `kinformer read` saved and the model continues; None without one.

    Errors: UserError if the state is too large or the model does not generate.
    """
    with from_user(ValueError, LookupError):
        length = rows_of(model, starts, sources, reading)[0].shape[1] + tokens
        refuse_no_room(model, len(starts) * beam, length + (0 if reading is None else reading.tokens))
        if not has_state(model, length):
            print("this model has no decoding state: it reads the whole text again for each token", file=sys.stderr)


def check_inputs(model: Any, prompts: list[bytes] | None, sources: list[bytes] | None, state: Path | None) -> None:
    """Check that a command gives the model the inputs that it reads, and no others.

    model: the model.
    prompts: the prompts; None if none were given.
    sources: the source texts; None if none were given.
    state: the file that `kinformer read` saved; None if none was given.

    Errors: UserError for a missing, superfluous or unmatched input.
    """
    if model.reads == "pairs":
        if sources is None:
            raise UserError("this model needs a source text. Give --source TEXT or --sources FILE")
        if state is not None:
            raise UserError("--state has no effect on this model, which reads a source text. Leave out --state")
        if prompts is not None and len(prompts) != len(sources):
            raise UserError(
                f"wrong number of prompts: got {len(prompts):,} prompts for {len(sources):,} sources, expected one "
                "for each source"
            )
    elif sources is not None:
        raise UserError("this model reads no source text. Give only --prompt TEXT or --prompts FILE")
    elif prompts is None and state is None:
        raise UserError("there is no text to continue. Give --prompt TEXT, --prompts FILE or --state FILE")


def chat_prompt(model: Any, question: str) -> bytes:
    """Return a question as the prompt that the chat template of the model's tokenizer writes.

    model: the model.
    question: the question of the user.

    Errors: UserError for a model without a chat template.
    """
    tokenizer = tokenizer_of_model(model)
    if not isinstance(tokenizer, Tokenizer):
        raise UserError("--chat needs a model with a chat template, but this model reads bytes. Give --prompt TEXT")
    with from_user(ValueError, ImportError):
        text = tokenizer.chat([{"role": "user", "content": question}])
    return text.encode(errors="surrogateescape")


def stream_text(
    model: Any, start: bytes, tokens: int, settings: WritingSettings, inputs: dict[str, Any], heading: bytes
) -> list[Continuation]:
    """Continue one prompt by sampling, and print each token as soon as it is generated.

    model: the model.
    start: the prompt.
    tokens: largest number of tokens to generate.
    settings: settings of the sampling.
    inputs: `sources` (source texts) and `reading` (a saved text to continue), as `write_all` takes them.
    heading: text to print before the continuation: the prompt, or nothing for a chat.

    Returns a list with the one continuation.
    """
    spelled, ends = tokenizer_of_model(model), end_tokens(model)
    speak = spelled.speaker(last_token(spelled, start, inputs["reading"]))
    stop, printed, spoken = (settings.stop or b"").decode(errors="replace"), "", ""
    begun = False

    def begin() -> None:
        """Print the heading before the first token, after any warnings."""
        nonlocal begun
        if not begun:
            print(for_stream(heading.decode(errors="replace")), end="", flush=True)
        begun = True

    def say(new: list[int]) -> None:
        nonlocal printed, spoken
        begin()
        spoken += "" if new[0] in ends else speak(new[0])
        end = spoken.find(stop) + len(stop) if stop and stop in spoken else len(spoken)
        print(for_stream(spoken[len(printed) : end]), end="", flush=True)
        printed = spoken[:end]

    try:
        (continuation,), milliseconds = write_all(model, [start], tokens, settings, on_tokens=say, **inputs)
        text = continuation.text.decode(errors="replace")
        begin()
        rest = text[len(printed) :] if text.startswith(printed) else ""  # an incomplete UTF-8 character
        print(for_stream(rest), end="")
    finally:
        if begun:
            print()
    _report_speed(len(continuation.tokens), milliseconds)
    return [continuation]


def search_text(
    model: Any, start: bytes, tokens: int, settings: WritingSettings, inputs: dict[str, Any], heading: bytes
) -> list[Continuation]:
    """Continue one prompt by beam search, and print the best texts, with scores if there are several.

    model: the model.
    start: the prompt.
    tokens: largest number of tokens to generate.
    settings: settings of the beam search.
    inputs: `sources` (source texts) and `reading` (a saved text to continue), as `write_all` takes them.
    heading: text to print before the continuation: the prompt, or nothing for a chat.

    Returns the continuations, the best first.
    """
    continuations, milliseconds = write_batch(model, [start], tokens, settings, inputs)
    if settings.best > 1:
        print_texts([heading], continuations, milliseconds)
        return continuations
    (continuation,) = continuations
    print(for_stream((heading + continuation.text).decode(errors="replace")))
    _report_speed(len(continuation.tokens), milliseconds)
    return continuations


def write_batch(
    model: Any, starts: list[bytes], tokens: int, settings: WritingSettings, inputs: dict[str, Any]
) -> tuple[list[Continuation], float]:
    """Continue all prompts in one batch, with the progress on stderr.

    model: the model.
    starts: the prompts.
    tokens: largest number of tokens to generate for each prompt.
    settings: settings of sampling or beam search.
    inputs: `sources` (source texts) and `reading` (a saved text to continue), as `write_all` takes them.

    Returns the continuations, and the milliseconds per step of the batch.
    """
    with progress("generating", tokens, f"tokens for each of {len(starts):,} texts") as tell:
        steps = 0

        def count_step(new: list[int]) -> None:
            nonlocal steps
            steps += 1
            tell(steps)

        return write_all(model, starts, tokens, settings, on_tokens=count_step, look=tell, **inputs)


def print_texts(starts: list[bytes], written: list[Continuation], milliseconds: float) -> None:
    """Print each generated text after its number in brackets, and the speed on stderr.

    With several continuations of a prompt, the number has their rank too, and the score follows it.

    starts: the prompts.
    written: their continuations, the same number for each prompt.
    milliseconds: milliseconds per step of the batch.
    """
    best = len(written) // len(starts)
    for place, continuation in enumerate(written):
        number, rank = place // best + 1, place % best + 1
        heading = f"[{number}]"
        if best > 1:
            heading = f"[{rank if len(starts) == 1 else f'{number}.{rank}'}] score {continuation.score:.4f}"
        text = (starts[number - 1] + continuation.text).decode(errors="replace")
        print(f"{heading}\n{for_stream(text)}")
    _report_speed(sum(len(continuation.tokens) for continuation in written), milliseconds / len(written))


def print_json(folder: Path, written: list[Continuation], starts: list[bytes], sources: list[bytes] | None) -> None:
    """Print the generated texts as one JSON object.

    folder: the folder of the model.
    written: the continuations, the same number for each prompt.
    starts: the prompts.
    sources: the source texts; None if the model reads none.
    """
    best = len(written) // len(starts)
    texts = [
        {
            "source": None if sources is None else sources[place // best].decode(errors="replace"),
            "prompt": starts[place // best].decode(errors="replace"),
            "text": continuation.text.decode(errors="replace"),
            **{name: getattr(continuation, name) for name in ("tokens", "log_probability", "ended")},
            **({"layers": continuation.layers} if continuation.layers else {}),
            **({} if continuation.score is None else {"score": continuation.score}),
        }
        for place, continuation in enumerate(written)
    ]
    print(for_stream(json.dumps({"folder": str(folder), "texts": texts}, ensure_ascii=False)))


def report_compilation(steps: CompiledSteps) -> None:
    """Print on stderr how long the compilation took, what it saves per token, and when it has paid.

    steps: the compiled steps of the model.
    """
    if (times := steps.times) is None:
        print("compiled nothing: the text is too short. Leave --compile out", file=sys.stderr)
        return
    eager, compiled = 1000 * times.eager, 1000 * times.compiled
    pays = f"it pays after {times.break_even:,.0f} tokens" if times.break_even < inf else "it does not pay here"
    print(
        f"compiled in {times.compilation:.1f} s; a token takes {compiled:.2f} ms in place of {eager:.2f}; {pays}",
        file=sys.stderr,
    )


def _report_speed(tokens: int, milliseconds: float) -> None:
    print(f"{tokens:,} tokens, {milliseconds:.1f} ms per token", file=sys.stderr)
