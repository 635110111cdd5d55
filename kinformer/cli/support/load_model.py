"""Loading of a trained model from its folder, with changed keywords if its weights allow them."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinformer.bridge.load import load
from kinformer.checkpoint.checkpoint import MemberNeeded, keywords_of
from kinformer.cli.errors import print_warnings
from kinformer.cli.support.device_choice import parse_device
from kinformer.convert.support.changed_model import build_changed, copy_facts
from kinformer.core.keyword_conditions import check_used
from kinformer.core.keywords import as_texts, parse_keywords
from kinformer.core.model import display_name
from kinformer.lab.datastore.knn_lm_settings import load_nearest
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import find_member_function
from kinformer.models.continuous_cache import ContinuousCache
from kinformer.models.lm import LM
from kinformer.models.spalm import SPALM
from kinformer.models.support.retrieval_lm import RetrievalLM

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # of autocast, by the names of --precision


def device_and_autocast(on: str | None, precision: str) -> tuple[torch.device, AbstractContextManager[Any]]:
    """Return the device of --device, and the context of computations in the format of --precision.

    on: name of the device; the default device if None.
    precision: "float32", "bf16" or "fp16".

    Errors: UserError if this machine has no such device.
    """
    device = parse_device(on)
    return device, nullcontext() if precision == "float32" else torch.autocast(device.type, DTYPES[precision])


def load_model(
    folder: Path,
    member: str | None,
    on: str | None = None,
    keywords: Iterable[str] = (),
    datastore: Path | None = None,
    precision: str = "float32",
) -> Any:
    """Load a trained model from its folder, and print warnings on stderr.

    folder: the folder of the model.
    member: the user's own member that built the model, as FILE.py:NAME; None for a member of the library.
    on: name of the device; the default device if None.
    keywords: keywords to change, such as "memory=512". The model is built again with them and gets the trained weights.
    datastore: the new folder of the datastore that a `spalm` model was trained with, if it has moved.
    precision: number format of the model's matrix products, "float32", "bf16" or "fp16".

    Errors: UserError if the device does not exist, if the model cannot be loaded, or if its weights are not finite or
    do not fit the keywords.
    """
    device = parse_device(on)
    with from_user(ValueError, OSError), print_warnings():
        function = find_member_function(member) if member else None
        replaces_datastore = datastore is not None and keywords_of(folder).get("datastore") is not None
        try:
            model = load(folder, member=function, paths={"datastore": str(datastore)} if replaces_datastore else None)
        except MemberNeeded as error:
            raise UserError(
                f"the model in {folder} was built by the member {error.name!r} in {error.file}. "
                f"Give --member {error.file}:{error.name}, with the path of that file"
            ) from error
    _refuse_spoiled(folder, model)
    function = function or find_member_function(model.member.name)
    with from_user(TypeError):
        changed = parse_keywords(function, tuple(keywords))
    model = (_rebuild(model, function, changed) if changed else model).to(device)
    return model if precision == "float32" else with_autocast(model, DTYPES[precision])


def with_autocast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a model with the same weights whose public methods compute under autocast.

    Computations outside of the model, such as the search in a datastore, keep their full precision.

    model: the model, which stays as it is. The result is of a subclass of its class.
    dtype: number format of its matrix products.
    """
    cls, device = type(model), next(model.parameters()).device.type
    methods = {
        name: torch.autocast(device, dtype)(method)
        for name, method in inspect.getmembers_static(cls, inspect.isfunction)
        if not name.startswith("_") and (name == "forward" or not hasattr(nn.Module, name))
    }
    low: nn.Module = object.__new__(type(cls.__name__, (cls,), methods))
    vars(low).update(vars(model))
    return low


def _refuse_spoiled(folder: Path, model: Any) -> None:
    """Refuse weights that are not finite, because every output of the model would be NaN."""
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise UserError(
                f"the weights in {folder} are damaged: {name} has values that are not finite. Use another checkpoint, "
                "or train again"
            )


def _rebuild(model: Any, function: Callable[..., Any], changed: Mapping[str, Any]) -> Any:
    """Build the member again with changed keywords and the same weights; UserError if the weights do not fit."""
    with from_user(ValueError, TypeError, LookupError), torch.random.fork_rng(devices=[]):
        keywords = {**model.member.keywords, **changed}
        check_used(function.needs, changed, keywords)  # type: ignore[attr-defined]
        other = build_changed(function.rebuild, keywords, model.member.changes)  # type: ignore[attr-defined]
    words = ", ".join(as_texts(changed))
    shapes, other_shapes = (
        {name: x.shape for name, x in candidate.state_dict().items()} for candidate in (model, other)
    )
    if shapes != other_shapes:
        raise UserError(
            f"the trained weights do not fit {words}, because these keywords change the shapes of weights. Leave them "
            "out, or train another model. Other keywords, such as the length of a memory, can be changed"
        )
    with from_user(ValueError):
        other.to(next(model.parameters()).dtype).load_state_dict(model.state_dict())
    return copy_facts(model, other).eval()


def with_datastore(model: Any, folder: Path, knn: bool, datastore: Path | None, continues: bool = False) -> Any:
    """Combine a model with the datastore that `kinformer knn-lm` tuned it with, if the user asks for it.

    model: the model.
    folder: its folder, in which `kinformer knn-lm` saved the tuned settings.
    knn: True if --knn is given.
    datastore: the new folder of the datastore, if it has moved. For a `spalm` model, which was trained with a
        datastore, it has no effect here and does not imply --knn.
    continues: True if the model continues a text that `kinformer read` saved (--state).

    Returns the combined model, or the model itself if neither --knn nor --datastore is given. Errors: UserError if the
    model cannot have a datastore, or if a saved text would be continued with a continuous cache.
    """
    if not knn and datastore is None:
        return model
    if isinstance(model, SPALM):
        if not knn:
            return model
        datastore = None
    if isinstance(model, RetrievalLM):
        raise UserError(
            f"--knn has no effect on this {display_name(model)}: a conversion gave it a datastore, which it always "
            "searches. Leave out --knn and --datastore"
        )
    if not isinstance(model, LM):
        raise UserError(
            f"--knn has no effect on this {display_name(model)}: it does not predict the next token of a text. Leave "
            "out --knn and --datastore"
        )
    with from_user(ValueError, OSError):
        combined = load_nearest(model, folder, datastore)
    if continues and isinstance(combined.model, ContinuousCache):
        raise UserError(
            "cannot combine --state with --knn: the datastore was tuned with a continuous cache, which --state does "
            "not hold. Leave out one of them"
        )
    return combined
