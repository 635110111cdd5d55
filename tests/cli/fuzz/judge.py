"""What is wrong with what a command did."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

from kinformer.checkpoint.checkpoint import MemberNeeded, load
from kinformer.lab.data.support.offline_episodes import episodes
from kinformer.lab.datastore.datastore import Datastore
from tests.cli.fuzz.world import Seen, value

NUMBER = re.compile(r": (\S+) [a-z]")


def faults(words: list[str], outcome: Seen) -> Iterator[str]:
    """A traceback, another end than one line, an exit 0 on what was not done."""
    if outcome.raised is not None:
        yield f"raised {type(outcome.raised).__name__}: {outcome.raised}"
        return
    if "Traceback" in outcome.err or "Traceback" in outcome.out:
        yield "a traceback"
    if outcome.code == 0:
        if "--help" not in words:
            yield from not_done(words, outcome)
        return
    if outcome.code not in (1, 2):
        yield f"exit code {outcome.code}"
    messages = [line for line in outcome.err.splitlines() if line.startswith("kinformer: ")]
    judged = words[:1] == ["check"] and outcome.code == 1
    if len(messages) != (0 if judged else 1) or (
        messages and (messages[0].strip() == "kinformer:" or messages[0] != last(outcome.err))
    ):
        yield f"exit {outcome.code} is not told in one line at the end"


def last(text: str) -> str:
    return (text.rstrip("\n").splitlines() or [""])[-1]


def not_done(words: list[str], outcome: Seen) -> Iterator[str]:
    """What exit 0 promised and is not there."""
    command = next((word for word in words if not word.startswith("-")), "")
    if not outcome.out.strip():
        yield "exit 0 without a word"
    elif "--json" in words:
        try:
            json.loads(outcome.out, parse_constant=refuse)
        except ValueError as error:
            yield f"no JSON: {error}"
            return
    if command in MADE:
        try:
            yield from MADE[command](words, outcome)
        except Exception as error:
            yield f"exit 0, and what it made cannot be read: {error!r}"


def refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def trained(words: list[str], outcome: Seen) -> Iterator[str]:
    out = Path(value(words, "--out"))
    yield from loadable(out)
    yield from loadable(out / "best")
    if match := re.search(r": (\S+) (bits|share|accuracy)", last(outcome.out)):
        if not math.isfinite(float(match[1].replace(",", ""))):
            yield "trained to no number"


def loadable(folder: Path) -> Iterator[str]:
    try:
        load(folder)
    except MemberNeeded:
        pass
    except Exception as error:
        yield f"exit 0 and no model in {folder.name}: {error}"


def compared(words: list[str], outcome: Seen) -> Iterator[str]:
    out = Path(value(words, "--out"))
    results = json.loads((out / "results.json").read_text(), parse_constant=refuse)
    if not results.get("members"):
        yield "compared nothing"
    models = [path.parent for path in out.rglob("model.safetensors")]
    if not models:
        yield "compared, and kept no model"
    for folder in models:
        yield from loadable(folder)


def measured(words: list[str], outcome: Seen) -> Iterator[str]:
    if "--json" in words:
        report = json.loads(outcome.out)
        numbers = [entry["value"] for entry in report.get("splits", {"": report}).values()]
    else:
        numbers = [float(entry) for entry in re.findall(r": (-?[\d.]+|-?nan|-?inf) ", outcome.out)[:1]]
    if not numbers or not all(map(math.isfinite, numbers)):
        yield "measured no number"


def wrote(words: list[str], outcome: Seen) -> Iterator[str]:
    if "--json" not in words:
        return
    report = json.loads(outcome.out)
    if not (Path(report["out"]).is_file() if "pictures" in report else report["texts"]):
        yield "wrote nothing"


def saved_state(words: list[str], outcome: Seen) -> Iterator[str]:
    if not Path(value(words, "--save")).is_file():
        yield "kept nothing"


def counted(words: list[str], outcome: Seen) -> Iterator[str]:
    if "parameters" not in outcome.out:
        yield "counted nothing"


def advised(words: list[str], outcome: Seen) -> Iterator[str]:
    if "kinformer train" not in outcome.out:
        yield "advised nothing"


def pictured(words: list[str], outcome: Seen) -> Iterator[str]:
    if (out := value(words, "--out")) and not Path(out).is_file():
        yield "drew nothing"


def forecasted(words: list[str], outcome: Seen) -> Iterator[str]:
    out = Path(value(words, "--out"))
    if not out.is_file():
        yield "forecast nothing"
    elif out.suffix == ".csv" and re.search(r"\b(nan|inf)\b", out.read_text()):
        yield "forecast no numbers"


def calibrated(words: list[str], outcome: Seen) -> Iterator[str]:
    if not any((Path(word) / "exits.json").is_file() for word in words):
        yield "calibrated, and noted nothing"


def played(words: list[str], outcome: Seen) -> Iterator[str]:
    if "mean return" not in outcome.out:
        yield "played nothing"
    if (out := value(words, "--out")) and not (Path(out) / "returns.json").is_file():
        yield "played, and kept no returns"
    if (save := value(words, "--save")) and len(episodes(Path(save))) < 1:
        yield "played, and kept no episodes"


def stored(words: list[str], outcome: Seen) -> Iterator[str]:
    if "build" in words:
        Datastore.open(Path(value(words, "--out")))
    elif "search" in words and "--json" in words and not json.loads(outcome.out)["neighbours"]:
        yield "found nothing"


def tuned(words: list[str], outcome: Seen) -> Iterator[str]:
    if not any((Path(word) / "knn-lm.json").is_file() for word in words):
        yield "tuned, and noted nothing"
    if "--json" not in words and re.search(r"\bnan\b", outcome.out):
        yield "tuned to no number"


MADE = {
    "forecast": forecasted,
    "calibrate": calibrated,
    "play": played,
    "datastore": stored,
    "knn-lm": tuned,
    "train": trained,
    "compare": compared,
    "evaluate": measured,
    "generate": wrote,
    "read": saved_state,
    "cost": counted,
    "advise": advised,
    "show": pictured,
}
