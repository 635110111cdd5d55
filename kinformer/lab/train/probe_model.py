"""Probe: the copy of a model on which a training runs its tests before the first step."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kinformer.core.dropout import disable_dropout
from kinformer.core.model import Model, display_name
from kinformer.core.parameter_noise import add_parameter_noise
from kinformer.lab.train.out_of_memory import is_out_of_memory

M = TypeVar("M", bound=Model)
SHARE = 0.1  # of a parameter's standard deviation: enough to move a single zero among other entries
NUDGE = 1e-10  # of a parameter's entry: far more than float64 rounds by, and too little to change a hard choice
EXACT, COARSE = 1e-9, 1e-5  # of the largest output: changes below this are rounding, in float64 and in lower precision


def probe_of(model: M, share: float | None = SHARE) -> M:
    """Return a copy of a model in float64, without dropout and with noise on every parameter.

    Noise changes weights that were initialised with zeros, because zeros would hide the output of the layers below. The
    copy takes twice the memory of the model's weights in float32, which is less than the optimiser's state later.

    model: the model to copy.
    share: size of the noise as a fraction of each parameter's standard deviation; None adds no noise.

    Errors: ValueError for a model that cannot be copied; if memory is too small, PyTorch's own error
    (`is_out_of_memory`).
    """
    try:
        with _Detached():
            probe = copy.deepcopy(model)
    except (TypeError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(
            f"cannot copy this {display_name(model)} to test it: {error}. Define __deepcopy__ on the part that fails"
        ) from error
    if next(probe.parameters()).device.type == "mps":  # "mps" has no float64
        probe = probe.to("cpu")
    probe = probe.double()
    disable_dropout(probe)
    if share is not None:
        add_parameter_noise(probe, share)
    probe.load_state_dict(probe.state_dict())  # runs the load hooks of parts that cache a value of their weights
    return probe


@contextmanager
def seeded(model: Model) -> Iterator[None]:
    """Set PyTorch's random seed to 0 while the context is entered; then restore the generators.

    model: the model, for its device.
    """
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        yield


class _Detached(TorchFunctionMode):
    """Lets deepcopy copy the values of tensors with a gradient history, which modules may keep for inspection."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            args = (args[0].detach(), *args[1:])
        return func(*args, **(kwargs or {}))


def change(before: Tensor, after: Tensor) -> float:
    """Return the largest difference of two outputs, divided by the largest finite number in the first.

    before: the first output.
    after: the second output.
    """
    equal = (before == after) | (before.isnan() & after.isnan())
    apart = (after - before).abs().masked_fill(equal, 0.0).nan_to_num(nan=torch.inf).amax()
    return float(apart / before.abs().where(before.isfinite(), 0.0).amax().clamp_min(torch.finfo(before.dtype).tiny))


def rounding(probe: Model, outputs: Callable[[], Tensor], before: Tensor) -> float:
    """Return the largest relative difference of two outputs that can be explained by rounding.

    A test of the probe ignores smaller differences.

    It is at least 1e-9. It is larger for a model that computes in float32 inside or amplifies rounding: ten times the
    relative change of outputs when every parameter changes by a factor 1 + 1e-10. The probe's parameters stay changed.

    probe: the model.
    outputs: computes the outputs.
    before: the outputs with the unchanged parameters.
    """
    for p in probe.parameters():
        p.data.mul_(1 + NUDGE * torch.randn_like(p))
    floor = EXACT if before.dtype == torch.float64 else COARSE
    return max(floor, 10 * change(before, outputs()))
