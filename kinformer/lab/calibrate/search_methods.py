"""Three searches for exit thresholds of each layer: at random, on a grid, or one layer at a time."""

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
GRID = 100_000  # most vectors of a grid
AT_ONCE = 1 << 22  # vectors times tokens that are measured at a time
Vectors = Float[Tensor, "R L"]  # a row has a threshold for each layer except the last
Measure = Callable[[Vectors], tuple[Float[Tensor, " R"], Float[Tensor, " R"]]]  # quality and mean layers of each vector


class MeasuredThresholds(NamedTuple):
    """A vector of exit thresholds, one for each layer except the last, with its measured quality and cost.

    threshold: the thresholds.
    quality: the mean quality of the predictions; larger is better.
    layers: the cost: the mean number of layers per token.
    """

    threshold: tuple[float, ...]
    quality: float
    layers: float


class ExitScores(NamedTuple):
    """Confidence and quality of each token at each exit layer, computed while no token exits early.

    sure: confidence after each layer except the last, by the model's exit rule, [L, M] for M tokens.
    worth: quality of the prediction after each layer, [N, M] with N = L + 1 layers.
    strict: True if a token exits only with a confidence above the threshold; False if an equal one suffices.
    held_against: turns thresholds [R, 1] of a layer into a threshold for each token, [R, M]; None leaves them
        unchanged.
    """

    sure: Float[Tensor, "L M"]
    worth: Float[Tensor, "N M"]
    strict: bool
    held_against: Callable[[Tensor], Tensor] | None = None

    def measure(self, thresholds: Vectors) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
        """Return the mean quality and the mean number of layers with each vector of exit thresholds.

        The result is approximate, because here each token attends to tokens that went through all layers. Only a run
        with early exits shows the effect of earlier tokens that have exited.

        thresholds: R vectors with a threshold for each of L layers, [R, L].
        """
        size = max(1, AT_ONCE // max(1, self.worth.shape[1]))
        measures = [self._measure(piece) for piece in thresholds.to(self.sure.device).split(size)]
        return torch.cat([quality for quality, _ in measures]), torch.cat([layers for _, layers in measures])

    def _measure(self, thresholds: Vectors) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
        """Return the same as `measure` for a few vectors, measured together."""
        exits = torch.full((len(thresholds), self.worth.shape[1]), len(self.sure), device=self.worth.device)
        for n in reversed(range(len(self.sure))):
            sure, threshold = self.sure[n], thresholds[:, n, None]
            threshold = threshold if self.held_against is None else self.held_against(threshold)
            exits = exits.masked_fill(sure > threshold if self.strict else sure >= threshold, n)
        return self.worth.T.gather(1, exits.T).mean(0), 1 + exits.to(self.worth.dtype).mean(1)


def score_exits(model: Any, batches: Iterable[Any], *, right: bool = False) -> ExitScores:
    """Compute each token's confidence and quality at every exit layer of a model, in eval mode.

    model: a model with `exits`, a `MultiExit` or `MultiExitSeq2Seq`.
    batches: batches of the model's data.
    right: False measures the quality of a prediction by its negative loss in bits; True by 1 if the prediction is
        right, else 0.

    Errors: ValueError for a rule without a threshold, or if the batches have no token to predict.
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
        raise ValueError("the batches for the threshold search have no token to predict; give other batches")
    tokens = torch.cat(steps)

    def held_against(thresholds: Tensor) -> Tensor:
        numbers: Tensor = rule.held_against(thresholds, tokens, longest)
        return numbers

    return ExitScores(torch.cat(sure, 1), torch.cat(worth, 1), rule.strict, held_against)


def random_search(
    measure: Measure, depth: int, *, draws: int = DRAWS, segments: int = SEGMENTS, seed: int = 0
) -> tuple[MeasuredThresholds, ...]:
    """Try random vectors of exit thresholds from U(0, 1), and return the best in each segment of cost.

    The cost is the mean number of layers per token. A segment is a range of this cost; its best vector has the highest
    quality.

    Choose it for a threshold per layer. For one threshold shared by all layers, `learn_then_test` proves a bound on the
    expected loss; this search proves nothing. `grid_search` and `coordinate_search` use no random numbers.

    measure: returns quality and mean layers of vectors: `ExitScores.measure`, which is fast, or runs with early exits.
    depth: number of layers; a vector has a threshold for each layer except the last.
    draws: number of vectors; 10,000 in the paper.
    segments: number of segments of equal width, from 1 layer to all. A segment without vectors is left out. Among
        vectors of equal quality the one with the fewest mean layers is kept.
    seed: seed of the random numbers.

    Errors: ValueError for counts below 1, and for a model of one layer, which has no threshold.
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
    """Try all combinations of exit thresholds, and return the best vector in each segment of cost.

    The cost is the mean number of layers per token. A segment is a range of this cost; its best vector has the highest
    quality.

    Choose it for few layers: v values and L layers make v^(L - 1) vectors. `coordinate_search` is for more layers.

    measure, depth, segments: as in `random_search`.
    values: thresholds to try for each layer, such as an exit rule's `grid(11)`.

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
    """Search exit thresholds one layer at a time, and return the best vector in each segment of cost.

    The cost is the mean number of layers per token. A segment is a range of this cost; its best vector has the highest
    quality.

    The search starts with the first value for every layer. Each layer in turn gets the value with the fewest mean
    layers that keeps the quality `least`. This is repeated until no layer changes. Choose it if a grid would be too
    large: a round over L layers measures (L - 1) v vectors of v values. It may miss vectors that need a change of two
    layers at once.

    measure, values, depth, segments: as in `grid_search`; the first value must be the safest one, with which the fewest
        tokens exit early.
    least: lowest mean quality that a new value may give, such as a little less than the quality of the full model.

    Errors: ValueError for a single layer, for no values and for less than one segment.
    Source: coordinate descent; Wright, 2015, arXiv:1502.04759.
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
    """Raise ValueError if `grid_search` would try more than 100,000 vectors.

    values: number of thresholds to try for each layer.
    layers: number of layers with a threshold.
    """
    if (count := values**layers) > GRID:
        raise ValueError(
            f"a grid of {values} thresholds for each of {layers} layers is too large: got {count:,} vectors, expected "
            f"at most {GRID:,}. Give fewer thresholds, or search by coordinates"
        )


def _check_search(values: Sequence[float], segments: int) -> None:
    """Raise ValueError, before anything is measured, for no values or less than one segment."""
    if not len(values):
        raise ValueError(
            "no thresholds to try: got 0 values, expected at least 1. Pass values such as an exit rule's grid(11)"
        )
    check_at_least("segments", segments, 1)


def _measure_as_float64(measure: Measure, vectors: Vectors) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
    quality, layers = measure(vectors)
    return quality.cpu().double(), layers.cpu().double()


def _best(
    vectors: Vectors, quality: Float[Tensor, " R"], layers: Float[Tensor, " R"], depth: int, segments: int
) -> tuple[MeasuredThresholds, ...]:
    """Return the vector of best quality in each segment of cost; among equal ones the cheapest."""
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
    """Return the quality of each prediction: 1 if it is right, else 0; or its negative cost in bits."""
    if right:
        return (logits.argmax(-1) == targets).to(torch.float32)
    return -token_nll(logits, targets) / math.log(2)
