"""A decoder of one stack, which can also be trained on consecutive text."""

from kinformer.members.support.wiring import Wiring
from kinformer.models.lm import LM
from kinformer.nn.depth.stack import Stack


def build_lane_decoder(vocab: int, d: int, heads: int, body: Stack, *, length: int, lanes: bool, dropout: float) -> LM:
    """Build a decoder with learned positions, or with sinusoidal ones if `lanes` is True: these have no last position.

    vocab: number of token kinds.
    d, heads: width and number of heads.
    body: the layers.
    length: rows of the learned table.
    lanes: train on consecutive text and carry the state from batch to batch.
    dropout: dropout of the embeddings.
    """
    wiring = Wiring(d, heads, position="sinusoidal" if lanes else "learned", length=length)
    position, scale = wiring.added_position(), wiring.scale
    return LM(vocab, d, body, position=position, scale=scale, std=wiring.start, dropout=dropout, lanes=lanes)
