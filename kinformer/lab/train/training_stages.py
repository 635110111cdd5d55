"""Training in phases: each phase doubles the row length and attention windows and halves the rate."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from kinformer.core.bias import Bias
from kinformer.core.keyword_conditions import has_effect
from kinformer.core.keywords import signature
from kinformer.core.model import Model, display_name
from kinformer.core.training_recipe import Recipe
from kinformer.lab.train.budget import Budget, StepBudget
from kinformer.lab.train.history import History
from kinformer.lab.train.run_folder import RunFolder
from kinformer.nn.exits.confidence import Confidence
from kinformer.nn.positions.learned import Learned

MAY = ("window", "top", "length")  # keywords in which two phases may differ
WARMUP, LONGEST = 0.1, 10_000  # warm-up as a fraction of a phase, and its largest number of steps


def phase_recipe(lr: float, budget: Budget) -> Recipe:
    """Return the recipe of one training phase: a warm-up, then a constant learning rate.

    The warm-up takes a tenth of the phase, at most 10,000 steps.

    lr: the learning rate.
    budget: length of the phase.

    Source: Beltagy et al., 2020, arXiv:2004.05150, appendix B.
    """
    max_warmup = LONGEST / budget.count if isinstance(budget, StepBudget) else 1.0
    return Recipe(lr, min(WARMUP, max_warmup), "constant")


def doubled_keywords(
    member: Callable[..., Any],
    keywords: Mapping[str, Any],
    length: int,
    phase_keywords: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the keywords of a member (a named model) for the next phase, with rows of the given length.

    The attention window `window` doubles, but at most to `top`, the window of the highest layer, which stays constant.
    So no layer has a wider window than a layer above it. The table of learned positions (`length`) grows to hold the
    rows.

    member: the member function.
    keywords: its keywords in the previous phase.
    length: tokens of a row in the next phase.
    phase_keywords: keywords that the phase sets itself; they stay unchanged.

    Errors: ValueError if the phase sets a `window` wider than `top`.
    Source: Beltagy et al., 2020, arXiv:2004.05150, section 4.2 and appendix B: windows from 32 to 8,192 in the first
    phase, 512 at the bottom in the fifth.
    """
    usual = {name: parameter.default for name, parameter in signature(member).parameters.items()}
    every = {**usual, **keywords, **phase_keywords}
    window, top, table, doubled = every.get("window"), every.get("top"), every.get("length"), dict[str, Any]()
    max_window = top if isinstance(top, int) else math.inf
    if isinstance(window, int):
        if "window" in phase_keywords and window > max_window:
            raise ValueError(
                f"windows would shrink from window={window} in the lowest layer to top={top} in the highest; also give "
                f"top={window} or more"
            )
        doubled["window"] = min(2 * window, max_window)
    elif isinstance(window, tuple):
        doubled["window"] = tuple(2 * width for width in window)
    counts = has_effect("length", getattr(member, "needs", {}), every)
    if isinstance(table, int) and table < length and counts:
        doubled["length"] = length
    return {**keywords, **doubled, **phase_keywords}


def carry_weights(old: Model, new: Model, source: str = "the trained model") -> None:
    """Load the weights of a trained model into a new one with other windows or more positions.

    The trained rows of a table of learned positions are copied repeatedly, as Longformer copies RoBERTa's. Neighbours
    stay neighbours, except at the borders of copies. A new model of another kind with the same body, such as a
    classifier from bert, keeps its own output modules (`tops`). It also keeps the attention biases and exit confidences
    that may be added to a trained body (`joins`). The optimiser's state is not copied. If both models read the same
    kind of data, the new one takes the column names and scales of a time series.

    old: the trained model.
    new: the new model.
    source: name of the trained model in errors, such as its folder.

    Errors: ValueError, in one line that names the members or the differing keywords, if any other weight is missing or
    has another shape; the new model then stays unchanged.
    Source: Beltagy et al., 2020, arXiv:2004.05150, section 5; Devlin et al., 2018, arXiv:1810.04805, section 3.2.
    """
    have, want = old.state_dict(), new.state_dict()
    if type(old) is not type(new):
        have = {name: weight for name, weight in have.items() if name.partition(".")[0] not in old.tops}
        have |= {name: weight for name, weight in want.items() if name.partition(".")[0] in new.tops}
    joins = tuple(
        f"{name}." for name, part in new.named_modules() if isinstance(part, Bias | Confidence) and part.joins
    )
    have |= {name: weight for name, weight in want.items() if name not in have and name.startswith(joins)}
    for table in (f"{name}.table.weight" for name, part in new.named_modules() if isinstance(part, Learned)):
        if table in have:
            trained = min((old.trained_length or len(have[table])) + old.own, len(have[table]))
            have[table] = have[table][torch.arange(len(want[table]), device=have[table].device) % trained]
    shapes = {
        name: [str(list(weights[name].shape)) if name in weights else "missing" for weights in (have, want)]
        for name in sorted({*have, *want})
    }
    unfit = {name: pair for name, pair in shapes.items() if pair[0] != pair[1]}
    if unfit:
        reason = f"{len(unfit)} of {len(shapes)} weights do not fit, such as {_describe_first_mismatch(unfit)}"
        other = any("missing" in pair for pair in unfit.values())  # a weight is missing, not only of another size
        if display_name(old) != display_name(new) and (other or not _keyword_difference(old, new)):
            names = display_name(old), display_name(new)
            raise ValueError(
                f"{source} belongs to the member {names[0]}, not to {names[1]}, and has other layers. Give weights of "
                f"{names[1]}, or train {names[0]}"
            )
        raise ValueError(_keyword_difference(old, new) or f"{source} has other weights: {reason}")
    new.load_state_dict(have)
    if old.is_pretrained:
        new.trained_length, new.tokenizer, new.foreign_ends = old.trained_length, old.tokenizer, old.foreign_ends
    if new.reads == old.reads and old.columns is not None:
        new.columns = old.columns


def _describe_first_mismatch(unfit: Mapping[str, list[str]]) -> str:
    """Describe the first weight that does not fit, with both of its shapes."""
    name, (trained, new_shape) = next(iter(unfit.items()))
    return f"{name}: {trained} in the trained model, {new_shape} in the new one"


def _keyword_difference(old: Model, new: Model) -> str:
    """Describe the keywords in which two models of a member differ, except for MAY; "" if there are none."""
    mine, theirs = (getattr(getattr(model, "member", None), "keywords", {}) for model in (new, old))
    names = [name for name in mine if name not in MAY and mine[name] != theirs.get(name, mine[name])]
    if not names:
        return ""
    new_words, trained = (", ".join(f"{name}={keywords[name]}" for name in names) for keywords in (mine, theirs))
    return (
        f"the weights do not fit the model: got weights for {trained}, expected weights for {new_words}. Only windows "
        "and the length of learned positions may differ"
    )


def is_finished(folder: Path, budget: Budget) -> bool:
    """Return True if a training has spent this budget and left its model in the folder.

    folder: the run folder.
    budget: the budget.
    """
    run = RunFolder(folder)
    if run.step is None:
        return False
    try:
        done = History.read(folder, run.state()["metrics"])
    except (OSError, ValueError, KeyError):
        return False
    return budget.fraction_spent(done.step, done.seconds) >= 1
