"""The figure `memory_compressed`: groups of keys that become one key each, and who reads them."""

from collections.abc import Iterator

import torch

from kinformer import Block, Causal, ConvShortener, Shortened, Softmax
from kinformer.core.heads import Keys
from kinformer.pages.eight_tokens import LABELS, TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

SHARES, BLOCK, LENGTH = (0.2, 0.3, 0.5), 4, 4.0  # shares of the tokens of a group; block of a local layer
SIZE = len(SHARES)


def draw() -> Iterator[Diagram | Picture]:
    """Yield the compression of keys, the weights of both kinds of layers, and the stack of layers."""
    yield _compression()
    queries, keys = token_vectors(LENGTH), token_vectors()
    local, compressed = Softmax(Causal() & Block(BLOCK)), Shortened(Softmax(Causal()), convolution())
    panels = (
        shades("layer L", attention_weights(local, queries, keys), LABELS, LABELS),
        shades("layer M", attention_weights(compressed, queries, keys), LABELS, LABELS),
    )
    note = "In layer M a token gets its share of the weight of its group. The first queries read nothing there."
    yield Picture("weights of the tokens", (), panels, note=note)
    yield _stack()


def convolution() -> ConvShortener:
    """Return a convolution that takes a share of each of three consecutive keys, and of their values."""
    part = ConvShortener(SIZE, 2, len(TOKENS), bias=False)
    share = torch.tensor(SHARES)[:, None, None]
    with torch.no_grad():
        part.weight.k.copy_((share * torch.eye(2))[None])
        assert part.weight.v is not None
        part.weight.v.copy_((share * torch.eye(len(TOKENS)))[None])
    return part


def _compression() -> Diagram:
    pos = torch.arange(len(TOKENS))[None, None]
    keys = Keys(token_vectors()[None, None], torch.eye(len(TOKENS))[None, None], pos)
    ends = convolution()(keys).pos[0, 0].tolist()
    diagram = Diagram(
        f"a convolution with kernel {SIZE} and stride {SIZE} makes one key of {SIZE} keys",
        kinds=("tokens", "compressed keys"),
        note="A query reads a compressed key if its last token is not later than the query.",
    )
    for y, words in ((1, "keys"), (3, "shares"), (8, "compressed"), (13, "queries"), (15, "read keys")):
        diagram.words(0, y, words)
    for place, name in enumerate(LABELS):
        x, group = 14 + 10 * place, place // SIZE
        diagram.box(x, 0, 9, 3, name, 1)
        diagram.box(x, 12, 9, 3, name, 1)
        diagram.words(x + 3, 3, f"{SHARES[place % SIZE]}")
        diagram.line((x + 4, 4), (18 + 30 * group + 10, 6))
        read = [str(n) for n, end in enumerate(ends) if end <= place]
        diagram.words(x + 1, 15, " ".join(read) or "none", 2 if read else 0)
    for n, end in enumerate(ends):
        is_complete = end < len(TOKENS)
        label = f"{n}: tokens {end - SIZE + 1}-{end}" if is_complete else f"{n}: incomplete"
        diagram.arrow((28 + 30 * n, 6), (28 + 30 * n, 6.6))
        diagram.box(19 + 30 * n, 7, 19, 3, label, 2, dashed=not is_complete)
    return diagram


def _stack() -> Diagram:
    diagram = Diagram(
        "the layers of T-DMCA: LMLML", kinds=("L: own block of 256 tokens", "M: compressed keys of the whole past")
    )
    for n, kind in enumerate("LMLML"):
        diagram.box(15 * n, 0, 11, 3, f"layer {kind}", 1 if kind == "L" else 2)
        if n:
            diagram.arrow((15 * n - 4.4, 1), (15 * n - 1, 1))
    return diagram
