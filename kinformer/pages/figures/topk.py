"""The figure `topk`: the scores of a query, the threshold, and the weights that remain."""

from collections.abc import Iterator

from torch import Tensor

from kinformer import Causal, Softmax, TopK, TopKEquals
from kinformer.core.mechanism import Mechanism
from kinformer.pages.eight_tokens import LABELS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

K, QUERY, LENGTH = 2, 5, 4.0
LEFT, WIDE = 34, 8  # column of the score 0, and columns of a score of 1


def draw() -> Iterator[Diagram | Picture]:
    """Yield the scores and weights of the query dog, and the weights of all queries."""
    yield _scores()
    mechanisms = {"softmax": Softmax(Causal()), "k = 2, ties read": TopKEquals(Causal(), K), "k = 2": TopK(Causal(), K)}
    panels = tuple(shades(title, _weights(mechanism), LABELS, LABELS) for title, mechanism in mechanisms.items())
    note = "A darker cell is a larger weight. With ties, a query may read more than 2 keys."
    yield Picture("attention weights of the eight tokens", (), panels, note=note)


def _weights(mechanism: Mechanism) -> Tensor:
    return attention_weights(mechanism, token_vectors(LENGTH), token_vectors())


def _scores() -> Diagram:
    scores = (token_vectors(LENGTH)[QUERY] @ token_vectors().T / 2**0.5)[: QUERY + 1]
    softmax, both, latest = (
        _weights(m)[QUERY] for m in (Softmax(Causal()), TopKEquals(Causal(), K), TopK(Causal(), K))
    )
    threshold = scores.topk(K).values[-1].item()
    diagram = Diagram(
        f"scores and weights of the query dog (5), k = {K}",
        kinds=("read", "below the threshold"),
        note=f"The dashed line is the threshold t, the second highest score: {threshold:.2f}.",
    )
    for x, words in ((0, "key"), (LEFT, "score"), (66, "softmax"), (76, "ties read"), (88, "latest")):
        diagram.words(x, 0, words)
    end = round(LEFT + WIDE * threshold)
    diagram.line((end, 1.5), (end, 2 * QUERY + 2.5), dashed=True)
    for place in range(QUERY + 1):
        y, score = 2 + 2 * place, scores[place].item()
        kind = 1 if both[place] > 0 else 2
        diagram.words(0, y, LABELS[place], kind)
        at = round(LEFT + WIDE * score)
        diagram.line((LEFT, y), (at, y), kind=kind)
        diagram.words(at, y, "●", kind)
        for x, weights in ((66, softmax), (76, both), (88, latest)):
            diagram.words(x, y, f"{weights[place]:.2f}" if weights[place] > 0 else "0", kind if weights[place] else 0)
    return diagram
