"""Costs of each member at its default size, from a table: parameters, state, operations and keys."""

import json
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from kinformer.core.eval_mode import evaluating
from kinformer.core.heads import Keys, Queries
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.model import Model
from kinformer.core.pattern import Pattern, pair_mask
from kinformer.core.request import Request
from kinformer.lab.advise.estimates import model_of
from kinformer.lab.cost.by_content import by_content
from kinformer.lab.cost.cost import sample_rows
from kinformer.lab.cost.free_memory import build_without_numbers
from kinformer.lab.cost.row_costs import count_flops, count_state, full_state
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import MemberChoice, parse_member
from kinformer.lab.train.attention_hooks import layers_that_read
from kinformer.lab.train.member_fit import fit_length
from kinformer.nn.attention import Attention

TABLE = Path(__file__).with_suffix(".json")
LENGTHS = (1_024, 16_384)  # tokens of a row at which the table has costs
PAIRED = (128, 256, 512, 1_024, 2_048)  # tokens of rows in which pairs are counted; the last only if needed
COUNTED = (256, 512, 1_024, 2_048, 4_096, 16_384)  # tokens of the rows that are run
PATIENCE = 30.0  # seconds for a row; a member that takes longer is not run at this length
LINEAR, DENSE = 1.2, 4_096  # exponent up to which growth counts as linear, and the longest row of other members
FITS = 0.02  # largest relative error of the extrapolation at a length that was run


@cache
def member_costs() -> Mapping[str, Any]:
    """Return the table of costs, which `python bench/member_costs.py` writes.

    Its entries are `on` (PyTorch version and dtype) and `members`. The entry of a member is the result of
    `count_member` and the `commit` at which it was counted.
    """
    table: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def decoding_state(name: str, length: int) -> float | None:
    """Return the bytes of the decoding state of a row of at least 1,024 tokens, from the table.

    They lie on the line through the two lengths of the table. The result is None for a member that has no state, has no
    entry or fixes the length of its rows.

    name: name of the member.
    length: tokens of the row.
    """
    states = member_costs()["members"].get(name, {}).get("state", {})
    low, high = (states.get(str(at)) for at in LENGTHS)
    if low is None or high is None:
        return None
    return float(low + (high - low) * (length - LENGTHS[0]) / (LENGTHS[1] - LENGTHS[0]))


def count_member(name: str) -> dict[str, Any]:
    """Count the costs of a member at its default size on single rows of `LENGTHS` tokens.

    The result has `reads` (the kind of data) and `parameters` (of the default config). Its other entries are by length:
    `state` has the bytes of the decoding state, or None without a state. `flops` has the additions and multiplications
    of a forward pass per token. `keys` has the mean number of keys that a query of a head reads in this pass, or None
    if positions do not decide them. The pass is in eval mode, with a full memory of earlier tokens. `extrapolated` has
    the lengths at which `flops` follow from shorter rows. If the member or its config fixes the length of a row,
    `own_length` has this length, and the other entries have only it.

    name: name of the member.
    """
    choice = parse_member(name, ())
    model = choice.build(0)
    result: dict[str, Any] = {"reads": model.reads, "parameters": sum(x.numel() for x in model.parameters())}
    if (own := own_length(model)) is not None:
        costs = _of_lengths({own: count_flops(model, own)}, model, (own,))
        keys = count_keys(model, own)
        return {**result, "own_length": own, **costs, "keys": {str(own): None if keys is None else round(keys, 1)}}
    counted = _run_lengths(choice)
    fitting = fit_length(choice, max(LENGTHS))
    longest = build_without_numbers(fitting) or model_of(fitting)  # a table of all pairs would not fit in memory
    return {**result, **_of_lengths(counted, longest, LENGTHS), "keys": _keys_of_lengths(choice)}


def own_length(model: Model) -> int | None:
    """Return the length of a row if the model fixes it, else None.

    It is a number of pixel values, time steps, or steps of an episode.

    model: the model.
    """
    if model.reads == "images":
        return sample_rows(model, 1, 1)[0].numel()
    return int(getattr(model, "context", 0)) or None if model.reads in ("series", "trajectories") else None


def _keys_of_lengths(choice: MemberChoice) -> dict[str, float | None]:
    """Return the mean number of keys of a query for rows of `LENGTHS` tokens."""
    pairs: dict[int, float] = {}
    for length in PAIRED:
        if extrapolate_pairs(pairs, max(LENGTHS)) is not None:
            break
        try:
            keys = count_keys(fit_length(choice, length).build(0), length)
        except (UserError, ValueError, LookupError):
            keys = None
        if keys is not None:
            pairs[length] = keys * length
    totals = {length: pairs.get(length) or extrapolate_pairs(pairs, length) for length in LENGTHS}
    return {str(length): None if total is None else round(total / length, 1) for length, total in totals.items()}


def count_keys(model: Model, length: int) -> float | None:
    """Return the mean number of keys that a query of a head reads in a self-attention layer.

    The model is in eval mode, and its memory of earlier tokens is full. A key that several parts of a layer read counts
    once. The result is None for a model without such layers, and for a model with a layer that chooses keys by content
    or that reads landmarks, which are queries themselves.

    model: the model.
    length: tokens of a row.
    """
    named = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    layers = {name: layer for name, layer in named.items() if not layer.cross}
    if not layers or any(by_content(part) for layer in layers.values() for part in layer.modules()):
        return None
    if model.reads == "sets":
        return None  # elements have no positions, and only the pooled vectors read each other
    counts = {name: _LayerPairs() for name in layers}
    unread: list[tuple[str, Pattern, Queries, Keys]] = []
    landmarks: list[str] = []

    def on_read(layer: str, executor: str, request: Request) -> None:
        if layer in layers and not request.keys.own:
            landmarks.append(layer)  # Nystrom: landmarks read all tokens, and tokens read the landmarks
        elif layer in layers:
            counts[layer].add(request.pattern, request.queries, request.keys, request.rows)

    def on_call(name: str, mechanism: KeyValueMechanism, arguments: Any) -> None:
        q, k, _, ctx = arguments
        unread.append((name, mechanism.batch_pattern(ctx) if k.own else mechanism.pattern, q, k))

    with evaluating(model), torch.no_grad(), ExitStack() as hooks:
        batch, state = sample_rows(model, 1, length), full_state(model, length)
        for name, layer in layers.items():
            # counted once for each call of the layer, which may read a query in several calls of its mechanism
            hooks.callback(layer.register_forward_pre_hook(counts[name].begin_call).remove)
            for part in layer.mechanism.modules():
                if isinstance(part, KeyValueMechanism):
                    handle = part.register_forward_pre_hook(partial(on_call, name))
                    hooks.callback(handle.remove)
        hooks.enter_context(layers_that_read(model, on_read))
        model(batch, state, 0.5)
    if landmarks:
        return None
    own_scores = {name for name, layer_pairs in counts.items() if not layer_pairs.has_reads}
    for name, pattern, q, k in unread:
        if name in own_scores and k is not None:  # the mechanism computes its scores itself
            counts[name].add(pattern, q, k, None)
    if not all(layer_pairs.has_reads for layer_pairs in counts.values()):
        return None  # a layer without keys, such as linear attention
    pairs = sum(layer_pairs.total() for layer_pairs in counts.values())
    return pairs / sum(layer_pairs.queries for layer_pairs in counts.values())


class _LayerPairs:
    """Pairs of query and key that a layer reads; a pair that several parts of the layer read counts once in a call."""

    def __init__(self) -> None:
        self.queries, self.has_reads, self._pairs = 0, False, 0
        # by positions and values, which are kept so that no other tensor gets their address
        self._masks: dict[Any, tuple[Tensor, Tensor]] = {}

    def begin_call(self, layer: Attention, arguments: Any) -> None:
        rows, tokens, _ = arguments[0].shape
        self.queries += rows * tokens * layer.sizes.heads
        self.total()

    def add(self, pattern: Pattern, q: Queries, k: Keys, rows: Tensor | None) -> None:
        heads = range(q.head, q.head + q.q.shape[1])
        shape = (len(q.q), len(heads), q.q.shape[2], k.pos.shape[2])
        allowed = pair_mask(pattern, q.pos, k.pos, heads, rows).expand(shape)
        values = (k.v.data_ptr(), k.v.stride(), *(x.numpy(force=True).tobytes() for x in (q.pos, k.pos)), heads, shape)
        if values in self._masks:
            allowed = allowed | self._masks[values][0]
        self._masks[values] = allowed, k.v
        self.has_reads = True

    def total(self) -> int:
        """Return the number of pairs of all calls until now."""
        self._pairs += sum(int(allowed.sum()) for allowed, _ in self._masks.values())
        self._masks.clear()
        return self._pairs


def _of_lengths(counted: Mapping[int, int], model: Model, lengths: tuple[int, ...]) -> dict[str, Any]:
    flops = {length: counted.get(length) or extrapolate(counted, length) for length in lengths}
    return {
        "state": {str(length): count_state(model, length) for length in lengths},
        "flops": {str(length): None if count is None else round(count / length) for length, count in flops.items()},
        "extrapolated": [length for length in lengths if length not in counted and flops[length] is not None],
    }


def _run_lengths(choice: MemberChoice) -> dict[int, int]:
    """Return the operations of a row by its length, for the lengths that are expected to take little time and memory.

    Rows of a member whose operations grow faster than linearly are run up to 4,096 tokens only.
    """
    counted: dict[int, int] = {}
    seconds, growth = 0.0, 1.0  # of the last length; growth as the exponent of the length
    for length in COUNTED:
        last = max(counted, default=length)
        steep = growth > LINEAR and length > DENSE
        if steep or seconds * (length / last) ** growth > PATIENCE:
            break
        began = time.process_time()
        try:
            counted[length] = count_flops(fit_length(choice, length).build(0), length)
        except (UserError, ValueError, LookupError):
            continue
        seconds = time.process_time() - began
        if last < length:
            growth = math.log(counted[length] / counted[last]) / math.log(length / last)
    return counted


def extrapolate(counted: Mapping[int, int], length: int) -> int | None:
    """Return b L + c L^2 through the two longest counted rows.

    It is None if the result for a third row is wrong by over 2%.

    counted: operations of a row by its length.
    length: tokens of the row.
    """
    if len(counted) < 3 or length < max(counted):
        return None
    third, low, high = sorted(counted)[-3:]
    square = (counted[high] / high - counted[low] / low) / (high - low)
    linear = counted[low] / low - square * low
    if abs(linear * third + square * third**2 - counted[third]) > FITS * counted[third]:
        return None
    return round(linear * length + square * length**2)


def extrapolate_pairs(counted: Mapping[int, float], length: int) -> float | None:
    """Return a + b L + c L^2 through the three longest counted rows.

    The constant a counts the keys that are missing at the ends of a row. It is None if the result for a fourth row is
    wrong by over 2%.

    counted: pairs of query and key of a row by its length.
    length: tokens of the row.
    """
    if len(counted) < 4 or length < max(counted):
        return None
    fourth, *lengths = sorted(counted)[-4:]
    x = numpy.array(lengths, dtype=float) / length  # the row to find has length 1, so the equations are well scaled
    coefficients = numpy.linalg.solve(x[:, None] ** numpy.arange(3), [counted[at] for at in lengths])
    at_fourth = float(coefficients @ (fourth / length) ** numpy.arange(3))
    return float(coefficients.sum()) if abs(at_fourth - counted[fourth]) <= FITS * counted[fourth] else None
