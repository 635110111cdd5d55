"""The figure `decision_transformer`: the sequence of tokens, and the returns to go while acting."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.core.actor import TimeStep
from kinformer.pages.eight_tokens import TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

REWARDS = (0, 1, 0, 0, 0, 1, 0, 0)  # reward of each step: 1 at cat and dog
TARGET, SHOWN = 3.0, 3  # return that the actor asks for, and steps of the first diagram
LEFT, STEP = 10, 10  # column of the first token, and columns per token


def draw() -> Iterator[Diagram]:
    """Yield the tokens of three steps with their predictions, and the returns to go of eight steps."""
    yield _sequence()
    yield _acting()


def returns_to_go() -> list[int]:
    """Return the sum of the rewards from each step to the end, as in the training data."""
    return torch.tensor(REWARDS).flip(0).cumsum(0).flip(0).tolist()


def asked_returns() -> list[float]:
    """Return the return to go that the actor gives to the model at each step."""
    body = kf.PreNorm(kf.Attention(kf.QKV(8, 1), kf.Softmax(kf.Causal())))
    actor = kf.Trajectory(2, 2, body, context=len(TOKENS), steps=len(TOKENS)).actor(torch.tensor([TARGET]))
    state, before = actor.start(1), 0
    for n, (observation, reward) in enumerate(zip(token_vectors(), REWARDS, strict=True)):
        step = TimeStep(observation[None], torch.tensor([float(before)]), torch.tensor([n == 0]))
        _, state = actor.act(step, state)
        before = reward
    return state.steps.returns[0].tolist()


def _sequence() -> Diagram:
    diagram = Diagram(
        f"the first {SHOWN} steps of an episode in training",
        kinds=("return to go R", "state s", "action a", "prediction"),
        note="E(t) is the learned vector of step t, the same for its three tokens. Attention is causal, so a(t) is "
        "predicted without seeing it.",
    )
    wide = STEP * 3 * SHOWN - 2
    diagram.box(LEFT, 5, wide, 3, "causal Transformer without other positions", 0)
    diagram.box(LEFT, 9, wide, 3, "norm", 0)
    for step, left in enumerate(returns_to_go()[:SHOWN]):
        for n, (text, embedded) in enumerate(
            ((f"R = {left}", "W_R R"), (TOKENS[step], "W_s s"), (f"a({step})", "W_a a"))
        ):
            x = LEFT + STEP * (3 * step + n)
            middle = x + 3
            diagram.box(x, 18, 8, 3, text, n + 1)
            diagram.arrow((middle, 18), (middle, 17))
            diagram.box(x, 13, 8, 4, f"{embedded}\n+ E({step})", n + 1)
            diagram.arrow((middle, 13), (middle, 12))
            diagram.arrow((middle, 9), (middle, 8))
            if n == 1:
                diagram.arrow((middle, 5), (middle, 4))
                diagram.box(x - 1, 1, 10, 3, f"a({step})?", 4)
        diagram.words(LEFT + STEP * (3 * step + 1), 21, f"step {step}")
    diagram.words(0, 2, "predict")
    diagram.words(0, 14, "embed")
    diagram.words(0, 19, "tokens")
    return diagram


def _acting() -> Diagram:
    diagram = Diagram(
        f"returns to go in the data, and while acting with a target of {TARGET:g}",
        kinds=("reward", "return to go in the data", "return to go while acting"),
        note="While acting, each reward is subtracted from the target return.",
    )
    rows = (("reward", REWARDS), ("data", returns_to_go()), ("acting", [f"{left:g}" for left in asked_returns()]))
    for row, (name, values) in enumerate(rows):
        diagram.words(0, 3 * row + 1, name)
        for n, value in enumerate(values):
            diagram.box(LEFT + STEP * n, 3 * row, 9, 3, str(value), row + 1)
    for n, token in enumerate(TOKENS):
        diagram.words(LEFT + STEP * n + 2, 9, f"{n} {token}")
    diagram.words(0, 9, "state")
    return diagram
