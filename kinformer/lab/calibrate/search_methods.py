"""Thresholds by layer, found by random search, on a grid or layer by layer: at each cost those of best quality."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.eval_mode import evaluating
from kinformer.core.loss import token_nll

DRAWS, SEGMENTS = 10_000, 10
GRID = 100_000  # vectors of a grid at most
AT_ONCE = 1 << 22  # numbers of a piece of the drawn vectors, by all tokens
Vectors = Float[Tensor, "R L"]  # a threshold for each layer but the last, in each row
Measure = Callable[[Vectors], tuple[Float[Tensor, " R"], Float[Tensor, " R"]]]  # of each its quality, and its layers


class MeasuredThresholds(NamedTuple):
    """Thresholds of all layers but the last, what they are worth, and how many layers a token takes on average."""

    threshold: tuple[float, ...]
    quality: float
    layers: float


class ExitScores(NamedTuple):
    """How sure a rule was of tokens after each layer but the last, and what each exit's word was worth; nobody left.

    strict: a token leaves only where it is surer than the threshold.
    held_against: makes of thresholds [R 1] the numbers [R M] that each token is held against; None where they are the
        thresholds themselves.
    """

    sure: Float[Tensor, "L M"]
    worth: Float[Tensor, "N M"]
    strict: bool
    held_against: Callable[[Tensor], Tensor] | None = None

    def measure(self, thresholds: Vectors) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
        """The mean worth of the exits that such thresholds choose, and the mean number of layers.

        What a token reads of those before it is here of all layers: what it would read of those that left early, only
        a reading in which they leave can tell.
        """
        size = max(1, AT_ONCE // max(1, self.worth.shape[1]))
        measures = [self._measure(piece) for piece in thresholds.to(self.sure.device).split(size)]
        return torch.cat([quality for quality, _ in measures]), torch.cat([layers for _, layers in measures])

    def _measure(self, thresholds: Vectors) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
        exits = torch.full((len(thresholds), self.worth.shape[1]), len(self.sure), device=self.worth.device)
        for n in reversed(range(len(self.sure))):
            sure, threshold = self.sure[n], thresholds[:, n, None]
            threshold = threshold if self.held_against is None else self.held_against(threshold)
            exits = exits.masked_fill(sure > threshold if self.strict else sure >= threshold, n)
        return self.worth.T.gather(1, exits.T).mean(0), 1 + exits.to(self.worth.dtype).mean(1)


def score_exits(model: Any, batches: Iterable[Any], *, right: bool = False) -> ExitScores:
    """What a rule and the exits of a `MultiExit` or `MultiExitSeq2Seq` say of batches, in eval mode.

    A word is worth what it costs in bits, below 0; with `right` 1 where it is right, and else 0.

    Errors: ValueError for a rule without a threshold, and where nothing is to be predicted.
    """
    rule, body = model.exits.rule, model.exits
    sure, worth, steps = list[Tensor](), list[Tensor](), list[Tensor]()
    longest: int | None = None
    with evaluating(model):
        for batch in batches:
            states, logits, targets, ctx = model.every_exit(batch)
            real = targets >= 0
            each = [
                rule.compute_confidence(states[: n + 1], body.reads(n, model.head))[real]
                for n in range(len(states) - 1)
            ]
            sure.append(torch.stack(each) if each else logits[0].new_empty(0, int(real.sum())))
            worth.append(torch.stack([_token_quality(exit_logits, targets, right)[real] for exit_logits in logits]))
            steps.append(ctx.steps.expand_as(targets)[real])
            longest = ctx.max_new_tokens
    if not sum(exit_logits.shape[1] for exit_logits in worth):
        raise ValueError("the batches to search on hold no token to predict; give others")
    tokens = torch.cat(steps)

    def held_against(thresholds: Tensor) -> Tensor:
        numbers: Tensor = rule.held_against(thresholds, tokens, longest)
        return numbers

    return ExitScores(torch.cat(sure, 1), torch.cat(worth, 1), rule.strict, held_against)


def random_search(
    measure: Measure, depth: int, *, draws: int = DRAWS, segments: int = SEGMENTS, seed: int = 0
) -> tuple[MeasuredThresholds, ...]:
    """Of thresholds drawn from U(0, 1), a vector at a time, those of best quality in each segment of cost.

    Choose it for thresholds by layer; for one number for all layers Learn then Test proves what it keeps
    (`learn_then_test`), and this proves nothing. `grid_search` and `coordinate_search` leave nothing to chance.

    measure: of vectors, a threshold for each of the `depth` layers but the last, quality and mean layers:
        `ExitScores.measure`, which is quick, or readings in which tokens leave.
    draws: how many vectors; 10,000 in the paper.
    segments: of equal width, from 1 layer to all; one in which no vector fell is left out. Of equal ones in quality the
        cheapest is kept.

    Errors: ValueError for counts below 1, and for a single layer, which has no threshold.
    Source: Elbayad et al., 2019, arXiv:1910.10073, section 3.2.
    """
    check_at_least("depth", depth, 2)
    check_at_least("draws", draws, 1)
    check_at_least("segments", segments, 1)
    vectors = torch.rand(draws, depth - 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return _best(vectors, *_measure_as_float64(measure, vectors), depth, segments)


def grid_search(
    measure: Measure, values: Sequence[float], depth: int, *, segments: int = SEGMENTS
) -> tuple[MeasuredThresholds, ...]:
    """The best vectors in each segment of cost, of all that take each layer's threshold from the same values.

    Choose it for a few layers, where it leaves nothing to chance: v values and L layers make v^(L - 1) vectors.
    `coordinate_search` is for more layers.

    measure, segments: as of `random_search`.
    values: thresholds of a layer, such as a rule's `grid(11)`.

    Errors: ValueError for a single layer, for no values, for less than one segment, and for more than 100,000 vectors,
    with their number.
    """
    layers = check_at_least("depth", depth, 2) - 1
    _check_search(values, segments)
    refuse_large_grid(len(values), layers)
    vectors = torch.cartesian_prod(*[torch.tensor(values, dtype=torch.float64)] * layers).view(-1, layers)
    return _best(vectors, *_measure_as_float64(measure, vectors), depth, segments)


def coordinate_search(
    measure: Measure, values: Sequence[float], depth: int, *, least: float, segments: int = SEGMENTS
) -> tuple[MeasuredThresholds, ...]:
    """The best vectors in each segment of cost, of those that a search one layer at a time meets.

    It starts where every layer has the first value. Each layer in turn takes the value by which tokens take the fewest
    layers while the quality is at least `least`; this is repeated until no layer changes. Choose it where a grid would
    be too large: a round over L layers measures (L - 1) v vectors of v values. It may miss vectors that only a change
    of two layers at once would reach.

    measure, values, segments: as of `grid_search`; the first of the values is the most careful one.
    least: the quality that the thresholds of the last round must keep, such as a little less than the full model's.

    Errors: ValueError for a single layer, for no values and for less than one segment. Source: coordinate descent;
    Wright, 2015, arXiv:1502.04759.
    """
    layers = check_at_least("depth", depth, 2) - 1
    _check_search(values, segments)
    current, cost = [values[0]] * layers, math.inf
    vectors, measures = list[Tensor](), list[tuple[Tensor, Tensor]]()
    changed = True
    while changed:
        changed = False
        for layer in range(layers):
            tried = torch.tensor([[*current[:layer], value, *current[layer + 1 :]] for value in values]).double()
            quality, layers_used = _measure_as_float64(measure, tried)
            vectors.append(tried)
            measures.append((quality, layers_used))
            cheapest = int(layers_used.masked_fill(quality < least, math.inf).argmin())
            if quality[cheapest] >= least and float(layers_used[cheapest]) < cost:
                current, cost, changed = tried[cheapest].tolist(), float(layers_used[cheapest]), True
    qualities, costs = (torch.cat(column) for column in zip(*measures, strict=True))
    return _best(torch.cat(vectors), qualities, costs, depth, segments)


def refuse_large_grid(values: int, layers: int) -> None:
    """ValueError for more than 100,000 vectors of so many values for each of these layers."""
    if (count := values**layers) > GRID:
        raise ValueError(
            f"a grid of {values} thresholds for each of {layers} layers has {count:,} vectors, and at most {GRID:,} "
            "are tried; give fewer thresholds, or search by coordinates"
        )


def _check_search(values: Sequence[float], segments: int) -> None:
    """ValueError, before anything is measured, for no values and for less than one segment."""
    if not len(values):
        raise ValueError(
            "no thresholds to try: got 0 values, expected at least 1. Pass values such as a rule's grid(11)"
        )
    check_at_least("segments", segments, 1)


def _measure_as_float64(measure: Measure, vectors: Vectors) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
    quality, layers = measure(vectors)
    return quality.cpu().double(), layers.cpu().double()


def _best(
    vectors: Vectors, quality: Float[Tensor, " R"], layers: Float[Tensor, " R"], depth: int, segments: int
) -> tuple[MeasuredThresholds, ...]:
    """In each segment of cost the vector of best quality, of equal ones the cheapest."""
    place = ((layers - 1) / (depth - 1) * segments).long().clamp_max(segments - 1)
    best_of_segment = []
    for segment in place.unique().tolist():
        inside = (place == segment).nonzero()[:, 0].tolist()
        best = min(inside, key=lambda n: (-float(quality[n]), float(layers[n])))
        best_of_segment.append(
            MeasuredThresholds(tuple(vectors[best].tolist()), float(quality[best]), float(layers[best]))
        )
    return tuple(best_of_segment)


def _token_quality(logits: Tensor, targets: Tensor, right: bool) -> Tensor:
    """Of each token's word: 1 where it is right, or what it costs in bits, below 0."""
    if right:
        return (logits.argmax(-1) == targets).to(torch.float32)
    return -token_nll(logits, targets) / math.log(2)
