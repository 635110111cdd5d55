"""Checks before a training: a model of the next token must not read later tokens, and must decode."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from kinformer.core.example import Example
from kinformer.core.mechanism import NoState
from kinformer.core.model import Model, Predictor, display_name
from kinformer.core.warn import warn
from kinformer.lab.data.batches import to_device
from kinformer.lab.train.out_of_memory import is_out_of_memory
from kinformer.lab.train.probe_model import EXACT, change, probe_of, rounding, seeded
from kinformer.models.support.wrapped_lm import WrappedLM

SHORT = 24  # tokens of the short row that is tested first
FEWEST, TOKENS = 6, 2048  # fewest cuts of a row, and tokens that the rows of all cuts may have in total


def reads_ahead(model: Model, length: int, *, training: bool = True) -> str:
    """Return the declared reason why a model reads ahead (its outputs depend on later tokens), or "".

    model: the model.
    length: number of tokens in the rows that the model reads.
    training: True tests train mode too.

    Errors: ValueError for a model that reads ahead although no part declares it (in the entry `breaks` of an
    `Example`).
    """
    model = _unwrap(model)
    if not isinstance(model, Predictor) or not leaks(model, length, training=training):
        return ""
    reason = next(_declared_reasons(model), None)
    if reason is None:
        raise ValueError(
            f"this {display_name(model)} reads ahead: got an output that changes with later tokens, expected one "
            "that does not. Give its attention patterns the form Causal() & pattern, or train it as an MLM"
        )
    return reason


def warn_ahead(model: Model, reason: str) -> None:
    """Warn of a model that reads ahead (its outputs depend on later tokens); no warning for the reason "".

    model: the model.
    reason: the declared reason, from `reads_ahead`.
    """
    if reason:
        warn(f"this {display_name(model)} reads ahead, as its part declares: {reason}")


def warn_of_measuring(model: Model, length: int) -> None:
    """Warn before an evaluation if a model's outputs depend on later tokens: its score would be too good.

    model: the model.
    length: number of tokens in the rows.
    """
    try:
        reason = reads_ahead(model, length, training=False)
    except ValueError as error:
        warn(str(error))
    else:
        warn_ahead(model, reason)


def refuse_no_state(model: Model, length: int) -> None:
    """Raise ValueError for a model that predicts the next token but cannot decode.

    model: the model.
    length: number of tokens for which the model starts to decode.
    """
    if not model.predicts_next:
        return
    try:
        model.start(1, length)
    except NoState as error:
        raise ValueError(
            f"this {display_name(model)} predicts the next token but cannot decode token by token: {error}"
        ) from error


def leaks(model: Predictor, length: int, *, training: bool = True) -> bool:
    """Return True if an output of the model changes when a token after its position changes.

    The test draws new random tokens after a position, the cut, and compares the outputs before it. A row of up to 45
    tokens is cut at every position, a row of 342 or more tokens at 6 positions. A row of a length between gets the
    number of cuts that reads 2,048 tokens in total. A row of 24 tokens is tested first. The model is a copy in float64
    with noise on every weight (`lab/train/probe_model.py`), so that weights initialised with zeros hide no difference.
    The test runs in eval mode, and in train mode too if its outputs differ.

    Long rows cost 8 forward passes of one row, or 15 if the modes differ, without gradients: about as much as one
    optimiser step on four rows. If memory is too small for a row, the row is halved. If it is too small for the copy,
    the model is not tested, and a warning says so.

    model: the model.
    length: number of tokens in the rows.
    training: True tests train mode too.
    """
    short = min(max(length, 2), SHORT)
    with seeded(model), torch.no_grad():
        try:
            probe = _noisy_copy(model)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            warn(
                f"cannot test whether this {display_name(model)} reads ahead: memory is too small for its copy in "
                "float64"
            )
            return False
        if _leaks_where_it_fits(probe, short, 2, training):
            return True
        return length > SHORT and _leaks_where_it_fits(probe, length, SHORT + 1, training)


def _leaks_where_it_fits(probe: Predictor, length: int, least: int, training: bool) -> bool:
    """Call `_leaks`, and halve the row while memory is too small; False if no row of at least `least` tokens fits."""
    while length >= least:
        try:
            return _leaks(probe, length, training)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            length //= 2
    return False


def _noisy_copy(model: Predictor) -> Predictor:
    """Return a copy with noise; without noise if noise makes outputs NaN, for example under a logarithm."""
    probe = probe_of(model).eval()
    if bool(_Row.from_model(probe, 2).outputs().isnan().any()):
        probe.load_state_dict(model.state_dict())  # into the same memory: a second copy may not fit
    return probe


def _leaks(probe: Predictor, length: int, training: bool) -> bool:
    """Return True if an output for a row of this length changes with a later token, in eval or train mode."""
    row = _Row.from_model(probe.eval(), length)
    y = row.outputs()
    if row.is_changed_by_future(y):
        return True
    if not training:
        return False
    probe.train()
    for part in probe.modules():
        if isinstance(part, _BatchNorm):
            part.eval()  # in train mode its statistics include later tokens; evaluations use stored statistics
    in_training = row.outputs()
    if change(y, in_training) <= EXACT:
        return False
    is_random = change(in_training, row.outputs()) > 0  # random although the seed is fixed: it would look like a leak
    return not is_random and row.is_changed_by_future(in_training)


@dataclass(frozen=True)
class _Row:
    """A random test row: its steps, the cuts, and further inputs of the model.

    redrawn: for each cut another row; its steps from the cut on replace those of the row.
    """

    model: Predictor
    steps: Tensor
    cuts: Tensor
    redrawn: Tensor
    inputs: Mapping[str, Any]

    @classmethod
    def from_model(cls, model: Predictor, length: int) -> "_Row":
        """Draw a row of this length from the model's samples, and another row for each cut."""
        device, longest = next(model.parameters()).device, model.longest  # the model may put a step before the row
        steps, inputs = model.inputs(to_device(device, model.sample(1, length, 0)))
        cuts = _cuts(steps[:, :longest].shape[1]).to(device)
        redrawn, _ = model.inputs(to_device(device, model.sample(len(cuts), length, 1)))
        doubles = {name: _to_double(value) for name, value in inputs.items()}
        return cls(model, steps[:, :longest], cuts, redrawn[:, :longest], doubles)

    def outputs(self, rows: Tensor | None = None) -> Tensor:
        """Return the outputs of the model for this row, or for other rows, always with the same random numbers."""
        rows = self.steps if rows is None else rows
        torch.manual_seed(0)
        return self.model.predict(rows, **{name: _repeat_rows(value, len(rows)) for name, value in self.inputs.items()})

    def is_changed_by_future(self, y: Tensor) -> bool:
        """True if the outputs before a cut differ from y when the steps after the cut change."""
        length, changes = self.steps.shape[1], [0.0]
        # in train mode each row is read alone, so that it draws the same random numbers as the uncut row
        together = 1 if self.model.training else max(TOKENS // length, 1)
        for cuts, redrawn in zip(self.cuts.split(together), self.redrawn.split(together), strict=True):
            before = torch.arange(length, device=cuts.device) < cuts[:, None]  # [cuts T]
            is_before = before.view(*before.shape, *(1 for _ in self.steps.shape[2:]))
            outputs = self.outputs(torch.where(is_before, self.steps, redrawn))
            changes.append(change(y.expand_as(outputs), torch.where(before[..., None], outputs, y)))
        return max(changes) > EXACT and max(changes) > rounding(self.model, self.outputs, y)


def _cuts(length: int) -> Tensor:
    """Return all cuts of a short row, or a few odd cuts of a long row: an even cut may fall on the end of a block."""
    count = max(TOKENS // max(length, 1), FEWEST)
    return torch.arange(1, length) if count >= length - 1 else length * torch.arange(count) // count | 1


def _to_double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _repeat_rows(value: Any, rows: int) -> Any:
    return value.expand(rows, *value.shape[1:]) if isinstance(value, Tensor) else value


def _unwrap(model: Model) -> Model:
    """Return the model inside a wrapper with a datastore; retrieval itself uses only earlier outputs."""
    while isinstance(model, WrappedLM):
        model = model.model
    return model


def _declared_reasons(model: Model) -> Iterator[str]:
    """Yield the reasons by which parts of the model, or its member, declare that they read ahead."""
    files = {type(module).__module__ for module in model.modules()}
    record = getattr(model, "member", None)
    if record is not None:
        files.add(f"kinformer.members.{record.name}")
    for file in sorted(files):
        for entry in getattr(sys.modules.get(file), "EXAMPLES", ()):
            if isinstance(entry, Example) and "peek" in entry.breaks:
                yield entry.breaks["peek"]
