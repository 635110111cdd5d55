"""The figure `memorizing`: one query reads its segment and its best memory keys; a gate mixes both."""

from collections.abc import Iterator

import kinformer as kf
from kinformer.pages.eight_tokens import LABELS, TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

FAR, NEAR, GATE = 1, 2, 3
QUERY, SEGMENT, BEST, SCALE = 5, 2, 2, 4
STEP, BOX, LEFT = 13, 12, 10
DEPTH = 12  # layers of the paper's model


def draw() -> Iterator[Diagram]:
    """Yield one query of the memory layer, and the stack of layers."""
    yield _query()
    yield _stack()


def chosen_keys(scores: list[float]) -> list[int]:
    """Return the positions of the memory keys with the highest scores.

    scores: score of each memory key.
    """
    return sorted(range(len(scores)), key=lambda place: -scores[place])[:BEST]


def _query() -> Diagram:
    diagram = Diagram(
        f"memory layer: {TOKENS[QUERY]} ({QUERY}) reads its segment and the {BEST} best keys of the memory",
        kinds=("memory: no gradient", "segment", "learned gate of the head"),
        note="The number below a token is its score: 4 times the cosine of the angle to the query.",
    )
    scores = (SCALE * token_vectors() @ token_vectors()[QUERY]).tolist()
    first = QUERY // SEGMENT * SEGMENT  # first token of the segment
    best = chosen_keys(scores[:first])
    diagram.words(0, 1, "keys")
    diagram.words(0, 3, "scores")
    for place in range(QUERY + 1):
        x = LEFT + STEP * place + (6 if place >= first else 0)
        kind = NEAR if place >= first else FAR
        diagram.box(x, 0, BOX, 3, LABELS[place], kind, dashed=place < first and place not in best)
        diagram.words(x + 4, 3, f"{scores[place]:.2f}", kind if place >= first or place in best else 0)
        if place in best or place >= first:
            diagram.arrow((x + 5, 4), (x + 5, 6.49), kind=kind)
    diagram.box(LEFT, 7, 2 * STEP - 1, 3, f"softmax of {BEST} keys", FAR)
    diagram.box(LEFT + 4 * STEP + 6, 7, 2 * STEP - 1, 3, "softmax of the segment", NEAR)
    diagram.words(LEFT + 2 * STEP + 1, 4, f"not among the best {BEST}")
    diagram.arrow((LEFT + 12, 9), (LEFT + 12, 12), (29.4, 12), kind=FAR)
    diagram.arrow((LEFT + 4 * STEP + 18, 9), (LEFT + 4 * STEP + 18, 12), (71.6, 12), kind=NEAR)
    diagram.box(30, 11, 42, 3, "g far + (1 - g) near,  g = sigmoid(b_h)", GATE)
    return diagram


def _stack() -> Diagram:
    model = kf.memorizing_transformer(d=16, heads=2, depth=DEPTH, segment=4, memory=8)
    layers = [block for block in model.modules() if isinstance(block, kf.PreNorm)]
    diagram = Diagram(
        f"the {DEPTH} layers from input to output: one of them has the memory",
        kinds=("layer with the memory", "layer with a window"),
        note="All layers read a window of near keys.",
    )
    for n, block in enumerate(layers):
        has_memory = any(isinstance(part, kf.Retrieval) for part in block.modules())
        diagram.box(8 * n, 0, 6, 3, str(n + 1), 1 if has_memory else 2)
        if n:
            diagram.arrow((8 * n - 3, 1), (8 * n - 0.6, 1))
        if has_memory:
            diagram.box(8 * n - 12, 5, 30, 3, "memory of keys and values", 1)
            diagram.arrow((8 * n + 1, 5), (8 * n + 1, 2.51), kind=1, dashed=True)
            diagram.arrow((8 * n + 4, 2), (8 * n + 4, 4.49), kind=1)
            diagram.words(8 * n - 9, 4, "K best", 1)
            diagram.words(8 * n + 7, 4, "new keys", 1)
    return diagram
