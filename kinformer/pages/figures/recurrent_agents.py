"""The figure `recurrent_agents`: an agent in its environment, a training row, and PPO's clipped loss."""

from collections.abc import Iterator

import torch

from kinformer.nn.losses.ppo import clipped_policy
from kinformer.pages.eight_tokens import TOKENS
from kinformer.pages.pictures.support.diagram import Diagram

RATIO, BURN_IN = 0.2, 2
ENTRIES = ("observation", "action before", "reward before")


def draw() -> Iterator[Diagram]:
    """Yield the loop of acting, the steps of a training row, and the loss over the ratio."""
    yield _loop()
    yield _batch()
    yield _clipping()


def _loop() -> Diagram:
    diagram = Diagram(
        "one step of an agent with memory",
        kinds=("input of the step", "layers with a state", "output"),
        note="The state holds keys and values, hidden states, or an LSTM's cells. It is reset when an episode ends.",
    )
    left = 14
    diagram.box(left, 16, 56, 3, "environment", 0)
    for n, name in enumerate(ENTRIES):
        x = left + 20 * n
        diagram.arrow((x + 8, 16), (x + 8, 15))
        diagram.box(x, 12, 16, 3, name, 1)
        diagram.arrow((x + 8, 12), (x + 8, 11))
    diagram.box(left, 8, 56, 3, "sum of the embeddings", 1)
    diagram.arrow((left + 28, 8), (left + 28, 7))
    diagram.box(left, 4, 56, 3, "causal layers", 2)
    diagram.words(0, 5, "state(t)")
    diagram.arrow((9, 5), (left - 1, 5))
    diagram.arrow((left + 56, 5), (left + 59, 5))
    diagram.words(left + 61, 5, "state(t + 1)")
    diagram.arrow((left + 12, 4), (left + 12, 3))
    diagram.arrow((left + 44, 4), (left + 44, 3))
    diagram.box(left, 0, 25, 3, "value V(t)", 3)
    diagram.box(left + 31, 0, 25, 3, "policy p(a | past)", 3)
    diagram.arrow((left + 56, 1), (left + 76, 1), (left + 76, 17), (left + 56, 17))
    diagram.words(left + 60, 18, "action a(t)")
    return diagram


def _batch() -> Diagram:
    diagram = Diagram(
        "a row of a training batch: the layers read recorded steps again",
        kinds=("burn-in: read without gradient", "steps to learn from"),
        note="The stored state was computed with older weights. Burn-in steps bring it up to date; they are optional.",
    )
    diagram.words(0, 1, "stored state")
    diagram.arrow((13, 1), (15, 1))
    for n, token in enumerate(TOKENS):
        x, kind = 16 + 10 * n, 1 if n < BURN_IN else 2
        diagram.box(x, 0, 8, 3, f"{n} {token}", kind)
        if n:
            diagram.arrow((x - 2, 1), (x - 1, 1), dashed=n < BURN_IN + 1)
        diagram.words(x, 3, "no loss" if n < BURN_IN else "loss")
    return diagram


def clipped_losses(advantage: float, ratios: list[float]) -> list[float]:
    """Return PPO's loss of an action for some ratios of its new to its old probability.

    advantage: advantage of the action.
    ratios: the ratios.
    """
    new = torch.tensor([ratios]).log()
    return clipped_policy(new, torch.zeros_like(new), torch.full_like(new, advantage), RATIO)[0].tolist()


def _clipping() -> Diagram:
    left, middle, across, high = 10, 6, 40, 4
    diagram = Diagram(
        f"PPO's loss of an action over r = new / old probability, clipping range {RATIO}",
        kinds=("advantage 1", "advantage -1"),
        note="The loss has no gradient on a level line: there the policy has changed enough.",
    )
    ratios = [0.4, 1 - RATIO, 1 + RATIO, 1.8]
    diagram.line((left, 0), (left, 2 * middle))
    diagram.arrow((left, middle), (left + round(2 * across), middle))
    for kind, advantage in enumerate((1.0, -1.0), 1):
        points = [
            (left + across * ratio, middle - high * loss / 1.3)
            for ratio, loss in zip(ratios, clipped_losses(advantage, ratios), strict=True)
        ]
        diagram.line(*points, kind=kind)
    for value in (1, 0, -1):
        diagram.words(left - 2 - (value < 0), round(middle - high * value / 1.3), str(value))
    for ratio in (1 - RATIO, 1 + RATIO):
        diagram.words(left + round(across * ratio) - 1, middle + 1, f"{ratio:g}")
    diagram.words(left + 2 * across + 2, middle, "r")
    diagram.words(0, 0, "loss")
    return diagram
