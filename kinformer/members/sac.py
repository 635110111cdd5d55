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


@member(cost="L**2 * edges")
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
    """SAC, sparse adaptive connection (Li et al., 2020, arXiv:2003.09833), as a decoder.

    An LSTM chooses the tokens that each token reads, and learns by reward. Choose it to see the few connections that a
    text needs. It is slow, because each edge takes a step of the LSTM. Each token reads itself and `edges` earlier
    tokens, so the model can decode. Blocks are pre-norm with learned positions.

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    edges: number of earlier tokens that a token reads.
    share: unit that has its own edges (pairs of a token and a token that it reads): the whole "model", which chooses in
        the lowest layer, each "layer", or each "head".
    width: width of the LSTM.
    clip: largest distance that the LSTM can distinguish.
    reward: reward of a choice: the log-likelihood of its "token"'s target, which has less noise, or the mean over its
        "row", as in the paper.
    decay: decay of the running mean of rewards, the baseline.
    weight: loss weight of the term that trains the choices.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and sublayer outputs.

    Differences: the paper's network also chooses queries from the whole row, as in `sac_encoder`.
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
