"""The figure `sac`: choices of an LSTM one after another, the path of the reward, and chosen edges."""

from collections.abc import Iterator

import torch
from torch import Tensor

from kinformer import SAC, Causal, Context, Keys, PublishedSAC, Queries
from kinformer.pages.eight_tokens import TOKENS, token_vectors
from kinformer.pages.pictures.support.attention_calls import mask_of
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, masks_grid

SEED = 0  # of the untrained networks


def draw() -> Iterator[Diagram | Picture]:
    """Yield the choices of the LSTM, the way in which it is trained, and the edges of untrained networks."""
    yield _choices()
    yield _training()
    yield _edges()


def _choices() -> Diagram:
    diagram = Diagram(
        "the LSTM chooses edges one after another",
        kinds=("LSTM", "chosen token"),
        note="The published form: odd steps choose a query, even steps its key. "
        "The decoder takes the queries in order, and its LSTM chooses only keys.",
    )
    steps = (("query", "5 dog"), ("key", "1 cat"), ("query", "6 sat"), ("key", "2 sat"))
    for n, (role, token) in enumerate(steps):
        x = 22 * n
        diagram.box(x, 0, 14, 3, f"LSTM step {n + 1}", 1)
        diagram.arrow((x + 6, 2.6), (x + 6, 5.3))
        diagram.words(x + 8, 4, role)
        diagram.box(x, 6, 14, 3, token, 2)
        if n:
            diagram.arrow((x - 8.4, 1), (x - 1, 1))
            diagram.words(x - 5, 0, "h, c")
        if n < len(steps) - 1:
            diagram.line((x + 13.6, 7), (x + 19, 7), (x + 19, 2))
            diagram.arrow((x + 19, 2), (x + 21, 2))
    for n in (0, 2):
        diagram.line((22 * n + 6, 8.6), (22 * n + 6, 10), (22 * n + 28, 10), (22 * n + 28, 8.6))
        diagram.words(22 * n + 11, 11, f"edge {n // 2 + 1}")
    return diagram


def _training() -> Diagram:
    diagram = Diagram(
        "two losses train two parts",
        kinds=("trained by the language-model loss", "trained by REINFORCE"),
        note="Dashed: the gradient stops at the drawn choice, so the reward takes its place.",
    )
    for x, width, words, kind in (
        (0, 18, "edge predictor", 2),
        (27, 16, "drawn edges", 0),
        (52, 14, "attention", 1),
        (75, 17, "log-likelihood", 1),
    ):
        diagram.box(x, 0, width, 3, words, kind)
    diagram.arrow((17.6, 1), (26, 1), dashed=True)
    diagram.words(19, 0, "log p")
    diagram.arrow((42.6, 1), (51, 1), dashed=True)
    diagram.arrow((65.6, 1), (74, 1))
    diagram.arrow((83, 2.6), (83, 5), (9, 5), (9, 3.4))
    diagram.words(24, 6, "reward R: gradient of -(R - b) log p")
    return diagram


def _edges() -> Picture:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        decoder, encoder = SAC(1, 2, clip=8), PublishedSAC(1, 2, clip=8)  # in training mode they draw
    panels = (
        masks_grid([mask_of(Causal(), len(TOKENS))[0]])._replace(title="causal softmax"),
        masks_grid([_weights(decoder) > 0])._replace(title="SAC, 1 edge each"),
        masks_grid([_weights(encoder) > 0])._replace(title="published, 8 edges"),
    )
    note = "Drawn by untrained networks. Each token also reads itself. In the published form a token may have no edge."
    return Picture("keys that each query reads", (), panels, note=note)


def _weights(mechanism: SAC | PublishedSAC) -> Tensor:
    x, ctx = token_vectors()[None, None], Context.of_sequence(torch.zeros(1, len(TOKENS), 1))
    pos = ctx.pos[:, None]
    keys = Keys(x, torch.eye(len(TOKENS))[None, None], pos, {"node": x})
    with torch.no_grad():
        return mechanism(Queries(4 * x, pos), keys, None, ctx).y.y[0, 0]
