"""The figure `sinks`: a cache of a window and the first token, and the weights with and without it."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.core.pattern import Pattern
from kinformer.pages.eight_tokens import LABELS, TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

WINDOW, SINKS = 3, 1
PATTERNS = {
    "full attention": kf.Causal(),
    "window": kf.Causal() & kf.Band(WINDOW - 1),
    "window and sink": kf.Causal() & (kf.Band(WINDOW - 1) | kf.Tokens(SINKS)),
}
SINK, NEAR, OTHER = 1, 2, 3
QUERY = 7


def draw() -> Iterator[Diagram]:
    """Yield the cache at each token, and the weights of one query in three patterns."""
    yield _cache()
    yield _weights()


def sink_weights(pattern: Pattern) -> list[float]:
    """Return the weights of the last token if the first key has a high score for every query.

    pattern: keys that each query reads.
    """
    sink = torch.zeros(len(TOKENS), 1)
    sink[0] = 4
    queries = torch.cat([2 * token_vectors(), torch.ones(len(TOKENS), 1)], 1)
    keys = torch.cat([token_vectors(), sink], 1)
    return attention_weights(kf.Softmax(pattern), queries, keys)[QUERY].tolist()


def _cache() -> Diagram:
    diagram = Diagram(
        f"cache at each new token: a window of {WINDOW} tokens and {SINKS} sink",
        kinds=("sink", "window"),
        note="With rotary positions the new token counts as standing right after the cache, so the distance to the "
        "sink stays within training.",
    )
    diagram.words(0, 0, "new token", bold=True)
    diagram.words(14, 0, "keys that it reads", bold=True)
    diagram.words(82, 0, "distance to the", bold=True)
    diagram.words(82, 1, "sink: text, used", bold=True)
    pattern = PATTERNS["window and sink"].matrix(len(TOKENS))
    last = WINDOW + SINKS - 1
    for row in range(2, len(TOKENS)):
        y = 2 * row - 1
        diagram.words(0, y, LABELS[row])
        for place in pattern[row].nonzero().flatten().tolist():
            kind = SINK if place < SINKS else NEAR
            diagram.box(14 + 8 * place, y, 7, 1, LABELS[place], kind)
        diagram.words(84, y, f"{row}", 0)
        diagram.words(92, y, f"{min(row, last)}", SINK)
    return diagram


def _weights() -> Diagram:
    diagram = Diagram(
        f"weights of {TOKENS[QUERY]} ({QUERY}) if the first key has a high score for every query",
        kinds=("first token", "window", "other tokens"),
        note="Without the sink the window gets all of the weight, many times as much as in full attention.",
    )
    for row, (name, pattern) in enumerate(PATTERNS.items()):
        y = 3 * row
        diagram.words(0, y + 1, name)
        for place, weight in enumerate(sink_weights(pattern)):
            kind = SINK if place < SINKS else NEAR if place > QUERY - WINDOW else OTHER
            x = 18 + 10 * place
            if not row:
                diagram.words(x, 0, LABELS[place], bold=True)
            if weight:
                diagram.words(x, y + 1, f"{weight:.2f}", kind)
                if bar := "█" * round(8 * weight):
                    diagram.words(x, y + 2, bar, kind)
    return diagram
