"""Law learns, a learnability probe: a member learns to copy tokens from as far back as it reads.

A member is a named model. It must not learn to copy from further back, nor if a pattern in `ctx.only` lets each token
attend only to itself.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.discover import find_member
from kinformer.core.layer import Context
from kinformer.core.loss import CHOICES, penalties_of
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern
from kinformer.laws.support.findings import Broken, Unjudged, findings
from kinformer.laws.support.subject import EFFORT
from kinformer.nn.patterns.band import Band

SYMBOLS = 8
TINY = {"d": 32, "heads": 2, "vocab": SYMBOLS, "dropout": 0.0, "hidden": 64, "smoothing": 0.0}
SAYS = "the model learns to copy a token from as far back as it reads, and no further"
OVER = "member"
PROBE = True  # a model that trains well may need another learning rate, so `kinformer check` reports it as a note
LENGTH = 16
FURTHEST = 6
RATE = 6e-3
ROWS = 32
STEPS = 800  # 600 are too few: with other rounding, a recurrent cell reached only 0.94
PATIENCE = 2 if EFFORT > 1 else 1  # a model that must not learn gets this many times the steps of the other
EVERY = 20  # steps between two measurements
LEARNT, CUT, CHANCE = 0.95, 0.6, 1 / SYMBOLS + 0.05

# takes a model and a generator; returns logits [B T V] and targets [B T]
Task = Callable[[Any, torch.Generator], tuple[Tensor, Tensor]]


def judge(model: Any) -> Iterator[str]:
    """Train a tiny copy of a model to repeat earlier symbols; yield what it wrongly can or cannot learn.

    model: the member (a named model of the library) to test. The tiny copy has a small width and depth, and keeps the
        other keywords of the member's example.

    There are eight symbols in random order. The model must learn to repeat the symbol at a distance. It is the largest
    distance, up to 6, at which the patterns let every query attend and gradients flow. The model must not learn this if
    `ctx.only` restricts each query to its own token. This is not tested if a mechanism refuses the pattern, as linear
    attention does. The model must not learn to repeat symbols from beyond the reach of its patterns. A model with an
    encoder repeats its source instead.
    """
    if not hasattr(model, "logits"):
        raise Unjudged("the model has no logits of tokens, so it cannot copy")
    try:
        _make_tiny(model, 1)
    except ValueError as error:
        raise Unjudged(f"a tiny model of one layer is refused: {error}") from error
    if CHOICES in penalties_of(model):
        raise Unjudged("the model learns its random choices by a reward, but this law trains with cross-entropy only")
    yield from findings(_check_source if hasattr(model, "encoder") else _check_back, model)


def _check_source(example: Any) -> None:
    steps = _check_learns(_make_tiny(example, 1), _from_source(True), "a source")
    _check_cannot(_make_tiny(example, 1), _from_source(False), steps, CUT, "a source that is all padding")


def _check_back(example: Any) -> None:
    tiny = _make_tiny(example, 1)
    hearing = [
        receptive_field
        for part in tiny.modules()
        if isinstance(receptive_field := getattr(part, "receptive_field", None), Pattern)
    ]
    reaches = [pattern.reach()[0] for pattern in (*_patterns(tiny), *hearing)]
    reach = math.inf if _is_unbounded(tiny) or not reaches else max(reaches)
    depth = 1 if math.isfinite(reach) else 2
    near = _readable_distance(_make_tiny(example, depth))
    steps = _check_learns(
        _make_tiny(example, depth), _from_back(near, None), f"{near} tokens back, which every token may read"
    )
    alone = _from_back(near, Band(0))
    if _is_accepted(_make_tiny(example, depth), alone):
        _check_cannot(
            _make_tiny(example, depth),
            alone,
            PATIENCE * steps,
            CUT,
            f"{near} tokens back although each token may read only itself",
        )
    if math.isfinite(reach):
        far = int(reach) + 1
        case = f"{far} tokens back although its patterns reach {far - 1} back"
        beyond = _from_back(far, None)
        if _is_accepted(_make_tiny(example, 1), beyond):  # a model may refuse rows longer than its reach
            _check_cannot(_make_tiny(example, 1), beyond, PATIENCE * steps, CHANCE, case)


def _check_learns(model: Any, task: Task, case: str) -> int:
    accuracy, steps = _train(model, task, STEPS)
    if accuracy < LEARNT:
        raise Broken(
            f"the model does not learn to copy from {case}: accuracy {accuracy:.2f} after {steps} steps, expected at "
            f"least {LEARNT} ({ROWS} rows of {LENGTH} tokens, learning rate {RATE:g})"
        )
    return steps


def _check_cannot(model: Any, task: Task, steps: int, max_accuracy: float, case: str) -> None:
    accuracy, _ = _train(model, task, steps)
    if accuracy > max_accuracy:
        raise Broken(
            f"the model copies from {case}: accuracy {accuracy:.2f} after {steps} steps, expected at most "
            f"{max_accuracy:.2f}"
        )


def _is_accepted(model: Any, task: Task) -> bool:
    """Return True if the model accepts the task."""
    try:
        task(model, torch.Generator())
    except (ValueError, IndexError):
        return False
    return True


def _train(model: Any, task: Task, steps: int) -> tuple[float, int]:
    """Train until the task is learned or `steps` are over; return accuracy on new text and the steps made."""
    g = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    accuracy = 0.0
    for step in range(1, steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, step / 30)
        logits, targets = task(model, g)
        if not logits.requires_grad:
            raise Unjudged("its weights are frozen, so it cannot learn")
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % EVERY == 0 or step == steps:
            accuracy = _accuracy(model, task)
            if accuracy > LEARNT:
                return accuracy, step
    return accuracy, steps


def _accuracy(model: Any, task: Task) -> float:
    with torch.no_grad():
        pairs = [task(model, torch.Generator().manual_seed(1000 + n)) for n in range(4)]
    right = torch.cat([(logits.argmax(-1) == targets)[targets >= 0] for logits, targets in pairs])
    return float(right.double().mean())


def _from_back(distance: int, only: Pattern | None) -> Task:
    length = max(LENGTH, distance + LENGTH // 2)

    def task(model: Any, g: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens, targets = copy_at_distance(ROWS, length, distance, g)
        ctx = None if only is None else Context(torch.arange(length).expand(ROWS, -1), run=True, only=only)
        return model.logits(tokens, None, ctx).y, targets

    return task


def _from_source(read: bool) -> Task:
    """Return the task of writing the source again, after the token `begin`."""

    def task(model: Any, g: torch.Generator) -> tuple[Tensor, Tensor]:
        targets = random_symbols(ROWS, LENGTH // 2, g)
        tokens = torch.cat([torch.full((ROWS, 1), model.begin), targets[:, :-1]], 1)
        return model.logits(tokens, source=targets if read else torch.full_like(targets, -1)).y, targets

    return task


def copy_at_distance(
    rows: int, length: int, distance: int, generator: torch.Generator
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Return rows of random symbols, and a target for each symbol: the symbol `distance` tokens earlier.

    rows: number of rows.
    length: number of symbols of a row.
    distance: distance of the target, in tokens. The first `distance` tokens have the target -1, which is ignored.
    generator: generator of the random numbers.

    To predict the targets, a model must attend exactly at this distance. Guessing is right once in eight.
    """
    tokens = random_symbols(rows, length, generator)
    targets = torch.full_like(tokens, -1)
    targets[:, distance:] = tokens[:, : length - distance]
    return tokens, targets


def random_symbols(rows: int, length: int, generator: torch.Generator) -> Int[Tensor, "B T"]:
    """Return random symbols [B, T], as integers from 0 to 7, for the copying tasks of the law `learns`.

    rows: number of rows B.
    length: number of symbols T of a row.
    generator: generator of the random numbers.
    """
    return torch.randint(SYMBOLS, (rows, length), generator=generator)


def _make_tiny(example: Any, depth: int) -> Any:
    """Return the member with its example's keywords and tiny sizes, seeded and in train mode."""
    record = example.member
    function = find_member(f"{record.file}:{record.name}" if record.file else record.name)
    names = inspect.signature(function).parameters
    shared = {name: value for name, value in {**TINY, "depth": depth}.items() if name in names}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return function.rebuild(**{**record.keywords, **shared}).train()  # type: ignore[attr-defined]


def _patterns(model: Any) -> list[Pattern]:
    declared = [getattr(part, "pattern", None) for part in model.modules() if isinstance(part, Mechanism)]
    return [pattern for pattern in declared if isinstance(pattern, Pattern)]


def _is_unbounded(model: Any) -> bool:
    """Return True if an innermost mechanism, such as linear attention, has no pattern."""
    mechanisms = [part for part in model.modules() if isinstance(part, Mechanism)]
    inmost = [
        mechanism
        for mechanism in mechanisms
        if not any(isinstance(part, Mechanism) for part in mechanism.modules() if part is not mechanism)
    ]
    return any(not isinstance(getattr(mechanism, "pattern", None), Pattern) for mechanism in inmost)


def _readable_distance(model: Any) -> int:
    """Return the furthest distance, up to FURTHEST, at which every query of some layer can learn to read."""
    patterns = _patterns(model)
    declared = [getattr(part, "gradient_stops", None) for part in model.modules()]
    stops = [pattern for pattern in declared if isinstance(pattern, Pattern)]
    for distance in range(FURTHEST, 0, -1):
        reads = not patterns or any(bool(p.matrix(LENGTH).diagonal(-distance).all()) for p in patterns)
        if reads and not any(bool(p.matrix(LENGTH).diagonal(-distance).all()) for p in stops):
            return distance
    raise Broken(
        f"no pattern lets every token read at the same distance, from 1 to {FURTHEST} back, so the model cannot copy"
    )
