"""SAC as published: an encoder that learns which pairs of tokens read each other."""

from functools import partial

from kinformer.core.discover import member
from kinformer.members.support.sac_blocks import Share, block, share_mechanisms
from kinformer.models.reinforced_lm import ReinforcedMLM
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.sac_published import GivenPairs, PublishedSAC
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned


@member(cost="L**2 * edges")
def sac_encoder(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    edges: int = 2,
    share: Share = "model",
    width: int = 32,
    clip: int = 16,
    decay: float = 0.9,
    weight: float = 1.0,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> ReinforcedMLM:
    """SAC as published (Li et al., 2020, arXiv:2003.09833): an LSTM chooses pairs of the whole row.

    Choose it to see the connections that a complete text needs. The LSTM chooses `edges` times as many pairs as tokens,
    first a query and then its key. The model trains on the prediction of masked tokens. The reward of a choice is the
    mean log-likelihood of the masked tokens of its row.

    edges: mean number of pairs per token, the paper's alpha. A token may be in many pairs or none, and always reads
        itself.
    d, depth, heads, head_dim, share, width, clip, decay, weight, length, vocab, dropout: as in `sac`.
    """
    choose = partial(PublishedSAC, edges, width, clip=clip)
    mechanisms = share_mechanisms(share, depth, choose, GivenPairs)
    body = Stack([block(d, heads, head_dim, selection, dropout) for selection in mechanisms], LayerNorm(d))
    return ReinforcedMLM(vocab, d, body, position=Learned(d, length), dropout=dropout, decay=decay, weight=weight)


EXAMPLES = (
    lambda: sac_encoder(d=16, depth=2, heads=2, edges=1, width=4, clip=3, length=32, vocab=11),
    lambda: sac_encoder(d=16, depth=2, heads=2, edges=1, share="layer", width=4, length=32, vocab=11),
    lambda: sac_encoder(d=16, depth=1, heads=2, edges=1, share="head", width=4, length=32, vocab=11),
)
