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
    text: Annotated[Path, typer.Option(help="File of texts, one per line.")],
    tokens: Annotated[bool, flag("tokens", "Print each token with its log-probability under its line.")] = False,
    device: Device = None,
    precision: RunPrecision = "float32",
    member: Own = None,
    as_json: Json = False,
) -> None:
    """Print the log-probability of each line and each token of a text.

    \b
    Examples:
        kinformer score runs/llama --text FILE
        # Each token too
        kinformer score runs/llama --text FILE --tokens

    The model must predict the next token. Each line is read on its own, and its first token is not predicted. A line of
    the output has the log-probability of the line in nats, the number of predicted tokens, the perplexity per token and
    the text, separated by tabs. Empty lines are skipped. The last line
    has the totals and the perplexity of all lines. `kinformer evaluate` measures a whole text.
    """
    rows = [line for line in read_lines(text, "text", "text") if line]
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.load_model import load_model
    from kinformer.cli.support.progress_bar import progress
    from kinformer.decoding.byte_tokenizer import tokenizer_of_model, warn_of_loss
    from kinformer.decoding.score import score as score_texts

    model = load_model(folder, member, device, precision=precision)
    with from_user(ValueError, LookupError), print_warnings(), progress("scoring", len(rows), "lines") as listen:
        every = score_texts(model, rows, on_progress=listen)
        warn_of_loss(model, rows)
    decode = tokenizer_of_model(model).decode
    lines: list[dict[str, Any]] = [
        {
            "text": row.decode(errors="replace"),
            "log_probability": scores.total,
            "predicted": len(scores.tokens) - 1,
            "tokens": [
                {"text": decode([token]).decode(errors="replace"), "token": token, "log_probability": value}
                for token, value in zip(scores.tokens.tolist(), scores.log_probabilities.tolist(), strict=True)
            ],
        }
        for row, scores in zip(rows, every, strict=True)
    ]
    total, count = sum(line["log_probability"] for line in lines), sum(line["predicted"] for line in lines)
    perplexity = math.exp(-total / count) if count else None
    if as_json:
        for line in lines:
            line["tokens"][0]["log_probability"] = None  # JSON has no NaN
        about = {"folder": str(folder), "log_probability": total, "predicted": count, "perplexity": perplexity}
        print(for_stream(json.dumps({**about, "lines": lines}, ensure_ascii=False)))
        return
    for line in lines:
        print(for_stream(_row(line["log_probability"], line["predicted"], line["text"])))
        for token in line["tokens"] if tokens else ():
            number = token["log_probability"]
            print(for_stream(f"{'' if math.isnan(number) else f'{number:.3f}':>12}  {token['text']!r}"))
    print(_row(total, count, f"all {len(lines):,} lines"))


def _row(total: float, count: int, text: str) -> str:
    return "\t".join([f"{total:.3f}", str(count), f"{math.exp(-total / count):.3f}" if count else "-", text])
