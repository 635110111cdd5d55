"""Exit thresholds that `kinformer calibrate` found: applied to a model, and formatted for messages."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinformer.cli.errors import print_warnings
from kinformer.decoding.calibrated_threshold import apply_calibration
from kinformer.decoding.layers_used import exits_of
from kinformer.lab.errors import from_user
from kinformer.nn.exits.decaying_threshold import DecayingThreshold


def leave_as_calibrated_here(folder: Path, model: Any) -> dict[str, Any] | None:
    """Apply the exit thresholds in a model's folder, and report them on stderr.

    folder: the folder of the model, which may hold exits.json.
    model: the model of that folder, with early exits or not; its rule for exits changes in place.

    `kinformer calibrate` found the thresholds and wrote exits.json. Returns its record, or None if the folder has no
    exits.json. Errors: UserError if exits.json cannot be used.
    """
    body = exits_of(model)
    rule = None if body is None else body.rule  # calibration may replace it by a rule without early exits
    with from_user(ValueError, OSError), print_warnings():
        record = apply_calibration(folder, model)
    if record is not None:
        threshold = record["threshold"]
        at = (
            "no token exits early"
            if threshold is None
            else f"tokens exit early at threshold {threshold_text(rule, threshold)}"
        )
        print(f"{at}, as calibrated", file=sys.stderr)
    return record


def layers_can_be_left(model: Any) -> bool:
    """True if tokens of a model exit early at a threshold that `kinformer calibrate` could set.

    model: any model; the result is False if it has no early exits.
    """
    body = exits_of(model)
    try:
        return body is not None and bool(body.rule.grid(2))
    except ValueError:
        return False


def threshold_text(rule: Any, threshold: float | Sequence[float]) -> str:
    """Format an exit threshold, or the exit thresholds of all layers, with 3 significant digits.

    rule: the exit rule of the model; if its threshold falls in the course of an output, the text gives the first and
        the last value.
    threshold: one threshold for all layers, or one for each layer.
    """
    layers = [threshold] if isinstance(threshold, float | int) else threshold
    numbers, rule_threshold = ", ".join(f"{number:.3g}" for number in layers), getattr(rule, "threshold", None)
    if not isinstance(rule_threshold, DecayingThreshold):
        return numbers
    ends = [replace(rule_threshold, threshold=number).ends for number in layers]
    falls = ", ".join(f"from {first:.3g} to {last:.3g}" for first, last in ends)
    return f"{numbers} (falling {falls} over the output)"
