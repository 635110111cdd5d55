"""Conversions of a trained decoder: perplexity on excerpts of books, before and after, relative to the source.

    python bench/conversions.py MODEL FOLDER --score NAME NAME --train NAME ... [--only CONVERSION ...] [--out FILE]

MODEL is anything that `kf.load` reads; bench/README.md has the figures of SmolLM2-135M-Instruct. FOLDER holds books as
NAME.txt.xz. Of each scored book, characters 200,000 to 206,000 are an excerpt; its first 1,024 tokens are read, and
tokens 512 to 1,023 are scored. New parts are matched and models are adapted on the other books. Each result is added
to FILE at once, so that a stopped run goes on with the conversions that FILE lacks.
"""

import argparse
import json
import lzma
import platform
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import kinformer as kf
from kinformer.lab.conversion.layer_choice import layers_to_keep

FIRST, LAST, LENGTH, SCORED = 200_000, 206_000, 1024, 512


class Trial(NamedTuple):
    """A conversion with its options, whether its new parts are matched on data, and the minutes of its adaptation."""

    name: str
    what: str
    options: dict[str, Any]
    is_matched: bool = False
    minutes: float = 0.0


SINKS: dict[str, Any] = {"window": 64, "sinks": 4}
TRIALS = (
    Trial("window 256", "window", {"window": 256, "sinks": 0}),
    Trial("window 252 + 4 sinks", "window", {"window": 252, "sinks": 4}),
    Trial("window 64 + 4 sinks", "window", SINKS),
    *(Trial(f"window 64 + 4 sinks, keep {n}", "window", {**SINKS, "keep": n}) for n in (2, 4, 8, 15)),
    Trial("window 64 + 4 sinks, keep every 4th", "window", {**SINKS, "keep": tuple(range(2, 31, 4))}),
    Trial("memory of one segment + 4 sinks", "memory", {"segment": 128, "memory": 128, "sinks": 4}),
    Trial("memory of three segments + 4 sinks", "memory", {"segment": 128, "memory": 384, "sinks": 4}),
    Trial("pi x4", "pi", {"factor": 4.0}),
    Trial("ntk x4", "ntk", {"factor": 4.0}),
    Trial("yarn x4", "yarn", {"factor": 4.0}),
    Trial("memorizing", "memorizing", {**SINKS, "memory": 1024, "k": 32}),
    Trial("linear", "hedgehog", SINKS, True),
    Trial("linear, adapted", "hedgehog", SINKS, True, 8.0),
    Trial("window 64 + 4 sinks, adapted", "window", SINKS, False, 8.0),
    Trial("heads 3 to 1", "mqa", {}),
    Trial("heads 3 to 1, adapted", "mqa", {}, False, 15.0),
    Trial("heads 3 to 1 by svd", "mqa", {"merge": "svd"}, True),
    Trial("heads 3 to 1 by svd, adapted", "mqa", {"merge": "svd"}, True, 15.0),
)


def perplexity(model: Any, ids: Tensor) -> float:
    with torch.no_grad():
        logits = model.logits(ids).y[0]
    return float(cross_entropy(logits[SCORED - 1 : -1].float(), ids[0, SCORED:]).exp())


def with_measured_layers(trial: Trial, results: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a trial, with the layers to keep from the losses that another trial has measured."""
    keep = trial.options.get("keep")
    others = [result["report"] for name, result in results.items() if name != "source"]
    losses = [report["layer_losses"] for report in others if report["layer_losses"]]
    return (
        {**trial.options, "keep": layers_to_keep(losses[0], keep)}
        if isinstance(keep, int) and losses
        else trial.options
    )


def book(folder: Path, name: str) -> str:
    with lzma.open(folder / f"{name}.txt.xz", "rt", encoding="utf-8") as file:
        return file.read()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--score", nargs="+", required=True)
    parser.add_argument("--train", nargs="+", required=True)
    parser.add_argument("--only", nargs="*", default=[trial.name for trial in TRIALS])
    parser.add_argument("--out", type=Path, default=Path("conversions.json"))
    words = parser.parse_args()
    source = kf.load(words.model)
    excerpts = {
        name: torch.tensor(source.tokenizer.encode(book(words.folder, name)[FIRST:LAST]))[None, :LENGTH]
        for name in words.score
    }
    text = [book(words.folder, name) for name in words.train]
    results = json.loads(words.out.read_text()) if words.out.exists() else {}
    if "source" not in results:
        results["source"] = {
            "perplexity": {name: perplexity(source, ids) for name, ids in excerpts.items()},
            "versions": {
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "machine": platform.processor(),
            },
        }
    dense = results["source"]["perplexity"]
    for trial in TRIALS:
        if trial.name in results or trial.name not in words.only:
            continue
        began = monotonic()
        minutes = trial.minutes or None
        options = with_measured_layers(trial, results)
        data = text if trial.is_matched or minutes or isinstance(options.get("keep"), int) else None
        model = kf.convert(source, trial.what, data=data, minutes=minutes, **options)
        scores = {name: perplexity(model, ids) for name, ids in excerpts.items()}
        results[trial.name] = {
            "perplexity": scores,
            "ratio": {name: score / dense[name] for name, score in scores.items()},
            "minutes": (monotonic() - began) / 60,
            "report": model.report.to_json(),
        }
        words.out.write_text(json.dumps(results, indent=2))
        ratios = ", ".join(f"{ratio:.3f}" for ratio in results[trial.name]["ratio"].values())
        print(
            f"{trial.name}: {ratios} of the source's perplexity, {results[trial.name]['minutes']:.1f} min", flush=True
        )


if __name__ == "__main__":
    main()
