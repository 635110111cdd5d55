"""A text of 16,384 tokens, read by a trained decoder and by its conversions: quality at the end, time, memory.

    python bench/long_documents.py MODEL BOOK [--tokens N] [--only CONVERSION ...] [--train BOOK] [--out FILE]

MODEL is anything that `kf.load` reads. BOOK is a file NAME.txt.xz, whose first characters are read. A passage of 128
tokens at token 2,048 occurs again 512 tokens before the end. Three figures say how well a model reads the end of the
text: the perplexity of the 1,024 tokens before the repeated passage, of the passage's last 112 tokens at its first
place, and of the same tokens at its second place. A model that uses distant text predicts the second occurrence almost
exactly. The text is read in chunks of 512 tokens with a decoding state, once by each model. `--train` matches the parts
of linear attention on another book.
"""

import argparse
import json
import lzma
import platform
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import kinformer as kf
from kinformer.core.state import state_bytes

PLACE, PASSAGE, CUE, REST = 2048, 128, 16, 512  # tokens
CHUNK, SCORED, WRITTEN = 512, 1024, 32
YARN: tuple[str, dict[str, Any]] = ("yarn", {"factor": 2.0})
STEPS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "window 252 + 4 sinks": (("window", {"window": 252, "sinks": 4}),),
    "window 2,044 + 4 sinks": (("window", {"window": 2044, "sinks": 4}),),
    "memory of three segments + 4 sinks": (("memory", {"segment": 128, "memory": 384, "sinks": 4}),),
    "memorizing, layer 23": (("memorizing", {"memory": 16_384}),),
    "memorizing, layers 11 to 30": (("memorizing", {"memory": 16_384, "layers": tuple(range(11, 31))}),),
    "linear, window 64 + 4 sinks": (("linear", {"window": 64, "sinks": 4}),),
    "yarn x2": (YARN,),
    "yarn x2, memorizing, layers 11 to 30": (YARN, ("memorizing", {"memory": 16_384, "layers": tuple(range(11, 31))})),
}


def document(model: Any, book: Path, tokens: int) -> Tensor:
    """Return the row of tokens with a repeated passage."""
    with lzma.open(book, "rt", encoding="utf-8") as file:
        ids = torch.tensor(model.tokenizer.encode(file.read(8 * tokens)))[None, :tokens]
    if ids.shape[1] < tokens:
        raise SystemExit(f"{book} is too short: got {ids.shape[1]:,} tokens, expected {tokens:,}")
    ids[:, tokens - REST : tokens - REST + PASSAGE] = ids[:, PLACE : PLACE + PASSAGE]
    return ids


def measure(model: Any, ids: Tensor) -> dict[str, float]:
    """Read the row, then write greedily, and return the figures."""
    state, losses, began = model.start(1, ids.shape[1] + WRITTEN), [], monotonic()
    with torch.inference_mode():
        for chunk, target in zip(ids.split(CHUNK, 1), ids[0, 1:].split(CHUNK), strict=True):
            out = model.logits(chunk, state)
            state = out.state
            losses.append(cross_entropy(out.y[0, : len(target)].float(), target, reduction="none"))
        seconds, token, began = monotonic() - began, out.y[:, -1:].argmax(-1), monotonic()
        for _ in range(WRITTEN):
            out = model.logits(token, state)
            state, token = out.state, out.y[:, -1:].argmax(-1)
    loss, repeat = torch.cat(losses), ids.shape[1] - REST  # loss[t] is that of token t + 1

    def perplexity(first: int, last: int) -> float:
        return float(loss[first - 1 : last - 1].mean().exp())

    return {
        "perplexity": perplexity(repeat - SCORED, repeat),
        "passage": perplexity(PLACE + CUE, PLACE + PASSAGE),
        "repeated passage": perplexity(repeat + CUE, repeat + PASSAGE),
        "seconds of reading": seconds,
        "written tokens per second": WRITTEN / (monotonic() - began),
        "bytes of state": state_bytes(state),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("book", type=Path)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--only", nargs="*", default=["source", *STEPS])
    parser.add_argument("--train", type=Path)
    parser.add_argument("--out", type=Path, default=Path("long_documents.json"))
    words = parser.parse_args()
    source = kf.load(words.model)
    ids = document(source, words.book, words.tokens)
    results = json.loads(words.out.read_text()) if words.out.exists() else {}
    results["versions"] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.processor(),
    }
    for name in words.only:
        if name in results:
            continue
        if name != "source" and name not in STEPS:
            parser.error(f"unknown conversion {name}; give some of {', '.join(STEPS)}")
        model = source
        for what, options in STEPS.get(name, ()):
            data = lzma.decompress(words.train.read_bytes()).decode() if what == "linear" and words.train else None
            model = kf.convert(model, what, data=None if data is None else [data], **options)
        results[name] = measure(model, ids)
        words.out.write_text(json.dumps(results, indent=2))
        print(name, ", ".join(f"{key} {value:,.2f}" for key, value in results[name].items()), flush=True)


if __name__ == "__main__":
    main()
