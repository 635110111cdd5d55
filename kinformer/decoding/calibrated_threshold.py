"""A calibrated threshold in a run's folder: `exits.json`, beside the weights that it was measured with."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinformer import __version__
from kinformer.checkpoint.atomic_files import contents as read_file
from kinformer.checkpoint.atomic_files import write
from kinformer.core.from_json import from_json
from kinformer.decoding.layers_used import exits_of
from kinformer.decoding.saved_state import fingerprint
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.decaying_threshold import DecayingThreshold
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.never_exit import NeverExit
from kinformer.nn.exits.threshold import Threshold

EDITION = 1  # of the form of the file
FILE = "exits.json"
CLOCK = "output"  # thresholds that fall count the tokens of the output
ANEW = "run `kinformer calibrate` again, or take the file away"


class CalibrationError(ValueError):
    """A file that says no threshold for this model; the message says why, in one line."""


def save_calibration(folder: Path, model: Any, threshold: Threshold | None, provenance: Mapping[str, Any]) -> None:
    """Write a threshold for a model with exits beside its weights, in one step; None for the full model.

    The threshold is a number, or one for each layer but the last. `provenance` says how it was found. OSError where it
    cannot be written.
    """
    about = {"edition": EDITION, "kinformer": __version__, "model": fingerprint(model)}
    header = {**about, "threshold": threshold, "clock": CLOCK}
    write(folder / FILE, f"{json.dumps(header | dict(provenance), indent=2)}\n".encode())


def apply_calibration(folder: Path, model: Any) -> dict[str, Any] | None:
    """Let tokens leave at the threshold in the folder of a model, and hand back what the file says; None without one.

    Without a threshold no token leaves early. A file without a "clock" was measured while thresholds fell with the
    position in the row. A warning says so. Its thresholds by layer do not fall.

    Errors: CalibrationError for a file that is damaged, foreign or of other weights, OSError for an unreadable one.
    """
    path, body, record = folder / FILE, exits_of(model), calibration(folder, model)
    if body is None or record is None:
        return None
    threshold = record["threshold"]
    if threshold is None:
        body.rule = NeverExit()
        return record
    try:
        body.rule.leave_at(tuple(threshold) if isinstance(threshold, list) else threshold)
        body.rule.check_sizes(body.d, len(body.layers))
    except ValueError as error:
        raise CalibrationError(f"{path} fits no rule of this model: {error}; {ANEW}") from error
    if "clock" not in record:
        _adapt_old_threshold(body.rule, path)
    return record


def _adapt_old_threshold(rule: ExitRule, path: Path) -> None:
    """Adapt a rule to a threshold of an earlier version, which has no "clock": exits stay as near to it as possible."""
    if not isinstance(rule, ConfidenceThreshold) or not isinstance(rule.threshold, DecayingThreshold):
        return
    falling = rule.threshold
    if isinstance(falling.threshold, tuple):
        rule.threshold = falling.threshold  # thresholds by layer took the place of one that fell
    elif falling.temperature:
        warnings.warn(
            f"the threshold in {path} is no longer proven: it was measured while thresholds fell with the position in "
            f"the row, and now they fall with the position in the output; {ANEW}",
            stacklevel=4,
        )


def calibration(folder: Path, model: Any) -> dict[str, Any] | None:
    """What the file in the folder of a model says; None without one, or of a model without exits.

    Raises CalibrationError for a file that is damaged, foreign or of other weights, OSError where it cannot be read.
    """
    path = folder / FILE
    if exits_of(model) is None or not path.is_file():
        return None
    record = _read(path)
    if record["model"] != fingerprint(model):
        raise CalibrationError(f"{path} was made for other weights than those beside it; {ANEW}")
    return record


def _read(path: Path) -> dict[str, Any]:
    try:
        record = from_json(read_file(path))
    except ValueError as error:
        raise CalibrationError(f"{path} is truncated or no JSON: {error}; {ANEW}") from error
    if not isinstance(record, dict) or not isinstance(record.get("model"), str) or "threshold" not in record:
        raise CalibrationError(f"{path} was not written by kinformer: it has no 'model' and 'threshold'; {ANEW}")
    if record.get("edition") != EDITION:
        raise CalibrationError(
            f"{path} is of edition {record.get('edition')!r:.20}, and this version reads edition {EDITION}; {ANEW}"
        )
    threshold = record["threshold"]
    values = threshold if isinstance(threshold, list) else [] if threshold is None else [threshold]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        raise CalibrationError(f"{path} fits no rule: threshold={threshold!r:.40}, and numbers are wanted; {ANEW}")
    return record
