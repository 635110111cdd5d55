"""The model of a folder, as commands ask for it: on a device, with other keywords where the weights allow them."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from kinformer.checkpoint.checkpoint import MemberNeeded, keywords_of, load
from kinformer.cli.errors import print_warnings
from kinformer.cli.support.training import parse_device
from kinformer.core.keyword_conditions import check_used
from kinformer.core.keywords import as_texts, parse_keywords
from kinformer.core.model import display_name
from kinformer.lab.datastore.knn_lm_settings import load_nearest
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import find_member_function
from kinformer.models.continuous_cache import ContinuousCache
from kinformer.models.lm import LM
from kinformer.models.spalm import SPALM


def load_model(
    folder: Path, member: str | None, on: str | None = None, keywords: Iterable[str] = (), datastore: Path | None = None
) -> Any:
    """The model, where it can be loaded; what `load` warns of goes to stderr, a line each.

    `keywords` like "memory=512" build its member anew, and the weights are put into that. `datastore` is where that of
    a member lies now that was trained beside one, like spalm.
    """
    device = parse_device(on)
    with from_user(ValueError, OSError), print_warnings():
        function = find_member_function(member) if member else None
        replaces_datastore = datastore is not None and keywords_of(folder).get("datastore") is not None
        try:
            model = load(folder, member=function, paths={"datastore": str(datastore)} if replaces_datastore else None)
        except MemberNeeded as error:
            raise UserError(
                f"the model in {folder} was built by {error.name!r} of {error.file}: "
                f"give --member {error.file}:{error.name}, with the path of the file"
            ) from error
    _refuse_spoiled(folder, model)
    function = function or find_member_function(model.member.name)
    with from_user(TypeError):
        changed = parse_keywords(function, tuple(keywords))
    return (_rebuild(model, function, changed) if changed else model).to(device)


def _refuse_spoiled(folder: Path, model: Any) -> None:
    """UserError for weights that are not finite: whatever is asked of them, the answer would be none."""
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise UserError(
                f"the weights in {folder} are spoiled: {name} has numbers that are not finite; give other weights, "
                "or train anew"
            )


def _rebuild(model: Any, function: Callable[..., Any], changed: Mapping[str, Any]) -> Any:
    """A model of the same member with some keywords changed, and the same weights; UserError where they do not fit."""
    with from_user(ValueError, TypeError, LookupError), torch.random.fork_rng(devices=[]):
        keywords = {**model.member.keywords, **changed}
        check_used(function.needs, changed, keywords)  # type: ignore[attr-defined]
        other = function.rebuild(**keywords)  # type: ignore[attr-defined]
    words = ", ".join(as_texts(changed))
    shapes, other_shapes = (
        {name: x.shape for name, x in candidate.state_dict().items()} for candidate in (model, other)
    )
    if shapes != other_shapes:
        raise UserError(
            f"the trained weights do not fit {words}: a keyword that changes the weights cannot be changed after "
            "training. Leave it out, or train another model; keywords that do not change the weights may be changed, "
            "like the length of a memory"
        )
    with from_user(ValueError):
        other.to(next(model.parameters()).dtype).load_state_dict(model.state_dict())
    other.trained_length, other.trained_on, other.metric = model.trained_length, model.trained_on, model.metric
    other.tokenizer, other.labels, other.columns = model.tokenizer, model.labels, model.columns
    return other.eval()


def with_datastore(model: Any, folder: Path, knn: bool, datastore: Path | None, continues: bool = False) -> Any:
    """The model beside the datastore that it was tuned on, where one of the two is asked for.

    `datastore` is where that is now; of a model that has one of its own, like spalm, it is that one's place.
    UserError where it was tuned over a cache, and goes on from a text that was `kept` without one.
    """
    if not knn and datastore is None:
        return model
    if isinstance(model, SPALM):
        if not knn:
            return model
        datastore = None
    if not isinstance(model, LM):
        raise UserError(
            f"this {display_name(model)} predicts no next token of a text, and looks nothing up; drop --knn"
        )
    with from_user(ValueError, OSError):
        combined = load_nearest(model, folder, datastore)
    if continues and isinstance(combined.model, ContinuousCache):
        raise UserError("--state holds no continuous cache, and --knn was tuned over one; drop one of them")
    return combined
