"""Decoder that can also train on lanes (parallel pieces of one text, read from start to end)."""

from kinformer.members.support.wiring import Wiring
from kinformer.models.lm import LM
from kinformer.nn.depth.stack import Stack


def build_lane_decoder(vocab: int, d: int, heads: int, body: Stack, *, length: int, lanes: bool, dropout: float) -> LM:
    """Build a language model with learned positions, or with sinusoidal positions if `lanes` is True.

    Consecutive text needs sinusoidal positions, because a learned table has a last position.

    vocab: vocabulary size, in tokens.
    d, heads: model width and number of heads.
    body: the layers.
    length: number of learned positions.
    lanes: True trains on consecutive text and carries the decoding state from batch to batch.
    dropout: dropout probability of embeddings.
    """
    wiring = Wiring(d, heads, position="sinusoidal" if lanes else "learned", length=length)
    position, scale = wiring.added_position(), wiring.scale
    return LM(vocab, d, body, position=position, scale=scale, std=wiring.start, dropout=dropout, lanes=lanes)
