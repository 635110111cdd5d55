"""RealFormer: attention scores that add up from block to block."""

from functools import partial
from typing import Literal

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.discover import member
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.talking_heads import MixHeads
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.scores.residual import ResidualScores

Form = Literal["encoder", "decoder"]
Sums = Literal["sum", "mean", "weighted"]
EPS = 1e-12


@member(
    cost="L**2",
    recipe=Recipe(lr=5e-4),
    needs={
        "scores": "depth>1",
        "own, below": "depth>1 and scores=weighted",
        "mixed": "depth>1",
        "kinds": "form=encoder",
    },
)
def realformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    form: Form = "encoder",
    scores: Sums = "sum",
    own: float = 0.5,
    below: float = 0.5,
    mixed: bool = False,
    length: int = 1024,
    kinds: int = 2,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM | LM:
    """RealFormer (He et al., 2020, arXiv:2012.11747): a residual path through the attention scores.

    Each block adds the scores of the block below to its own. Choose it over `bert` for deep stacks: blocks can refine
    what the first blocks attend to, without extra parameters. Every block reads the same pairs of tokens, because a
    pair's score is added to that pair's score in the block above. Each block's matrix of scores is stored, so memory
    grows with the square of a row.

    d: model width.
    depth: number of blocks, post-norm as in the paper.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    form: "encoder" predicts masked tokens, like the paper's BERT; "decoder" generates text, which the paper does not
        try.
    scores: "sum" adds the scores of all blocks so far. "mean" averages them, which the authors found helpful from 30
        blocks on. With "weighted" they are own * (scores of the block) + below * g(scores of the block below). This is
        the general prior from lower modules (Lin et al., 2021, arXiv:2106.04554, section 4.5.2).
    own, below: the two weights of "weighted".
    mixed: True makes g a learned mixture of the heads of the block below; False makes g the identity.
    length: longest row in tokens.
    kinds: number of segment types of an encoder.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    """

    check_option("scores", scores, Sums)

    def block(n: int, pattern: Pattern, eps: float) -> PostNorm:
        weights = {"sum": (1.0, 1.0), "mean": (1 / (n + 1), n / (n + 1)), "weighted": (own, below)}[scores]
        change = MixHeads(heads) if mixed and n else None
        mechanism = Explicit(pattern, score=ResidualScores(*weights, change), up=True, dropout=dropout)
        projection = QKV(d, heads, head_dim=head_dim)
        return PostNorm(Attention(projection, mechanism), MLP(d), norm=partial(LayerNorm, eps=eps), dropout=dropout)

    if form == "decoder":
        body = Stack([block(n, Causal(), 1e-5) for n in range(check_at_least("depth", depth, 1))])
        return LM(vocab, d, body, position=Learned(d, length), std=tied_start(d, 0.5), dropout=dropout)
    body = Stack([block(n, Full(), EPS) for n in range(check_at_least("depth", depth, 1))])
    return MLM(vocab, d, body, position=Learned(d, length), kinds=kinds, eps=EPS, dropout=dropout)


EXAMPLES = (
    lambda: realformer(d=16, depth=2, heads=2, length=64, vocab=11),
    lambda: realformer(d=16, depth=3, heads=2, form="decoder", scores="mean", length=64, vocab=11),
    lambda: realformer(d=16, depth=2, heads=2, scores="weighted", below=0.3, mixed=True, length=64, vocab=11),
)
