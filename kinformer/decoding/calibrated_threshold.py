"""Calibrated exit thresholds (confidences at which tokens leave early), kept in `exits.json`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinformer import __version__
from kinformer.checkpoint.atomic_files import contents as read_file
from kinformer.checkpoint.atomic_files import write
from kinformer.core.from_json import from_json
from kinformer.core.warn import warn
from kinformer.decoding.layers_used import exits_of
from kinformer.decoding.saved_state import fingerprint
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.decaying_threshold import DecayingThreshold
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.never_exit import NeverExit
from kinformer.nn.exits.threshold import Threshold

EDITION = 1  # version of the file format
FILE = "exits.json"
CLOCK = "output"  # decaying thresholds count the tokens of the output
ANEW = "run `kinformer calibrate` again, or delete the file"


class CalibrationError(ValueError):
    """Error of an `exits.json` without a valid exit threshold for this model; the message is one line."""


def save_calibration(folder: Path, model: Any, threshold: Threshold | None, provenance: Mapping[str, Any]) -> None:
    """Write the exit threshold of a model with early exits to `exits.json` in its folder, atomically.

    folder: folder of the model.
    model: model that the threshold was measured with.
    threshold: one number, or one for each layer except the last. None means the full model: no token exits early.
    provenance: facts about the calibration that the file also stores, such as the data.

    Errors: OSError if the file cannot be written.
    """
    about = {"edition": EDITION, "kinformer": __version__, "model": fingerprint(model)}
    header = {**about, "threshold": threshold, "clock": CLOCK}
    write(folder / FILE, f"{json.dumps(header | dict(provenance), indent=2)}\n".encode())


def apply_calibration(folder: Path, model: Any) -> dict[str, Any] | None:
    """Set a model's exit rule to the threshold in its `exits.json`, and return the file's content.

    Without a file it returns None and changes nothing. If the file's threshold is None, no token exits early. In files
    of an earlier version, which have no entry "clock", a threshold fell with the position in the row. Now it falls with
    the position in the output, so such a file gives a warning. If it has one threshold per layer, they are constant,
    and there is no warning.

    folder: folder of the model.
    model: model to change.

    Errors: CalibrationError for a file that is damaged, foreign or of other weights; OSError for an unreadable file.
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
        raise CalibrationError(f"{path} does not fit the exit rule of this model: {error}; {ANEW}") from error
    if "clock" not in record:
        _adapt_old_threshold(body.rule, path)
    return record


def _adapt_old_threshold(rule: ExitRule, path: Path) -> None:
    """Adapt a rule to a file without a "clock", of an earlier version, so that exits change as little as possible."""
    if not isinstance(rule, ConfidenceThreshold) or not isinstance(rule.threshold, DecayingThreshold):
        return
    falling = rule.threshold
    if isinstance(falling.threshold, tuple):
        rule.threshold = falling.threshold  # in files without a clock, thresholds by layer do not decay
    elif falling.temperature:
        warn(
            f"the threshold in {path} has no guarantee any more. It was measured for thresholds that fall with the "
            f"position in the row, but now they fall with the position in the output; {ANEW}"
        )


def calibration(folder: Path, model: Any) -> dict[str, Any] | None:
    """Return the content of a model's `exits.json`; None if the file or the model's exits are missing.

    folder: folder of the model.
    model: model of the folder.

    Errors: CalibrationError for a file that is damaged, foreign or of other weights; OSError for an unreadable file.
    """
    path = folder / FILE
    if exits_of(model) is None or not path.is_file():
        return None
    record = _read(path)
    if record["model"] != fingerprint(model):
        raise CalibrationError(f"{path} was made for other weights than this model has; {ANEW}")
    return record


def _read(path: Path) -> dict[str, Any]:
    try:
        record = from_json(read_file(path))
    except ValueError as error:
        raise CalibrationError(f"{path} is truncated or not JSON: {error}; {ANEW}") from error
    if not isinstance(record, dict) or not isinstance(record.get("model"), str) or "threshold" not in record:
        raise CalibrationError(f"{path} was not written by kinformer: 'model' or 'threshold' is missing; {ANEW}")
    if record.get("edition") != EDITION:
        raise CalibrationError(
            f"{path} has edition {record.get('edition')!r:.20}, but this kinformer reads edition {EDITION}; {ANEW}"
        )
    threshold = record["threshold"]
    values = threshold if isinstance(threshold, list) else [] if threshold is None else [threshold]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        raise CalibrationError(
            f"{path} has no valid threshold: got threshold={threshold!r:.40}, expected numbers; {ANEW}"
        )
    return record
