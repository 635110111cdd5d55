"""Tokens that leave as `kinformer calibrate` found, and how commands say at which threshold."""

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
    """Let tokens leave as calibration found, and say so; what its file says, None where there is none."""
    body = exits_of(model)
    rule = None if body is None else body.rule  # which may give way to one that nobody leaves by
    with from_user(ValueError, OSError), print_warnings():
        record = apply_calibration(folder, model)
    if record is not None:
        threshold = record["threshold"]
        at = "nobody leaves early" if threshold is None else f"tokens leave at {threshold_text(rule, threshold)}"
        print(f"{at}, as calibrated", file=sys.stderr)
    return record


def layers_can_be_left(model: Any) -> bool:
    """Do tokens leave by a threshold, which calibration could find?"""
    body = exits_of(model)
    try:
        return body is not None and bool(body.rule.grid(2))
    except ValueError:
        return False


def threshold_text(rule: Any, threshold: float | Sequence[float]) -> str:
    """A threshold, or one for each layer; for one that falls also from where to where."""
    layers = [threshold] if isinstance(threshold, float | int) else threshold
    numbers, rule_threshold = ", ".join(f"{number:.3g}" for number in layers), getattr(rule, "threshold", None)
    if not isinstance(rule_threshold, DecayingThreshold):
        return numbers
    ends = [replace(rule_threshold, threshold=number).ends for number in layers]
    falls = ", ".join(f"from {first:.3g} to {last:.3g}" for first, last in ends)
    return f"{numbers} (falling {falls} while an output is written)"
