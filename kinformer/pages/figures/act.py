"""The figure `act`: the computation graph of an RNN with ACT, and the halting of each token."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from kinformer import Halting
from kinformer.pages.eight_tokens import TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

MOST, BAR = 4, 80  # most steps of a token; columns of a bar of weight 1
UNIT = (2.0, 0.0, -1.0)  # weights and bias of the halting unit


class Halted(NamedTuple):
    """The halting of one token.

    weights: the weight of each of its steps.
    steps: its number of steps N.
    remainder: R, the weight of its last step.
    """

    weights: list[float]
    steps: int
    remainder: float


def draw() -> Iterator[Diagram]:
    """Yield the graph of the steps of two tokens, and the weights of all steps of the eight tokens."""
    yield _graph()
    yield _bars()


def halting_of_tokens() -> list[Halted]:
    """Return the halting of the eight tokens, whose states are the same in every step."""
    halting, states = Halting(2), token_vectors()
    halting.unit.weight.data = torch.tensor([UNIT[:2]])
    halting.unit.bias.data = torch.tensor([UNIT[2]])
    halt, weights = halting.start(torch.ones(len(TOKENS), dtype=torch.bool), states), []
    with torch.no_grad():
        for step in range(MOST):
            weight, halt = halting(states, halt, step == MOST - 1)
            weights.append(weight)
    table = torch.stack(weights, 1).tolist()
    counts, remainders = halt.steps.int().tolist(), halt.remainder.tolist()
    return [Halted(*parts) for parts in zip(table, counts, remainders, strict=True)]


def _graph() -> Diagram:
    diagram = Diagram(
        "two tokens in a recurrent network with ACT: the first takes 2 steps, the second 3",
        kinds=("input with its flag", "state of a step", "halting probability", "weighted mean"),
        note="The flag is 1 in the first step of a token. Step N of a token has the weight R, so its weights add up "
        "to 1. The mean of the states gives the output, and is the state before the next token.",
    )
    x, middle = 0, {"y": 0, "p": 4, "h": 8, "s": 12, "x": 18}
    diagram.words(x, middle["s"] + 1, "s(0)")
    before = x + 4
    for t, steps in ((1, 2), (2, 3)):
        first, mean = before + 3, before + 3 + 14 * steps
        for n in range(1, steps + 1):
            left = first + 14 * (n - 1)
            diagram.box(left, middle["x"], 9, 3, f"x({t}), {int(n == 1)}", 1)
            diagram.arrow((left + 4, middle["x"]), (left + 4, middle["s"] + 3))
            diagram.arrow((before, middle["s"] + 1), (left - 1, middle["s"] + 1))
            diagram.box(left, middle["s"], 9, 3, f"s({t}, {n})", 2)
            diagram.arrow((left + 4, middle["s"]), (left + 4, middle["h"] + 3))
            diagram.box(left, middle["h"], 9, 3, f"h({t}, {n})", 3)
            diagram.arrow((left + 4, middle["h"]), (left + 4, middle["p"] + 2))
            weight = f"p = h({t}, {n})" if n < steps else f"p = R({t})"
            diagram.words(left, middle["p"] + 1, weight)
            diagram.line((left + 4, middle["p"]), (left + 4, 1))
            before = left + 9
        diagram.arrow((first + 4, 1), (mean - 2, 1))
        diagram.box(mean - 1, 0, 9, 3, f"mean {t}", 4)
        diagram.line((mean + 3, 2), (mean + 3, middle["s"] + 1))
        before = mean + 3
    diagram.arrow((before, middle["s"] + 1), (before + 5, middle["s"] + 1))
    return diagram


def _bars() -> Diagram:
    w, _, b = UNIT
    diagram = Diagram(
        f"weights of the steps of each token, with h = sigmoid({w:g} s_1 - {-b:g}) and at most {MOST} steps",
        kinds=tuple(f"step {n}" for n in range(1, MOST + 1)),
        note="Each bar has the length 1. N is the number of steps, R the weight of the last one.",
    )
    for row, (token, halted) in enumerate(zip(TOKENS, halting_of_tokens(), strict=True)):
        y, right = 3 * row, 6
        diagram.words(0, y + 1, f"{row} {token}")
        for n in range(halted.steps):
            end = 6 + round(BAR * sum(halted.weights[: n + 1]))
            text = f"{halted.weights[n]:.2f}"
            diagram.box(right, y, end - right, 3, text if end - right > 5 else "", n + 1)
            right = end
        diagram.words(8 + BAR, y + 1, f"N={halted.steps} R={halted.remainder:.2f}")
    return diagram
