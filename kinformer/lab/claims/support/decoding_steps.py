"""Cost of a decoding step, counted without a clock, by the number of tokens before it."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kinformer.core.model import Writer
from kinformer.core.state import leaves
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Measure
from kinformer.lab.plot import Plot, PlotLine, seed_mean, slope

FLAT = 0.01  # exponent 0: the cost is constant; exponent 1: the cost grows with the row
EQUAL = 1e-10  # largest difference of logits in float64


class StepCosts(NamedTuple):
    """Costs of a decoding step of several models.

    lengths: numbers of tokens before the step.
    work: for each model and seed, the numbers that operators read and write in the step, per length.
    state_bytes: for each model and seed, the bytes of the decoding state, per length.
    errors: for each model and seed, the largest difference of logits token by token and for a whole row.
    """

    lengths: Sequence[int]
    work: dict[str, list[list[int]]]
    state_bytes: dict[str, list[list[int]]]
    errors: dict[str, list[float]]


class Touched(TorchDispatchMode):
    """Context that counts the numbers in all inputs and outputs of PyTorch operators.

    The count measures the work of a call without a clock."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        values = (*args, *(out if isinstance(out, tuple | list) else (out,)))
        self.numbers += sum(value.numel() for value in values if isinstance(value, Tensor))
        return out


@torch.no_grad()
def step(model: Writer, rows: Tensor) -> tuple[int, int]:
    """Return the work of the decoding step after some tokens, and the size of the decoding state.

    The work is the count of numbers that operators read and write in the step. The size is in bytes.

    model: decoder.
    rows: tokens before the step.
    """
    model.eval()
    state = model.logits(rows, model.start(len(rows), rows.shape[1] + 1), last=True).state
    state_bytes = sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(state))
    token = rows[:, -1:].clone()
    with Touched() as touched:
        model.logits(token, state, last=True)
    return touched.numbers, state_bytes


@torch.no_grad()
def stepwise_error(model: Writer, rows: Tensor) -> float:
    """Return the largest difference of a decoder's logits, token by token and for the whole rows at once.

    Both are computed in float64.

    model: decoder; it is converted to float64.
    rows: tokens to read.
    """
    model.double().eval()
    state, steps = model.start(len(rows), rows.shape[1]), []
    for token in rows.split(1, 1):
        out = model.logits(token, state)
        state = out.state
        steps.append(out.y)
    return float((torch.cat(steps, 1) - model.logits(rows).y).abs().max())


def measure_steps(
    makes: Mapping[str, Callable[[], Writer]], seeds: Sequence[int], lengths: Sequence[int], vocab: int, batch: int = 1
) -> StepCosts:
    """Measure a decoding step of models with random weights, after random rows of several lengths.

    Logits token by token are compared on the rows of the second length.

    makes: functions that build the models, by name.
    seeds: seeds of weights and rows.
    lengths: numbers of tokens before the step.
    vocab: vocabulary size of the models.
    batch: rows that are decoded at once.
    """
    costs = StepCosts(lengths, {name: [] for name in makes}, {name: [] for name in makes}, {name: [] for name in makes})
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        rows = [torch.randint(vocab, (batch, length), generator=generator) for length in lengths]
        for name, make in makes.items():
            with seeded(seed):
                model = make()
            numbers, sizes = zip(*(step(model, tokens) for tokens in rows), strict=True)
            costs.work[name].append(list(numbers))
            costs.state_bytes[name].append(list(sizes))
            costs.errors[name].append(stepwise_error(model, rows[min(1, len(rows) - 1)]))
    return costs


def flat_measures(costs: StepCosts, name: str) -> tuple[Measure, ...]:
    """Return the measures that decide whether a model's step is constant and agrees with the whole row.

    costs: the measured costs.
    name: name of the model.
    """
    counts = {"a step's work": costs.work[name], "the state's bytes": costs.state_bytes[name]}
    exponents = (
        Measure(
            f"growth exponent of {quantity} in the number of earlier tokens",
            [slope(costs.lengths, of_seed) for of_seed in by_seed],
            "near",
            0.0,
            within=FLAT,
        )
        for quantity, by_seed in counts.items()
    )
    return (*exponents, stepwise_measure(costs, name))


def stepwise_measure(costs: StepCosts, name: str) -> Measure:
    """Return the measure that decides whether steps give the logits of the whole row.

    costs: the measured costs.
    name: name of the model.
    """
    quantity = "largest difference of logits, token by token against the whole row, float64"
    return Measure(quantity, costs.errors[name], "most", EQUAL)


def step_facts(costs: StepCosts) -> dict[str, str]:
    """Return the mean costs over the seeds as texts.

    costs: the measured costs.
    """
    return {
        f"{unit} of a step after {', '.join(map(str, costs.lengths))} tokens, {name}": ", ".join(
            f"{mean(column):,.0f}" for column in zip(*counts, strict=True)
        )
        for unit, by_name in (("numbers touched", costs.work), ("bytes of state", costs.state_bytes))
        for name, counts in by_name.items()
    }


def step_plot(costs: StepCosts) -> Plot:
    """Return the plot of a step's work by the number of tokens before it.

    costs: the measured costs.
    """
    means = {name: seed_mean(numbers) for name, numbers in costs.work.items()}
    lines = [PlotLine(costs.lengths, y, f"{name}, grows {y[-1] / y[0]:.2f} times", "o-") for name, y in means.items()]
    return Plot(
        "numbers that a decoding step touches",
        "tokens before the step",
        "numbers",
        lines,
        log="x",
        ticks=costs.lengths,
        ylim=(0, None),
    )
