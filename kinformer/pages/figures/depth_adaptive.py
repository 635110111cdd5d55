"""The figure `depth_adaptive`: three exit classifiers, the exits that an oracle names, and training."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.eight_tokens import TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

DEPTH, PRICE, THRESHOLD = 3, 0.1, 0.5
LEFT, STEP = 9, 9  # column of the first token, and columns per token
# probability of the correct next word at each exit, for each of the eight tokens
RIGHT = (
    (0.60, 0.65, 0.66),
    (0.20, 0.45, 0.80),
    (0.90, 0.92, 0.93),
    (0.30, 0.35, 0.90),
    (0.60, 0.60, 0.61),
    (0.20, 0.70, 0.72),
    (0.90, 0.91, 0.92),
    (0.10, 0.10, 0.10),
)
FIRST_STATE = (0.0, 2.0, 1.0)  # numbers that softmax turns into q
STOPS = (-1.4, 0.8)  # w . h + b after the first and the second layer


def draw() -> Iterator[Diagram]:
    """Yield the classifiers, the oracle without and with smoothing, and the two ways of training."""
    yield _classifiers()
    yield _oracle(0.0)
    yield _oracle(1.0)
    yield _mixed_training()


def classifier_outputs() -> dict[str, list[float]]:
    """Return the probabilities of the exits by the rules `Multinomial` and `Geometric` for one token."""
    chosen, stopped = kf.Multinomial(DEPTH, DEPTH), kf.Geometric(1, DEPTH)
    chosen.choice.weight.data, chosen.choice.bias.data = torch.eye(DEPTH), torch.zeros(DEPTH)
    stopped.stop[0].weight.data, stopped.stop[0].bias.data = torch.ones(1, 1), torch.zeros(1)
    states = [torch.tensor([[[stop]]]) for stop in (*STOPS, 0.0)]
    with torch.no_grad():
        return {
            "multinomial": chosen.log_q([torch.tensor([[FIRST_STATE]])]).exp()[0, 0].tolist(),
            "geometric": stopped.log_q(states).exp()[0, 0].tolist(),
            "stops": [stopped.compute_confidence(states[:n]).item() for n in range(1, DEPTH)],
        }


def _classifiers() -> Diagram:
    outputs = classifier_outputs()
    diagram = Diagram(
        "three exit classifiers for a decoder of 3 layers; the token leaves after layer 2",
        kinds=("computed", "exit with its output head", "not computed"),
        note="q holds the probabilities of exits 1, 2, 3. s is the mean of the encoder's output, h(n) the state after "
        "layer n. X(n) is the probability to leave after layer n.",
    )
    q = ", ".join(f"{p:.2f}" for p in outputs["multinomial"])
    stops = outputs["stops"]
    panels: tuple[tuple[str, dict[float, str]], ...] = (
        ("sequence-specific", {0: "q = softmax(W s + b)", 2: "exit, for all tokens"}),
        ("token: multinomial", {1: "q = softmax(W h(1) + b)", 1.5: f"q = {q}", 2: "exit, the largest q"}),
        ("token: geometric-like", {1: f"X(1) = {stops[0]:.2f}: go on", 2: f"X(2) = {stops[1]:.2f}: exit"}),
    )
    for panel, (title, decisions) in enumerate(panels):
        x = 35 * panel
        diagram.words(x, 0, title, bold=True)
        for layer in range(1, DEPTH + 1):
            y = 2 + 4 * (DEPTH - layer)
            kind = 3 if layer == DEPTH else 2 if layer == 2 else 1
            diagram.box(x, y, 9, 3, f"layer {layer}", kind, dashed=kind == 3)
            diagram.arrow((x + 4, y + (4 if layer > 1 else 3.4)), (x + 4, y + 3), dashed=kind == 3)
        diagram.words(x + 3, 14, "dog")
        for after, text in decisions.items():
            y = round(3 + 4 * (DEPTH - after)) - (after == 0)
            diagram.words(x + 10, y, text, bold=after == 2)
    return diagram


def merits(sigma: float) -> tuple[list[list[float]], list[int]]:
    """Return the merit minus price of each exit for each token, and the exits that the oracle names.

    sigma: width of the smoothing over tokens; 0 for none.
    """
    right = torch.tensor(RIGHT).T[:, None]  # [exit, row, token]
    logits = [torch.stack([p, 1 - p], -1).log() for p in right]
    targets = torch.zeros(1, len(TOKENS), dtype=torch.long)
    oracle = kf.Likelihood(PRICE, sigma=sigma)
    merit = oracle.merit(logits, targets)[:, 0]
    if sigma:
        at = torch.arange(len(TOKENS))
        merit = merit @ torch.exp(-((at[:, None] - at) ** 2) / sigma)
    prices = PRICE * torch.arange(1, DEPTH + 1)[:, None]
    return (merit - prices).tolist(), (oracle(logits, targets)[0] + 1).tolist()


def _oracle(sigma: float) -> Diagram:
    table, exits = merits(sigma)
    smoothing = f"smoothed over neighbours with sigma = {sigma:g}" if sigma else "not smoothed"
    diagram = Diagram(
        f"likelihood oracle, {smoothing}: log p(target) - {PRICE} n at exit n",
        kinds=("exit named by the oracle", "other exits"),
        note="" if not sigma else "Tokens near a hard token get its late exit, so that it finds computed states.",
    )
    for n, token in enumerate(TOKENS):
        diagram.words(LEFT + STEP * n + 2, 3 * DEPTH, token)
        for layer in range(1, DEPTH + 1):
            is_best = layer == exits[n]
            text = f"{table[layer - 1][n]:.2f}"
            diagram.box(LEFT + STEP * n, 3 * (DEPTH - layer), 8, 3, text, 1 if is_best else 2, dashed=not is_best)
    for layer in range(1, DEPTH + 1):
        diagram.words(0, 3 * (DEPTH - layer) + 1, f"exit {layer}")
    return diagram


def random_exits() -> list[int]:
    """Return a random exit for each of the eight tokens, drawn by the rule `UniformExit`."""
    x = token_vectors()[None]
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return kf.UniformExit(DEPTH).begin_call((), kf.Context.of_sequence(x), x)[0].tolist()


def _mixed_training() -> Diagram:
    diagram = Diagram(
        "training: aligned (left) and mixed with one random sequence of exits (right)",
        kinds=("computed, with a loss", "computed, without a loss", "copied state"),
        note="A copy has the state of the token's exit. Layers above read copies of earlier tokens, as in decoding.",
    )
    exits = random_exits()
    for side, title in enumerate(("aligned", "mixed")):
        start = 9 + 46 * side
        for n, token in enumerate(TOKENS):
            x = start + 5 * n
            diagram.words(x, 3 * DEPTH, token)
            for layer in range(1, DEPTH + 1):
                kind = 1 if not side or layer == exits[n] else 2 if layer < exits[n] else 3
                text = f"h{exits[n]}" if kind == 3 else f"h{layer}"
                diagram.box(x, 3 * (DEPTH - layer), 4, 3, text, kind, dashed=kind == 3)
        diagram.words(start, 3 * DEPTH + 1, title, bold=True)
    for layer in range(1, DEPTH + 1):
        diagram.words(0, 3 * (DEPTH - layer) + 1, f"layer {layer}")
    return diagram
