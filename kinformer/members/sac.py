"""SAC: a language model that learns which earlier tokens each token reads."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.checks import at_least, one_of
from kinformer.core.mechanism import Mechanism
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.losses.reinforce import Per
from kinformer.mechanisms.sac import SAC, GivenEdges
from kinformer.mechanisms.sac_published import GivenPairs, PublishedSAC
from kinformer.members.support.wiring import tied_start
from kinformer.models.reinforced import Reinforced, ReinforcedMLM
from kinformer.norms.layer import LayerNorm
from kinformer.positions.learned import Learned
from kinformer.projections.qkv import QKV

Share = Literal["model", "layer", "head"]


@member
def sac(
    d: int = 128, depth: int = 4, heads: int = 4, edges: int = 4, share: Share = "model", width: int = 32,
    clip: int = 16, reward: Per = "token", decay: float = 0.9, weight: float = 1.0, length: int = 1024,
    vocab: int = 256, dropout: float = 0.0
) -> Reinforced:
    """SAC, sparse adaptive connection (Li et al., 2020, arXiv:2003.09833): an LSTM chooses what is read, by reward.

    Choose it to see which few connections a text asks for; a step of the LSTM for every edge makes it slow. Each token
    reads itself and `edges` earlier tokens, so that it decodes: the paper, whose network chooses queries of the whole
    row too, is `sac_encoder`. Pre-norm, learned positions.

    d: the width.
    depth: layers.
    heads: heads of attention.
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
    body = Stack([_block(d, heads, one, dropout) for one in _shared(share, depth, choose, GivenEdges)], LayerNorm(d))
    return Reinforced(
        vocab, d, body, position=Learned(d, length), std=tied_start(d), dropout=dropout, per=reward, decay=decay,
        weight=weight
    )


@member
def sac_encoder(
    d: int = 128, depth: int = 4, heads: int = 4, edges: int = 2, share: Share = "model", width: int = 32,
    clip: int = 16, decay: float = 0.9, weight: float = 1.0, length: int = 1024, vocab: int = 256,
    dropout: float = 0.0
) -> ReinforcedMLM:
    """SAC as published (Li et al., 2020, arXiv:2003.09833): an LSTM chooses pairs of the whole row, by reward.

    Choose it to see which connections a text asks for that is there as a whole. `edges` times as many pairs as tokens
    are chosen, first a query and then its key. Trained by hiding tokens; a choice is rewarded by what its row's hidden
    tokens gain.

    edges: pairs per token, the paper's alpha. A token may get many or none; it always reads itself.

    Others: those of `sac`.
    """
    choose = partial(PublishedSAC, edges, width, clip=clip)
    body = Stack([_block(d, heads, one, dropout) for one in _shared(share, depth, choose, GivenPairs)], LayerNorm(d))
    return ReinforcedMLM(vocab, d, body, position=Learned(d, length), dropout=dropout, decay=decay, weight=weight)


def _shared(
    share: Share, depth: int, choose: Callable[..., Mechanism], given: Callable[[], Mechanism]
) -> list[Mechanism]:
    """The mechanism of each layer: the lowest one chooses for all, or each for itself or its heads."""
    at_least("depth", depth, 1)
    if one_of("share", share, Share) == "model":
        return [choose(send=True), *(given() for _ in range(depth - 1))]
    return [choose(by=share, seed=n) for n in range(depth)]


def _block(d: int, heads: int, mechanism: Mechanism, dropout: float) -> PreNorm:
    return PreNorm(Attention(QKV(d, heads), mechanism), MLP(d), dropout=dropout)


EXAMPLES = (
    lambda: sac(d=16, depth=2, heads=2, edges=1, width=4, clip=3, length=32, vocab=11),
    lambda: sac(d=16, depth=1, heads=2, edges=1, share="head", width=4, reward="row", length=32, vocab=11),
    lambda: sac_encoder(d=16, depth=2, heads=2, edges=1, width=4, clip=3, length=32, vocab=11),
)
