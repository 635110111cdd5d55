"""The figure `routing_by_agreement`: votes of three heads for two capsules, and their shares."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

import kinformer as kf
from kinformer.pages.eight_tokens import ANGLES, TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

HEADS = (1, 5, 2)  # tokens whose vectors are the outputs of the heads
TURNS = (180, 90, 180)  # degrees by which the matrices of capsule 2 turn them
ITERATIONS = 3
KINDS = tuple(f"head {n}: the vector of {TOKENS[token]}" for n, token in enumerate(HEADS, 1))
X, Y, RADIUS = 30, 8, 7


def draw() -> Iterator[Diagram]:
    """Yield the votes for each capsule, and the shares of the heads in each iteration."""
    votes, rounds = route()
    for n in (0, 1):
        yield _circle(votes[:, n], rounds[-1][1][n], n + 1)
    yield _shares(rounds)


def route() -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return the votes [head, capsule, 2], and the shares and the capsules in each iteration."""
    turns = [torch.tensor([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]) for a in map(math.radians, TURNS)]
    routing = kf.DynamicRouting(len(HEADS), 2, 4, capsules=2)
    routing.votes.weight.data.copy_(torch.stack([torch.stack([torch.eye(2), turn]) for turn in turns]))
    votes = routing.votes(token_vectors(2.0)[list(HEADS)][None, :, None])[0, 0].detach()
    rounds, agreed = [], torch.zeros(len(HEADS), 2)
    for count in range(1, ITERATIONS + 1):
        routing.iterations = count
        capsules = routing.route(votes)
        rounds.append((agreed.softmax(-1), capsules))
        agreed = agreed + (votes * capsules).sum(-1)
    return votes, rounds


def _circle(votes: Tensor, capsule: Tensor, number: int) -> Diagram:
    diagram = Diagram(
        f"votes for capsule {number}: a direction for each head",
        kinds=KINDS,
        note="Dots are directions of votes. The arrow is the capsule's vector after 3 iterations; the radius is 1.",
    )
    diagram.circle(X, Y, RADIUS)
    for n, (x, y) in enumerate(votes.tolist()):
        length = math.hypot(x, y)
        across, up = x / length, y / length
        column, line = round(X + 2 * RADIUS * across), round(Y - RADIUS * up)
        label = f"head {n + 1}, {round(math.degrees(math.atan2(up, across))) % 360}"
        diagram.words(column, line, "●", n + 1)
        diagram.words(column + 2 if across > 0 else column - 1 - len(label), line, label, n + 1)
    x, y = capsule.tolist()
    diagram.arrow((X, Y), (X + 2 * RADIUS * x, Y - RADIUS * y))
    diagram.words(X - 12, Y, f"length {math.hypot(x, y):.2f}")
    return diagram


def _shares(rounds: list[tuple[Tensor, Tensor]]) -> Diagram:
    diagram = Diagram(
        "shares of each head in the capsules, iteration by iteration",
        kinds=KINDS,
        note="Each row of two shares sums to 1. In the first iteration all shares are equal.",
    )
    diagram.words(0, 1, "head")
    for count, (shares, capsules) in enumerate(rounds):
        x = 14 + 29 * count
        diagram.words(x, 0, f"iteration {count + 1}", bold=True)
        for n in (0, 1):
            diagram.words(x + 13 * n, 1, f"capsule {n + 1}")
            diagram.words(x + 13 * n, 15, f"{capsules[n].norm():.2f}")
        for h in range(len(HEADS)):
            for n in (0, 1):
                diagram.box(x + 13 * n, 3 + 4 * h, 10, 3, f"{shares[h, n]:.2f}", h + 1, dashed=bool(shares[h, n] < 0.1))
    for h, token in enumerate(HEADS):
        diagram.words(0, 4 + 4 * h, f"{h + 1} {TOKENS[token]} {ANGLES[token]}", h + 1)
    diagram.words(0, 15, "length")
    return diagram
