"""A Depth-Adaptive Transformer uses less than half of its layers and stays as accurate."""

from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.lab.calibrate.search_methods import MeasuredThresholds, random_search, score_exits
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine
from kinformer.members.depth_adaptive import depth_adaptive
from kinformer.models.multi_exit_seq2seq import MultiExitSeq2Seq

KINDS, QUESTIONS, DEPTH = 8, 8, 6  # number of values, questions per row, layers
STEPS, MORE = 200, 80  # training steps of the layers, then further ones with a classifier
MINUTES = 2  # of a default run with three seeds
ROWS, RATE = 32, 5e-3
JUDGED, DRAWS = 512, 2000
PRICE = 0.1  # cost of a layer, for each token
LEARNT = 0.95  # least accuracy of the full model; an untrained model loses nothing by exiting early
CLASSIFIERS, ORACLES = ("sequence", "multinomial", "geometric"), ("likelihood", "correctness")
SAYS = "tokens exit after less than half of the layers, hard ones later than easy ones, without a loss of accuracy"
SOURCE = "Elbayad et al., 2019, arXiv:1910.10073, abstract and section 4"


class QuestionBatch(NamedTuple):
    """Rows of easy and hard questions with answers, for the claim about early exits.

    source: input of the encoder: 1 if the row may have hard questions, else 0.
    target: tokens of questions and answers in turn; only the answers are scored.
    hard: True for each hard question.
    """

    source: Int[Tensor, "B 1"]
    target: TokenBatch
    hard: Bool[Tensor, "B Q"]


class ExitResult(NamedTuple):
    """Layers and accuracy of answers of a Depth-Adaptive Transformer, whose tokens exit early.

    easy: mean number of layers of easy answers.
    hard: mean number of layers of hard answers.
    layers: mean number of layers of all answers.
    right: share of correct answers.
    full: share of correct answers with all layers.
    """

    easy: float
    hard: float
    layers: float
    right: float
    full: float


def rows(count: int, generator: torch.Generator) -> QuestionBatch:
    """Return random rows of easy questions; two thirds of the rows have hard questions too.

    The answer to an easy question is the value in the question. The answer to a hard question is the value in the
    question before. Half of all answers are easy. A layer attends only to the token itself and the token before
    (`Band(1)`). An easy answer therefore needs one layer. A hard one needs two, unless the question before is easy:
    then the answer before repeats the value.

    count: number of rows.
    generator: source of randomness.
    """
    mixed = torch.rand(count, 1, generator=generator) < 2 / 3
    hard = mixed & (torch.rand(count, QUESTIONS, generator=generator) < 6 / 7)
    hard[:, 0] = False
    value = torch.randint(KINDS, (count, QUESTIONS), generator=generator)
    question, answer = value + KINDS * (1 + hard.long()), torch.where(hard, value.roll(1, 1), value)
    scored = torch.tensor([[False, True]]).repeat(count, QUESTIONS)
    return QuestionBatch(mixed.long(), TokenBatch(torch.stack([question, answer], -1).flatten(1), scored), hard)


def build_model(**of: Any) -> MultiExitSeq2Seq:
    """Build a small untrained Depth-Adaptive Transformer for rows of questions.

    of: further arguments of the member (named model) `depth_adaptive`.
    """
    model = depth_adaptive(
        d=32,
        depth=DEPTH,
        heads=2,
        form="encoder_decoder",
        pattern="Band(1)",
        length=2 * QUESTIONS + 1,
        vocab=3 * KINDS,
        **of,
    )
    assert isinstance(model, MultiExitSeq2Seq)
    return model


def train(model: MultiExitSeq2Seq, steps: int, seed: int) -> MultiExitSeq2Seq:
    """Train a model on random rows of questions and return it in eval mode.

    The learning rate rises for 30 steps and falls to 0 at the end.

    model: model to train.
    steps: number of training steps.
    seed: seed of the rows.
    """
    optimiser, generator = torch.optim.Adam(model.parameters(), RATE), torch.Generator().manual_seed(seed)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 30) * (1 - step / steps)
        batch = rows(ROWS, generator)
        optimiser.zero_grad()
        model((batch.source, batch.target)).total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


def copy_with_classifier(model: MultiExitSeq2Seq, seed: int, **of: Any) -> MultiExitSeq2Seq:
    """Return a copy of a model with an untrained classifier, which is to decide where tokens exit.

    model: model that supplies the other weights.
    seed: seed of the weights of the classifier.
    of: arguments of `depth_adaptive` that choose the classifier.
    """
    torch.manual_seed(seed)
    other = build_model(**of)
    other.load_state_dict({**other.state_dict(), **model.state_dict()})
    return other


@torch.no_grad()
def measure_exits(model: MultiExitSeq2Seq, batch: QuestionBatch) -> ExitResult:
    """Return the layers that tokens use until they exit, and the accuracy of the answers.

    model: model with an exit rule.
    batch: rows to answer.
    """
    read, target = model.framed_targets((batch.source, batch.target))
    out, answers = model.logits(read, source=batch.source), slice(1, -1, 2)
    layers = out.aux["exit"][:, answers]
    right = (out.y.argmax(-1) == target)[:, answers]
    easy, hard = (float(layers[mask].mean()) for mask in (~batch.hard, batch.hard))
    return ExitResult(
        easy, hard, float(layers.mean()), float(right.double().mean()), accuracy_by_exit(model, batch)[-1]
    )


@torch.no_grad()
def accuracy_by_exit(model: MultiExitSeq2Seq, batch: QuestionBatch) -> list[float]:
    """Return, for each exit (after a layer), the share of correct answers if all tokens exit there.

    model: model with exits.
    batch: rows to answer.
    """
    _, logits, target, _ = model.every_exit((batch.source, batch.target))
    return [float((scores.argmax(-1) == target)[:, 1:-1:2].double().mean()) for scores in logits]


def search_thresholds(
    model: MultiExitSeq2Seq, search_rows: QuestionBatch, batch: QuestionBatch
) -> list[MeasuredThresholds]:
    """Search exit thresholds at random on some rows, and measure each on other rows.

    Each exit has a threshold; a token exits if its largest probability reaches it. Accuracy and layers are measured.

    model: model that exits by thresholds.
    search_rows: rows for the search.
    batch: rows for the measurement.
    """
    candidates = random_search(
        score_exits(model, [(search_rows.source, search_rows.target)], right=True).measure, DEPTH, draws=DRAWS
    )
    judged = []
    for candidate in candidates:
        model.exits.rule.leave_at(candidate.threshold)
        result = measure_exits(model, batch)
        judged.append(MeasuredThresholds(candidate.threshold, result.right, result.layers))
    return judged


def claim(seeds: Sequence[int], steps: int = STEPS, classifier_steps: int = MORE) -> Claim:
    """Train a model per seed with classifiers that decide where tokens exit; measure layers and accuracy.

    All layers are trained first. Then training continues with each of three classifiers. A classifier learns from an
    oracle, which tells the exit to choose for each training token by its likelihood or its correctness. The classifiers
    with the likelihood oracle decide the verdict. The claim holds if each of them meets four conditions. Answers take
    at most half of the layers. At most 0.01 of the answers are lost compared with the full model. The full model
    answers at least 0.95 correctly. Hard answers take more layers than easy ones. The classifier for whole sequences is
    exempt from the last condition, because all tokens of a row exit together.

    The correctness oracle is reported for comparison. So are thresholds on the largest probability, which are found by
    a search and need no training.

    seeds: seeds of the trainings.
    steps: number of training steps of the layers.
    classifier_steps: number of further training steps with each classifier.
    """
    results: dict[str, list[ExitResult]] = {}
    curves, levels = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(10_000 + seed)
        first, second = rows(JUDGED, generator), rows(JUDGED, generator)
        torch.manual_seed(seed)
        plain = train(build_model(classifier="probability"), steps, seed)
        levels.append(accuracy_by_exit(plain, second))
        for classifier in CLASSIFIERS:
            price = PRICE * (2 * QUESTIONS if classifier == "sequence" else 1)  # the oracle sums the merits of a row
            for oracle in ORACLES:
                model = copy_with_classifier(plain, seed, classifier=classifier, oracle=oracle, price=price)
                result = measure_exits(train(model, classifier_steps, 20_000 + seed), second)
                results.setdefault(f"{classifier}, {oracle}", []).append(result)
        curves.append(search_thresholds(plain, first, second))
    measures = [measure for name in CLASSIFIERS for measure in _measures(name, results[f"{name}, likelihood"])]
    facts = {name: _summary(result) for name, result in results.items()}
    facts["accuracy if all tokens exit at exit 1, 2, .."] = ", ".join(
        f"{mean(measure):.3f}" for measure in zip(*levels, strict=True)
    )
    return Claim(SAYS, SOURCE, tuple(measures), facts, _plots(results, curves, levels))


def _plots(
    results: dict[str, list[ExitResult]], curves: list[list[MeasuredThresholds]], levels: list[list[float]]
) -> list[Plot]:
    lines = []
    for level, curve in zip(levels, curves, strict=True):
        lines.append(PlotLine(range(1, DEPTH + 1), level, "all tokens at one exit", ".--", "tab:gray"))
        layers, right = [point.layers for point in curve], [point.quality for point in curve]
        lines.append(PlotLine(layers, right, "probability, searched thresholds", ".-", "tab:red"))
    for n, (name, runs) in enumerate(results.items()):
        layers, right = [run.layers for run in runs], [run.right for run in runs]
        lines.append(PlotLine(layers, right, name, "o^"[n % 2], f"C{n // 2}", 0.7))
    curve_plot = Plot(
        "accuracy by layers",
        f"mean layers per token, of {DEPTH}",
        "share of correct answers",
        lines,
        xlim=(0.9, DEPTH + 0.1),
        ylim=(None, 1.02),
    )
    bar_plot = Plot(
        "layers by question",
        "",
        "layers",
        samples={
            kind: [[getattr(run, kind) for run in runs] for runs in results.values()] for kind in ("easy", "hard")
        },
        categories=list(results),
        bars=True,
        ylim=(0, DEPTH),
    )
    return [curve_plot, bar_plot]


def _measures(name: str, runs: list[ExitResult]) -> list[Measure]:
    share = [run.layers / DEPTH for run in runs]
    losses = [run.full - run.right for run in runs]
    measures = [
        Measure(f"{name}: share of the layers that a token uses", share, "most", 0.5),
        Measure(f"{name}: accuracy of the full model minus accuracy with exits", losses, "most", 0.01),
        Measure(f"{name}: accuracy of the full model", [run.full for run in runs], "least", LEARNT, 1 / KINDS),
    ]
    if name == "sequence":  # all tokens of a row exit together
        return measures
    later = [run.hard - run.easy for run in runs]
    return [*measures, Measure(f"{name}: additional layers of hard answers", later, "least", 0.0)]


def _summary(runs: list[ExitResult]) -> str:
    easy, hard, layers, right, full = (mean(values) for values in zip(*runs, strict=True))
    return (
        f"{layers:.2f} of {DEPTH} layers (easy {easy:.2f}, hard {hard:.2f}); "
        f"accuracy {right:.3f}, with all layers {full:.3f}"
    )
