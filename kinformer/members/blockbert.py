"""BlockBERT: BERT with heads that each read one block of keys per block of queries."""

from functools import partial

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.pattern import Heads, Pattern
from kinformer.core.training_recipe import Recipe
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.patterns.blockwise import Blockwise
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV

EPS = 1e-12
SHARES = {(12, 2): (10, 2), (12, 3): (8, 2, 2)}  # the paper's heads per permutation, by heads and blocks


@member(cost="L**2 / blocks", recipe=Recipe(lr=1e-3))
def blockbert(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    blocks: int = 2,
    permutations: tuple[str, ...] = (),
    shares: tuple[int, ...] | None = None,
    length: int = 256,
    kinds: int = 2,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM:
    """BlockBERT (Qiu et al., 2019, arXiv:1911.02972): block-sparse attention by permutations.

    y_i = softmax(Q_i K_pi(i)^T / sqrt(width of a head)) V_pi(i) for each block i, pi being the head's permutation

    A row is cut into `blocks`. Some heads read their own block, and other heads read the next blocks in turn. Choose it
    over `bert` if 1 / `blocks` of the pairs are enough. The model trains on the prediction of masked tokens.

    A training step (width 256, batch 1, on a CPU) is faster than `bert`'s from about 1,000 tokens on, and 1.8 times as
    fast at 4,096 (bench/README.md). With dropout it also needs less memory: at 1,024 tokens 0.74 of `bert`'s with two
    blocks and 0.53 with three. Without dropout it needs as much as `bert`.

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    blocks: number of blocks in a row; 2 and 3 in the paper.
    permutations: for each permutation the key blocks, counted from 0, of query blocks 0, 1, and so on: with "1-2-0" the
        queries of block 0 read the keys of block 1. By default, as in the paper, the shifts i + 0, i + 1, .. for block
        i, the identity first.
    shares: number of heads with each permutation. The default for twelve heads is the paper's: 10, 2 with two blocks
        and 8, 2, 2 with three. The default for other sizes is equal numbers.
    length: longest row in tokens, which the blocks divide. Train on rows of this length, because heads that read other
        blocks find no keys in short rows.
    kinds: number of segment types.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    """
    size = -(-check_at_least("length", length, 1) // check_at_least("blocks", blocks, 1))
    turns = _permutations(blocks, permutations)
    counts = _shares(heads, blocks, len(turns), shares)
    each = (Blockwise(turn, size) for turn, count in zip(turns, counts, strict=True) for _ in range(count))
    pattern: Pattern = Heads(*each)

    def block() -> PostNorm:
        attention = Attention(QKV(d, heads, head_dim=head_dim), Softmax(pattern, dropout=dropout, lse=False))
        return PostNorm(attention, MLP(d), norm=partial(LayerNorm, eps=EPS), dropout=dropout)

    body = Stack([block() for _ in range(check_at_least("depth", depth, 1))])
    return MLM(vocab, d, body, position=Learned(d, length), kinds=kinds, eps=EPS, dropout=dropout)


def _permutations(blocks: int, texts: tuple[str, ...]) -> list[tuple[int, ...]]:
    if not texts:
        return [tuple((n + shift) % blocks for n in range(blocks)) for shift in range(blocks)]
    parsed = [tuple(int(part) if part.isdecimal() else -1 for part in text.split("-")) for text in texts]
    for text, turn in zip(texts, parsed, strict=True):
        if sorted(turn) != list(range(blocks)):
            example = "-".join(map(str, (*range(1, blocks), 0)))
            raise ValueError(
                f"permutation {text!r} is invalid for {blocks} blocks; name each block once, as {example!r}"
            )
    return parsed


def _shares(heads: int, blocks: int, turns: int, shares: tuple[int, ...] | None) -> tuple[int, ...]:
    paper = SHARES.get((heads, blocks), ())
    counts = (paper if len(paper) == turns else (heads // turns,) * turns) if shares is None else shares
    if len(counts) != turns or sum(counts) != heads or min(counts) < 0:
        summary = f"{heads} heads cannot be divided among {turns} permutations: got shares {counts}"
        raise ValueError(f"{summary}; give one number of heads for each permutation, {heads} in total")
    return counts


EXAMPLES = (
    lambda: blockbert(d=16, depth=2, heads=2, length=64, vocab=11),
    lambda: blockbert(
        d=16, depth=1, heads=4, blocks=3, permutations=("1-2-0", "0-1-2"), shares=(1, 3), length=60, vocab=11
    ),
)
