"""Tokens that leave as `kinformer calibrate` found, and how commands say at which threshold."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinformer.cli.errors import from_user
from kinformer.decoding.calibrated import leave_as_calibrated
from kinformer.decoding.layers_used import exits_of
from kinformer.exits.rules import Decaying


def leave(folder: Path, model: Any) -> dict[str, Any] | None:
    """Let tokens leave as calibration found, and say so; what its file says, None where there is none."""
    body = exits_of(model)
    rule = None if body is None else body.rule  # which may give way to one that nobody leaves by
    with from_user(ValueError, OSError):
        told = leave_as_calibrated(folder, model)
    if told is not None:
        at = "nobody leaves early" if told["threshold"] is None else f"tokens leave at {at_of(rule, told['threshold'])}"
        print(f"{at}, as calibrated", file=sys.stderr)
    return told


def layers_can_be_left(model: Any) -> bool:
    """Do tokens leave by a threshold, which calibration could find?"""
    body = exits_of(model)
    try:
        return body is not None and bool(body.rule.grid(2))
    except ValueError:
        return False


def at_of(rule: Any, threshold: float | Sequence[float]) -> str:
    """A threshold, or one for each layer; of one that falls with position also where it begins and ends."""
    if not isinstance(threshold, float | int):
        return ", ".join(f"{one:.3g}" for one in threshold)
    own = getattr(rule, "threshold", None)
    if not isinstance(own, Decaying):
        return f"{threshold:.3g}"
    first, last = replace(own, threshold=threshold).ends
    return f"{threshold:.3g} ({first:.3g} at the first position, {last:.3g} at the {own.length:,}th)"
