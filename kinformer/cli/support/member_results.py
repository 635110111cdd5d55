"""Results of one member of a comparison, measured from its trainings and their best checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from kinformer.checkpoint.checkpoint import load
from kinformer.checkpoint.model_files import BEST
from kinformer.cli.support.evaluation import score_model
from kinformer.cli.support.member_cost import MemberCost
from kinformer.cli.support.trials import PointResult, Trial
from kinformer.lab.compare.interval import interval
from kinformer.lab.compare.lengths import against_length
from kinformer.lab.compare.samples import MemberSample, draw_sample
from kinformer.lab.errors import from_user
from kinformer.lab.train.history import History
from kinformer.lab.train.member_fit import longest_row
from kinformer.pages.comparison_results import MemberResult

CURVES = 0.02  # time limit of the curves against length, as a fraction of the training time


def measure_member(
    trials: Sequence[Trial],
    done: Mapping[str, History],
    split: str,
    out: Path,
    points: Sequence[PointResult],
    cost: MemberCost,
) -> MemberResult:
    """Return the results of one member of a comparison, averaged over its seeds.

    trials: the trainings of the member at its best point of the grid, one for each seed. The best checkpoint of the
        first one generates the sample text.
    done: the history (all measurements) of each training, by the name of its trial.
    split: the split whose metric is reported.
    out: the folder of the comparison.
    points: the result at each point of the grid.
    cost: the measured cost of training the member.
    """
    first, history = trials[0], done[trials[0].name]
    model = _best_model(first)
    measures = [_measures(trial, done[trial.name], split) for trial in trials]
    means = {name: fmean(values[name] for values in measures) for name in measures[0]}
    sample = draw_sample(model, first.job.data, first.job.settings)
    runs = [_run(trial, done[trial.name], values, out) for trial, values in zip(trials, measures, strict=True)]
    return MemberResult(
        name=first.member,
        folder=runs[0]["folder"],
        member=model.member.name,
        keywords=model.member.keywords,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        lr=first.job.settings.recipe(model).peak,
        measures=means,
        interval=interval([next(iter(values.values())) for values in measures]),
        tokens_per_second=sum(done[values.name].tokens for values in trials)
        / sum(done[values.name].seconds for values in trials),
        ms_per_token=sample.milliseconds,
        steps=history.step,
        minutes=history.seconds / 60,
        points=runs[0]["points"],
        prompt=sample.prompt.decode("utf-8", "replace"),
        sample=sample.sample.decode("utf-8", "replace"),
        shown=_caption(model, sample),
        answer=None if sample.answer is None else sample.answer.decode("utf-8", "replace"),
        runs=runs,
        point=first.point.record,
        grid=[{"point": point.record, "mean": mean} for point, mean in points] if first.point.values else [],
        state_bytes=cost.state,
        peak_bytes=cost.process,
        lengths=_lengths(first, CURVES * history.seconds),
    )


def _lengths(trial: Trial, seconds: float) -> list[dict[str, Any]]:
    """Speed and memory against row length; empty for data with a fixed size, such as pictures."""
    if trial.job.data.longest_length(trial.job.settings.length) is None:
        return []
    return against_length(trial.choice, longest_row(trial.job.data, trial.job.settings), seconds)


def _best_model(trial: Trial) -> Any:
    return load(trial.folder / BEST, member=trial.choice.function).to(trial.job.device)


def _measures(trial: Trial, history: History, split: str) -> dict[str, float]:
    """The metrics of a training's best checkpoint: from its history for valid, measured for another split."""
    if split == "valid":
        return {history.metric.name: history.best.valid, **history.best.extras}
    settings, data = trial.job.settings, trial.job.data
    with from_user(ValueError, LookupError):
        score = score_model(_best_model(trial), data, split, settings.sample_bytes, {"length": settings.length})
    return {score.metric.name: score.value, **score.extras}


def _run(trial: Trial, history: History, measures: Mapping[str, float], out: Path) -> dict[str, Any]:
    return {
        "seed": trial.seed,
        "folder": f"{trial.folder.relative_to(out).as_posix()}/{BEST}",
        **{name.replace(" ", "_"): value for name, value in measures.items()},
        "steps": history.step,
        "minutes": history.seconds / 60,
        "tokens_per_second": history.speed,
        "points": [asdict(point) for point in history.points],
    }


def _caption(model: Any, drawn_sample: MemberSample) -> str:
    """The caption of a member's sample, in words that follow its name."""
    sample, answer = (text and text.decode("utf-8", "replace") for text in (drawn_sample.sample, drawn_sample.answer))
    if answer is not None:
        return f"answers {sample!r}; the right answer is {answer!r}"
    if model.reads == "masked":
        return f"fills in each _ in the first {len(drawn_sample.prompt)} bytes of the validation data"
    return f"continues the first {len(drawn_sample.prompt)} bytes of the validation data" if drawn_sample.prompt else ""
