"""Evaluation of a model on data: deterministic, and without scoring any byte twice."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import monotonic
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from kinformer.core.checks import check_at_least, check_whole_number
from kinformer.core.model import ACCURACY, EvaluationSums, Metric, Model, display_name
from kinformer.lab.data.batches import device_of, to_device
from kinformer.lab.data.support.split_tokens import STRETCH, SplitTokens
from kinformer.lab.data.text import TextData
from kinformer.lab.train.budget import Budget
from kinformer.lab.train.distributed import SINGLE_PROCESS, SingleProcess
from kinformer.lab.train.reads_ahead import warn_of_measuring
from kinformer.lab.train.settings import Settings
from kinformer.models.support.sliding_reader import must_slide

BATCH = 16
LANE = STRETCH  # bytes of a lane
SHARE = 0.25  # largest part of the training's time for measuring; a training of two minutes still gets some points
TRIED = 4096  # bytes to time an evaluation with
BYTES = "scored bytes"  # a key of the sums


@dataclass(frozen=True)
class Measurement:
    """Result of an evaluation: the value of a model's metric, and further metrics.

    value: value of the metric.
    count: number of items, such as tokens, whose mean is the value.
    metric: the metric.
    extras: further metrics by name.
    bytes_per_token: for text, the mean number of bytes of a scored token.
    """

    value: float
    count: int
    metric: Metric
    extras: Mapping[str, float] = field(default_factory=dict)
    bytes_per_token: float = 1.0


class ScoredRows(NamedTuple):
    """Metric of a few rows that were scored in one call, and the bytes of their scored tokens.

    judged: the sums of the metric over these rows.
    bytes: bytes of the scored tokens; None if each token is a byte.
    """

    judged: EvaluationSums
    bytes: int | None = None


def evaluate(
    model: Model,
    text: Shaped[Tensor, " N"] | SplitTokens,
    length: int,
    limit: int | None = None,
    *,
    stride: int | None = None,
    lanes: int | None = None,
    full: bool = False,
    on_progress: Callable[[int], None] = lambda count: None,
    group: SingleProcess = SINGLE_PROCESS,
    probe: bool = True,
) -> Measurement:
    """Return the metric of a model on a text, in eval mode.

    A model that predicts the next token scores every byte exactly once, except for the first byte, which has no
    context.

    A model that trains on lanes (parallel pieces of one text) reads up to 16 lanes side by side, `length` tokens at a
    time. It carries its state along each lane. Any other model reads windows of `length` tokens that overlap by half a
    window, and scores the new half. Every byte after the first window has at least half a window of context. If the
    model has fewer learned positions than `length`, the windows are shorter, and a warning says so.

    A model that does not predict the next token, such as a masked model, reads windows that do not overlap. Compare its
    score only with the scores of such models.

    model: the model to evaluate.
    text: tokens, or a `SplitTokens`. Each of its documents is read separately, and all its tokens but the first are
        scored. Bits are reported per byte: the bits of the scored tokens divided by their bytes.
    length: tokens per window, or per piece of a lane.
    limit: number of bytes to score; all of the text by default. The bytes are spread over the text, in stretches or
        documents (`SplitTokens.spread`). With `lanes` they are the first bytes.
    stride: read windows, each `stride` tokens after the previous one. Every byte after the first window has at
        least `length - stride` tokens of context.
    lanes: number of lanes to read side by side; 1 reads the text in one piece.
    full: for windows, leave out the bytes of the first window with less than `length - stride` tokens of context. With
        a stride of 1 only the last position of each whole window is scored.
    on_progress: called from time to time with the number of scored predictions.
    group: the processes that share the rows.
    probe: warn if outputs of the model depend on later tokens in rows of this length (`lab/train/reads_ahead.py`),
        because its score would be too good. A training passes False for its own model, which it has already tested.

    Errors: ValueError if there are fewer than two bytes, if no byte is scored, or if the windows or lanes are
    impossible.
    """
    for name, number in {"length": length, "limit": limit, "stride": stride, "lanes": lanes}.items():
        if number is not None:
            check_whole_number(name, number)
    check_at_least("length", length, 1)
    if limit is not None:
        check_at_least("limit", limit, 1)
    part = (
        SplitTokens.from_tokens(text).spread(limit, length)
        if lanes is None
        else SplitTokens.from_tokens(text).first_bytes(limit)
    )
    last = int(part.sizes.max()) - 1
    if last < 1:
        raise ValueError(
            f"the text to evaluate on is too short: got {len(part.tokens)} {part.unit}, expected at least 2"
        )
    carries = lanes is not None or (model.lanes and stride is None)
    _refuse_reading(model, part, length, stride, lanes)
    if full and (carries or not model.predicts_next):
        raise ValueError(
            "full needs windows that overlap, but this model reads lanes or windows side by side; leave out full"
        )
    if not carries and must_slide(model, min(length, last)):
        length = cast(int, model.window)
        stride = None if stride is None else min(stride, length)
    if probe:
        warn_of_measuring(model, min(length, last))
    if carries:
        rows = _in_lanes(model, part, length, lanes, group)
    elif model.predicts_next:
        rows = _windows(model, part, length, stride, full, group)
    else:
        rows = _side_by_side(model, part, length, group)
    score = _sum_scores(model, rows, on_progress, group)
    if not score.count and full:
        raise ValueError(
            f"the text to evaluate on is too short: none of its documents has a token after a whole window of {length}"
        )
    if not score.count:
        raise ValueError(
            f"the text to evaluate on is too short: none of its {len(part.tokens)} {part.unit} was masked; "
            "give more text"
        )
    if score.metric.unit != "bits":
        return score
    if not score.bytes_per_token:
        raise ValueError(
            f"cannot compute bits per byte: the {score.count:,} scored tokens have no bytes. Use another tokenizer"
        )
    return replace(score, value=score.value / score.bytes_per_token)


def _refuse_reading(model: Model, part: SplitTokens, length: int, stride: int | None, lanes: int | None) -> None:
    """Raise ValueError if the model cannot read the text in such windows or lanes."""
    if stride is None and lanes is None:
        return
    if not model.predicts_next:
        raise ValueError("stride and lanes need a model that predicts the next token; leave out stride and lanes")
    if stride is not None and lanes is not None:
        raise ValueError("got both a stride, for windows, and lanes; give one of stride and lanes")
    if lanes is not None and part.begins is not None:
        raise ValueError("lanes need a text of one piece, and this text has separate documents; leave out lanes")
    last = len(part.tokens) - 1
    if stride is not None and not 1 <= stride <= length:
        raise ValueError(f"wrong stride for windows of {length}: got {stride}, expected 1 to {length}")
    if lanes is not None and not 1 <= lanes <= last:
        raise ValueError(f"wrong number of lanes: got {lanes}, expected 1 to {last:,}, the number of tokens to predict")
    if lanes is not None and model.window is not None and -(-last // lanes) > model.window:
        raise ValueError(
            f"a lane (a parallel piece of the text) has {-(-last // lanes):,} tokens, but this model has only "
            f"{model.window:,} learned positions; give a stride instead of lanes"
        )


def settle_measuring(
    models: Sequence[Model], text: TextData, budget: Budget, settings: Settings, group: SingleProcess = SINGLE_PROCESS
) -> Settings:
    """Return settings with a fixed number of measurements and of validation bytes in each measurement.

    They are the same for all models and processes. The bytes depend only on data, length and settings. The measurements
    take at most about a quarter of the training's time; there is at least one.

    models: the models that are compared.
    text: the data.
    budget: length of the training.
    settings: returned as they are if `valid_bytes` is given.
    group: the processes that share the training.
    """
    if settings.valid_bytes is not None:
        return settings

    def speed() -> float:
        return -group.reduce_max(-min(_speed(model, text, settings.length) for model in models))

    allowed = SHARE * budget.bytes_measured(settings.batch * settings.length, speed)
    size = min(settings.sample_bytes, text.part("valid").bytes)
    measures = min(max(int(allowed / max(size, 1)), 1), settings.measures)
    return replace(settings, valid_bytes=settings.sample_bytes, measures=measures)


def _speed(model: Model, text: TextData, length: int) -> float:
    """Return the bytes evaluated per second, timed at the second evaluation."""
    began = 0.0
    for _ in range(2):
        began = monotonic()
        trial = evaluate(model, text.part("valid"), length, TRIED, probe=False)
    return trial.count * trial.bytes_per_token / max(monotonic() - began, 1e-9)


def evaluate_batches(
    model: Model, batches: Iterable[Any], group: SingleProcess = SINGLE_PROCESS, main: Metric | None = None
) -> Measurement:
    """Return the metric of a model over batches, in eval mode.

    model: the model to evaluate.
    batches: batches of the model's kind.
    group: the processes that share the rows.
    main: the metric to return, if the model reports it; by default the first one that it reports.

    Errors: ValueError if every target is padding.
    """
    mine = (part for part in map(group.part, batches) if part is not None)
    score = _sum_scores(
        model, (ScoredRows(model.judge(to_device(device_of(model), batch))) for batch in mine), group=group, main=main
    )
    if not score.count:
        raise ValueError("cannot evaluate the model: every target in the batches is padding. Give other batches")
    return score


def _sum_scores(
    model: Model,
    judgements: Iterable[ScoredRows],
    on_progress: Callable[[int], None] = lambda count: None,
    group: SingleProcess = SINGLE_PROCESS,
    main: Metric | None = None,
) -> Measurement:
    """Sum the judged rows; they are computed lazily, in eval mode."""
    training, sums = model.training, dict[str, tuple[float, int]]()
    model.eval()
    try:
        with torch.inference_mode():
            for judged, size in judgements:
                for name, (part, size_of_part) in judged.totals.items():
                    value, count = sums.get(name, (0.0, 0))
                    sums[name] = value + float(part), count + int(size_of_part)
                on_progress(next(iter(sums.values()))[1])
                size = _count(judged) if size is None else size
                sums[BYTES] = 0.0, sums.get(BYTES, (0.0, 0))[1] + size
    finally:
        model.train(training)
    sums = group.sum(sums)
    _, size = sums.pop(BYTES, (0.0, 0))
    means = {name: value / max(count, 1) for name, (value, count) in sums.items()}
    first = main.name if main is not None and main.name in sums else next(iter(sums), model.metric.name)
    # the first sum depends on the data, which may differ from the training data
    metrics = (model.metric, getattr(type(model), "metric", model.metric), ACCURACY)
    metric = next((candidate for candidate in metrics if candidate.name == first), model.metric)
    count = sums[first][1] if sums else 0
    return Measurement(means.pop(first, 0.0), count, metric, means, size / max(count, 1))


def _count(judged: EvaluationSums) -> int:
    """Return the number of items in the mean of the metric."""
    return int(next(iter(judged.totals.values()), (0, 0))[1])


def _judge_pieces(model: Model, part: SplitTokens, places: Sequence[tuple[int, int]], state: Any = None) -> ScoredRows:
    """Score the model on pieces of a text, from a state if one is given."""
    rows = rows_of(model, part, places)
    judged = model.judge(rows, state)
    if part.widths is None:
        return ScoredRows(judged)
    scored = judged.scored
    if scored is None and model.predicts_next:
        scored = F.pad(rows[:, 1:] >= 0, (1, 0))
    if scored is None or int(scored.sum()) != _count(judged):
        marked = "no mask" if scored is None else f"a mask that marks {int(scored.sum()):,}"
        raise ValueError(
            f"cannot compute bits per byte: {display_name(model)}.judge scored {_count(judged):,} tokens, but returned "
            f"{marked}. Return EvaluationSums(..., scored=mask), with True at each scored token"
        )
    widths = pad_sequence([part.widths[first:end].long() for first, end in places], batch_first=True)
    return ScoredRows(judged, int(widths[scored.cpu()].sum()))


def rows_of(model: Model, part: SplitTokens, places: Sequence[tuple[int, int]]) -> Int[Tensor, "B _"]:
    """Return the tokens of each piece of a text as a row, padded with -1 on the right.

    model: the model, for its device.
    part: the text, with its documents.
    places: first position and end of each piece, end excluded.
    """
    rows = [part.tokens[first:end].long() for first, end in places]
    return pad_sequence(rows, batch_first=True, padding_value=-1).to(device_of(model))


def _documents(part: SplitTokens) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each document that has a token to predict."""
    firsts = part.document_starts.tolist()
    return ((first, end) for first, end in pairwise([*firsts, len(part.tokens)]) if end - first > 1)


def _in_lanes(
    model: Model, part: SplitTokens, length: int, lanes: int | None, group: SingleProcess
) -> Iterator[ScoredRows]:
    """Yield the scores of a text that is read in lanes, with a state that is carried along each lane."""
    last = len(part.tokens) - 1
    lane = -(-last // (lanes or min(BATCH, -(-last // LANE))))
    # neighbours share one token at their border; the last lane of a document may be shorter
    pieces = [
        (begin, min(begin + lane + 1, end)) for first, end in _documents(part) for begin in range(first, end - 1, lane)
    ]
    pieces.sort(key=lambda piece: piece[0] - piece[1])
    for lot in _own_batches(pieces, lanes or BATCH, group):
        longest = lot[0][1] - lot[0][0] - 1
        state = model.start(len(lot), longest)
        for at in range(0, longest, length):
            chunk = [(min(first + at, end), min(first + at + length + 1, end)) for first, end in lot]
            piece = _judge_pieces(model, part, chunk, state)
            state = piece.judged.state
            yield piece


def _windows(
    model: Model, part: SplitTokens, length: int, stride: int | None, full: bool, group: SingleProcess
) -> Iterator[ScoredRows]:
    """Yield the scores of a text that is read in overlapping windows; each window scores its new tokens."""
    stride = min(stride or max(length // 2, 1), length)
    groups: dict[int, list[tuple[int, int]]] = {}  # windows by the number of predictions that are already scored
    for begin, end in _documents(part):
        last, width = end - 1, min(length, end - 1 - begin)
        ends = [begin + width, *range(begin + width + stride, last, stride), *([last] if last > begin + width else [])]
        if not full:
            groups.setdefault(0, []).append((begin, ends[0] + 1))
        elif width == length:
            groups.setdefault(length - stride, []).append((begin, ends[0] + 1))
        for before, at in pairwise(ends):
            groups.setdefault(width - (at - before), []).append((at - width, at + 1))
    for read_before, windows in groups.items():
        windows.sort(key=lambda window: window[0] - window[1])
        for lot in _own_batches(windows, BATCH, group):
            if not read_before:
                yield _judge_pieces(model, part, lot)
                continue
            before = rows_of(model, part, [(first, first + read_before + 1) for first, _ in lot])
            state = model.judge(before, model.start(len(lot), lot[0][1] - lot[0][0] - 1)).state
            yield _judge_pieces(model, part, [(first + read_before, end) for first, end in lot], state)


def _side_by_side(model: Model, part: SplitTokens, length: int, group: SingleProcess) -> Iterator[ScoredRows]:
    """Yield the scores of masked tokens in windows that do not overlap."""
    windows = [
        (first, min(first + length, end))
        for begin, end in pairwise([*part.document_starts.tolist(), len(part.tokens)])
        for first in range(begin, end, length)
    ]
    windows.sort(key=lambda window: window[0] - window[1])
    for lot in _own_batches(windows, BATCH, group):
        # the masked tokens depend only on the row itself, so padding changes nothing
        yield _judge_pieces(model, part, lot)


def _own_batches(
    pieces: Sequence[tuple[int, int]], count: int, group: SingleProcess
) -> Iterator[Sequence[tuple[int, int]]]:
    """Yield the pieces of this process in each batch of `count` pieces, if there are any."""
    lots = (pieces[first : first + count] for first in range(0, len(pieces), count))
    return (mine for lot in lots if (mine := lot[group.measured_rows(len(lot))]))
