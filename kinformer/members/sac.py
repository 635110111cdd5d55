"""SAC: a language model that learns which earlier tokens each token reads."""

from functools import partial

from kinformer.core.discover import member
from kinformer.members.support.sac_blocks import Share, block, share_mechanisms
from kinformer.members.support.wiring import tied_start
from kinformer.models.reinforced_lm import ReinforcedLM
from kinformer.nn.depth.stack import Stack
from kinformer.nn.losses.reinforce import Per
from kinformer.nn.mechanisms.sac import SAC, GivenEdges
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned


@member
def sac(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    edges: int = 4,
    share: Share = "model",
    width: int = 32,
    clip: int = 16,
    reward: Per = "token",
    decay: float = 0.9,
    weight: float = 1.0,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> ReinforcedLM:
    """SAC, sparse adaptive connection (Li et al., 2020, arXiv:2003.09833): an LSTM chooses what is read, by reward.

    Choose it to see which few connections a text asks for; a step of the LSTM for every edge makes it slow. Each token
    reads itself and `edges` earlier tokens, so that it decodes: the paper, whose network chooses queries of the whole
    row too, is `sac_encoder`. Pre-norm, learned positions.

    d: the width.
    depth: layers.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    edges: earlier tokens that a token reads.
    share: who has edges of its own: the whole "model", chosen in the lowest layer, each "layer", or each "head".
    width: of the network that chooses.
    clip: the furthest distance that it tells from further ones.
    reward: what a choice is rewarded by: the log-likelihood of its "token"'s target, which has less noise, or the mean
        over its "row", the paper's.
    decay: of the running mean of rewards, the baseline.
    weight: of what the choices learn by in the loss.
    length: the longest row.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    choose = partial(SAC, edges, width, clip=clip)
    mechanisms = share_mechanisms(share, depth, choose, GivenEdges)
    body = Stack([block(d, heads, head_dim, selection, dropout) for selection in mechanisms], LayerNorm(d))
    return ReinforcedLM(
        vocab,
        d,
        body,
        position=Learned(d, length),
        std=tied_start(d),
        dropout=dropout,
        per=reward,
        decay=decay,
        weight=weight,
    )


EXAMPLES = (
    lambda: sac(d=16, depth=2, heads=2, edges=1, width=4, clip=3, length=32, vocab=11),
    lambda: sac(d=16, depth=1, heads=2, edges=1, share="head", width=4, reward="row", length=32, vocab=11),
    lambda: sac(d=16, depth=2, heads=2, edges=1, share="layer", width=4, length=32, vocab=11),
)
