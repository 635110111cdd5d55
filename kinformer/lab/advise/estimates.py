"""Estimates of the training cost of members (named models), from measurements in a table."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from kinformer.core.keywords import SIZES, as_texts, cost_value, signature
from kinformer.core.model import Model
from kinformer.core.uninitialised import Uninitialised
from kinformer.lab.cost.free_memory import NUMBERS, build_without_numbers
from kinformer.lab.cost.temporal_range import temporal_range
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import MemberChoice, parse_member, with_keywords
from kinformer.lab.train.member_fit import fit_length

TABLE = Path(__file__).with_name("members.json")
ROWS = {256: 4, 2048: 1}  # measured lengths, and rows of a batch at each
SHORT = {64: 4}  # a further length, measured for members in `SLOW`
SLOW = ("sac", "sac_encoder")  # they take minutes at the longest length, and their costs are quadratic
# Share of the square in the memory of the longest measured row below which no scores are kept. Chosen from the measured
# shares: the largest below it is 0.093 (al_rfou), the smallest above it 0.163 (bloom).
FUSED = 0.10
BYTES = 256  # vocabulary size of the measured models
KEPT = 12  # bytes per token and additional vocabulary entry: a logit, its logarithm and a gradient


@dataclass(frozen=True)
class TrainingEstimate:
    """Estimated memory and operations of training a member (named model) on rows of one length.

    choice: the member and its keywords.
    parameters: number of parameters.
    weights: bytes of weights and buffers.
    row_bytes: bytes that each row of a batch adds to the peak of memory.
    row_flops: additions and multiplications of a training step per row.
    state_bytes: bytes of the decoding state of a row; None without a state.
    sure: True if the length lies between the measured lengths; otherwise the cost is extrapolated.
    """

    choice: MemberChoice
    parameters: int
    weights: int
    row_bytes: float
    row_flops: float
    state_bytes: float | None
    sure: bool

    def peak(self, batch: int) -> float:
        """Return the peak of memory in training: the most bytes of tensors that exist at once.

        batch: rows of a batch.
        """
        return fixed_bytes(self.weights) + batch * self.row_bytes


@cache
def table() -> Mapping[str, Any]:
    """Return the table of measurements of members (named models), which `python bench/members.py` writes.

    Its entries are `on` (PyTorch version, commit, dtype and batch rows of the counts), `members` (the counts) and
    `timed` (times of steps).
    """
    return json.loads(TABLE.read_text())


def at_length(name: str, length: int) -> MemberChoice:
    """Return a member (named model) with its default keywords, but enough learned positions for a length.

    name: name of the member.
    length: tokens of a row.
    """
    choice = fit_length(parse_member(name, ()), length)
    return replace(choice, text=with_keywords(name, as_texts(choice.keywords)))


def fixed_bytes(weights: int) -> int:
    """Return the bytes of a training without activations: weights, gradients and the optimiser's means.

    weights: bytes of the weights.
    """
    return NUMBERS * weights


@cache
def reach_of(name: str) -> int | None:
    """Return the tokens from an output of a member back to the earliest token that can change it, at most.

    The member has its default keywords. None means that there is no known limit: the model reads its whole row, keeps a
    recurrent state, or generates no text.

    name: name of the member.
    """
    span = temporal_range(parse_member(name, ()).build(0))
    return None if span is None else span.most


def relative_speed(name: str, length: int, baseline: str) -> tuple[int, float] | None:
    """Return how many times as fast as a baseline a member trains, at the measured length that is nearest.

    The result is that length, and the ratio of the speeds of a training step of one block; None if not measured.

    name: name of the member.
    length: tokens of a row.
    baseline: name of the other member.
    """
    if (ratios := table()["timed"]["beside"].get(baseline, {}).get(name)) is None:
        return None
    nearest = min(ratios, key=lambda at: abs(math.log(int(at) / length)))
    return int(nearest), ratios[nearest][0]


def reads_what(name: str) -> str:
    """Return the kind of data that a member reads, such as "text" or "pairs".

    name: name of the member.
    """
    if (rows := table()["members"].get(name)) is not None:
        return rows["reads"]
    return model_of(parse_member(name, ())).reads


def model_of(choice: MemberChoice) -> Model:
    """Build a member's model without initialising its weights, to read its sizes.

    With a table for rows beyond the measured lengths, the model is on the meta device. A table of scores for all pairs
    of 16,384 positions would take 1 GB for each head. Other models are on the CPU, because arithmetic on the meta
    device imports PyTorch's compiler, which takes 2 seconds.

    choice: the member and its keywords.
    """
    if int(choice.keywords.get("length") or 0) > max(ROWS) and (model := build_without_numbers(choice)) is not None:
        return model
    with from_user(ValueError, TypeError, LookupError), Uninitialised():
        return choice.function(**choice.keywords)


def estimate_training(choice: MemberChoice, length: int) -> TrainingEstimate:
    """Estimate the memory and operations of training a member (named model) on rows of one length.

    choice: the member and its keywords.
    length: tokens of a row.

    Errors: UserError if the member was not measured, or if it refuses such rows.
    """
    name, model = choice.function.__name__, model_of(choice)
    rows = table()["members"].get(name)
    if rows is None:
        raise UserError(f"{name} was not measured for this table; `kinformer cost {name}` measures it")
    counted = {int(at): row for at, row in rows.items() if at.isdecimal() and "refused" not in row}
    if not counted:
        raise UserError(f"{name} could not be measured: {rows[str(min(ROWS))]['refused']}")
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    extra_logits = length * max(getattr(model, "vocab", BYTES) - BYTES, 0)
    states = {at: row["state_bytes"] for at, row in counted.items()}
    return TrainingEstimate(
        choice,
        sum(parameter.numel() for parameter in model.parameters()),
        weights,
        _at_length(counted, "row_bytes", length, choice) + KEPT * extra_logits,
        _at_length(counted, "row_flops", length, choice) + 6 * extra_logits * getattr(model, "d", 0),
        None if None in states.values() else max(_on_line(states, length), 0.0),
        min(counted) <= length <= max(counted),
    )


def has_linear_cost(choice: MemberChoice) -> bool:
    """Return True if the order of cost that a member declares is linear in the length of a row.

    choice: the member.
    """
    cost = getattr(choice.function, "cost", None)
    if cost is None:
        return False
    keywords = dict.fromkeys(signature(choice.function).parameters, 2.0)  # any number: only the growth counts
    short, long = (cost_value(cost, {**keywords, **dict.fromkeys((*SIZES, "length"), at)}) for at in (2.0**10, 2.0**20))
    return math.isclose(long, short * 2**10)


def _at_length(counted: Mapping[int, Mapping[str, float]], field: str, length: int, choice: MemberChoice) -> float:
    """Fit b L + c L**2 through the measured lengths, with b, c >= 0; otherwise interpolate linearly.

    Outside the measured lengths the fallback is the value at the nearest of them, in proportion to the length. Beyond
    the measured lengths, a member whose order of cost is linear in L lies on the line a + b L. Its windows are not yet
    full in short rows, and a square would extrapolate this difference. The memory of a member without a noticeable
    square lies on this line too: its attention is fused and keeps no scores.
    """
    (low, *_), (*_, high) = sorted(counted), sorted(counted)
    at_low, at_high = counted[low][field], counted[high][field]
    if low == high:
        return at_high * length / high
    square = (at_high / high - at_low / low) / (high - low)
    is_fused = field == "row_bytes" and square * high**2 < FUSED * at_high
    if length > high and (has_linear_cost(choice) or is_fused):
        return _on_line({low: at_low, high: at_high}, length)
    if square >= 0 and (at_low / low - square * low) >= 0:
        return (at_low / low - square * low) * length + square * length**2
    if low <= length <= high:
        return _on_line({low: at_low, high: at_high}, length)
    near = low if length < low else high
    return counted[near][field] * length / near


def _on_line(values: Mapping[int, float], length: int) -> float:
    """Return the value at a length on the line through the first and the last measured length."""
    low, high = min(values), max(values)
    slope = (values[high] - values[low]) / (high - low) if high > low else 0.0
    return values[low] + slope * (length - low)
