"""SAC: a language model that learns which earlier tokens each token reads."""

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
from kinformer.mechanisms.sac_published import PublishedSAC
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
    reads itself and `edges` earlier tokens. Pre-norm, learned positions.

    d: the width.
    depth: layers.
    heads: heads of attention.
    edges: earlier tokens that a token reads.
    share: who has edges of its own: the whole "model", chosen in the lowest layer, each "layer", or each "head".
    width: of the network that chooses.
    clip: the furthest distance that it tells from further ones.
    reward: what a choice is rewarded by: the log-likelihood of its "token"'s target, or the mean over its "row".
    decay: of the running mean of rewards, the baseline.
    weight: of what the choices learn by in the loss.
    length: the longest row.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    one_of("share", share, Share)

    def mechanism(n: int) -> Mechanism:
        if share == "model" and n:
            return GivenEdges()
        by: Literal["layer", "head"] = "head" if share == "head" else "layer"
        return SAC(edges, width, clip=clip, by=by, send=share == "model", seed=n)

    blocks = [
        PreNorm(Attention(QKV(d, heads), mechanism(n)), MLP(d), dropout=dropout)
        for n in range(at_least("depth", depth, 1))
    ]
    return Reinforced(
        vocab, d, Stack(blocks, LayerNorm(d)), position=Learned(d, length), std=tied_start(d), dropout=dropout,
        per=reward, decay=decay, weight=weight
    )


@member
def sac_encoder(
    d: int = 128, depth: int = 4, heads: int = 4, edges: int = 2, share: Literal["layer", "head"] = "layer",
    width: int = 32, clip: int = 16, decay: float = 0.9, weight: float = 1.0, length: int = 1024, vocab: int = 256,
    dropout: float = 0.0
) -> ReinforcedMLM:
    """SAC as published (Li et al., 2020, arXiv:2003.09833): an LSTM chooses pairs of the whole row, by reward.

    Choose it to see which connections a text asks for that is there as a whole. In every layer `edges` times as many
    pairs as tokens are chosen, first a query and then its key. Trained by hiding tokens; a choice is rewarded by what
    its row's hidden tokens gain.

    share: who has pairs of its own, each "layer" or each "head".

    Others: those of `sac`.
    """
    one_of("share", share, ("layer", "head"))

    def mechanism(n: int) -> PublishedSAC:
        return PublishedSAC(edges, width, clip=clip, by=share, seed=n)

    blocks = [
        PreNorm(Attention(QKV(d, heads), mechanism(n)), MLP(d), dropout=dropout)
        for n in range(at_least("depth", depth, 1))
    ]
    body, position = Stack(blocks, LayerNorm(d)), Learned(d, length)
    return ReinforcedMLM(vocab, d, body, position=position, dropout=dropout, decay=decay, weight=weight)


EXAMPLES = (
    lambda: sac(d=16, depth=2, heads=2, edges=1, width=4, clip=3, length=32, vocab=11),
    lambda: sac(d=16, depth=1, heads=2, edges=1, share="head", width=4, reward="row", length=32, vocab=11),
)
