"""What members take at their default sizes, from a table that `python bench/members.py` writes."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kinformer.core.keyword_conditions import has_effect
from kinformer.core.keywords import signature
from kinformer.core.model import Model
from kinformer.lab.cost.free_memory import NUMBERS
from kinformer.lab.cost.uninitialised import Uninitialised
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import MemberChoice, parse_member

TABLE = Path(__file__).with_name("members.json")
ROWS = {256: 4, 2048: 1}  # lengths that were measured, and rows of a batch there
BYTES = 256  # kinds of tokens that were measured
KEPT = 12  # bytes that a kind of token more keeps for each token: a logit, its logarithm and a gradient


@dataclass(frozen=True)
class TrainingEstimate:
    """What a member takes of a training on rows of a length.

    weights: bytes of weights and buffers. row_bytes: what a row keeps at the highest. row_flops: additions and
    multiplications of a step for a row. state_bytes: of a decoding state of a row, None without one. sure: it lies
    within the lengths that were counted.
    """

    choice: MemberChoice
    parameters: int
    weights: int
    row_bytes: float
    row_flops: float
    state_bytes: float | None
    sure: bool

    def peak(self, batch: int) -> float:
        """The most bytes of tensors that are alive at once in training."""
        return fixed_bytes(self.weights) + batch * self.row_bytes


@cache
def table() -> Mapping[str, Any]:
    """The table as it lies in the package: `on` what it was counted, `members`, `timed` steps, `quality` of some."""
    return json.loads(TABLE.read_text())


def at_length(name: str, length: int) -> MemberChoice:
    """Return a member with enough learned positions for rows of a length; other keywords keep their defaults."""
    function = parse_member(name, ()).function
    defaults = {keyword: parameter.default for keyword, parameter in signature(function).parameters.items()}
    positions = defaults.get("length")
    is_short = isinstance(positions, int) and positions < length and has_effect("length", function.needs, defaults)  # type: ignore[attr-defined]
    return parse_member(name, [f"length={length}"] if is_short else [])


def fixed_bytes(weights: int) -> int:
    """The bytes of weights, their gradients and the optimiser's means, whatever the batch."""
    return NUMBERS * weights


def quality(name: str) -> Mapping[str, Any]:
    """What comparisons have measured of a member, if any has, by what they were on."""
    return {record["data"]: record["members"][name] for record in table()["quality"] if name in record["members"]}


def relative_speed(name: str, length: int, baseline: str) -> tuple[int, float] | None:
    """How many times as fast as another's a step of a member's block was, at the nearest length; None if never."""
    if (ratios := table()["timed"]["beside"].get(baseline, {}).get(name)) is None:
        return None
    nearest = min(ratios, key=lambda at: abs(math.log(int(at) / length)))
    return int(nearest), ratios[nearest][0]


def reads_what(name: str) -> str:
    """What a member reads: by the table, or as a model that is built says."""
    if (rows := table()["members"].get(name)) is not None:
        return rows["reads"]
    return model_of(parse_member(name, ())).reads


def model_of(choice: MemberChoice) -> Model:
    """A member's model for its sizes alone, its numbers not drawn.

    On the CPU: arithmetic of tensors without numbers would import PyTorch's compiler, which takes longer than all else.
    """
    with from_user(ValueError, TypeError, LookupError), Uninitialised():
        return choice.function(**choice.keywords)


def estimate_training(choice: MemberChoice, length: int) -> TrainingEstimate:
    """What a member takes on rows of a length; UserError where that is not known, or it refuses them."""
    name, model = choice.function.__name__, model_of(choice)
    rows = table()["members"].get(name)
    if rows is None:
        raise UserError(f"{name} is in no table; kinformer cost {name} tells of it")
    counted = {at: row for at in ROWS if (row := rows.get(str(at))) is not None and "refused" not in row}
    if not counted:
        raise UserError(f"{name} was not counted: {rows[str(min(ROWS))]['refused']}")
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    extra_logits = length * max(getattr(model, "vocab", BYTES) - BYTES, 0)
    states = {at: row["state_bytes"] for at, row in counted.items()}
    return TrainingEstimate(
        choice,
        sum(parameter.numel() for parameter in model.parameters()),
        weights,
        _at_length(counted, "row_bytes", length) + KEPT * extra_logits,
        _at_length(counted, "row_flops", length) + 6 * extra_logits * getattr(model, "d", 0),
        None if None in states.values() else max(_on_line(states, length), 0.0),
        min(counted) <= length <= max(counted),
    )


def _at_length(counted: Mapping[int, Mapping[str, float]], field: str, length: int) -> float:
    """A number at a length, as b L + c L**2 through those at the measured ones; in proportion where that falls."""
    (low, *_), (*_, high) = sorted(counted), sorted(counted)
    at_low, at_high = counted[low][field], counted[high][field]
    if low == high:
        return at_high * length / high
    square = (at_high / high - at_low / low) / (high - low)
    if square >= 0 and (at_low / low - square * low) >= 0:
        return (at_low / low - square * low) * length + square * length**2
    if low <= length <= high:
        return _on_line({low: at_low, high: at_high}, length)
    near = low if length < low else high
    return counted[near][field] * length / near


def _on_line(values: Mapping[int, float], length: int) -> float:
    """A number at a length, in a line through those at the first and the last."""
    low, high = min(values), max(values)
    slope = (values[high] - values[low]) / (high - low) if high > low else 0.0
    return values[low] + slope * (length - low)
