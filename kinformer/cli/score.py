"""The command `kinformer score`: the log-probability of lines of text and of their tokens."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from kinformer.cli.errors import print_warnings
from kinformer.cli.options import Device, Json, Own, RunPrecision, Trained, flag
from kinformer.cli.support.text_lines import read_lines
from kinformer.lab.errors import from_user
from kinformer.pages.terminal_safe_text import for_stream


def score(
    folder: Trained,
    texts: Annotated[Path, typer.Option(help="File of texts, one per line.")],
    tokens: Annotated[bool, flag("tokens", "Print each token with its log-probability under its line.")] = False,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Print the log-probability of each line of a file.

    \b
    Examples:
        kinformer score runs/llama --texts FILE
        # Each token too
        kinformer score runs/llama --texts FILE --tokens

    The model must predict the next token. Each line is read on its own, and its first token is not predicted. A model
    of another library, such as Llama, reads the begin token of its tokenizer first, as in `kinformer generate`, and
    then predicts the first token of the line too.

    A line of the output has the log-probability of the line in nats, the number of predicted tokens, the perplexity per
    token and the text, separated by tabs. Empty lines are skipped. The last line has the totals and the perplexity of
    all lines. `kinformer evaluate` measures a whole text.
    """
    lines = [line for line in read_lines(texts, "texts", "text") if line]
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.load_model import load_model
    from kinformer.cli.support.progress_bar import progress
    from kinformer.decoding.byte_tokenizer import begin_tokens, tokenizer_of_model, warn_of_loss
    from kinformer.decoding.score import score as score_texts

    model = load_model(folder, member, device, precision=precision)
    tokenizer = tokenizer_of_model(model)
    with from_user(ValueError, LookupError), print_warnings(), progress("scoring", len(lines), "lines") as listen:
        rows = [[*begin_tokens(model, tokenizer, row), *row] for row in map(tokenizer.encode, lines)]
        every = score_texts(model, rows, on_progress=listen)
        warn_of_loss(model, lines)
    results: list[dict[str, Any]] = [
        {
            "text": line.decode(errors="replace"),
            "log_probability": scores.total,
            "predicted": max(len(scores.tokens) - 1, 0),
            "tokens": [
                {"text": tokenizer.decode([token]).decode(errors="replace"), "token": token, "log_probability": value}
                for token, value in zip(scores.tokens.tolist(), scores.log_probabilities.tolist(), strict=True)
            ],
        }
        for line, scores in zip(lines, every, strict=True)
    ]
    total, count = sum(line["log_probability"] for line in results), sum(line["predicted"] for line in results)
    if as_json:
        _print_json(folder, results, total, count)
        return
    for line in results:
        print(for_stream(_row(line["log_probability"], line["predicted"], line["text"])))
        for token in line["tokens"] if tokens else ():
            number = token["log_probability"]
            print(for_stream(f"{'' if math.isnan(number) else f'{number:.3f}':>12}  {token['text']!r}"))
    print(_row(total, count, f"all {len(results):,} lines"))


def _print_json(folder: Path, results: list[dict[str, Any]], total: float, count: int) -> None:
    """Print the results as JSON, which has no NaN and no infinity: these numbers become null."""
    for values in (line for result in results for line in (result, *result["tokens"])):
        values["log_probability"] = _finite(values["log_probability"])
    sums = {"log_probability": _finite(total), "predicted": count, "perplexity": _finite(_perplexity(total, count))}
    print(for_stream(json.dumps({"folder": str(folder), **sums, "lines": results}, ensure_ascii=False)))


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _perplexity(total: float, count: int) -> float:
    """Return the perplexity per token: NaN without tokens, infinite if it exceeds the largest float."""
    try:
        return math.exp(-total / count) if count else math.nan
    except OverflowError:
        return math.inf


def _row(total: float, count: int, text: str) -> str:
    return "\t".join([f"{total:.3f}", str(count), f"{_perplexity(total, count):.3f}" if count else "-", text])
