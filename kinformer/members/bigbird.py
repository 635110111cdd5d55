"""BigBird: an encoder of long texts with a window, global tokens and random blocks."""

from functools import partial
from typing import Any, Literal

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.layer import Layer
from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.window_sizes import one_per_layer
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.global_ends import GlobalEnds
from kinformer.nn.depth.global_nodes import GlobalNodes
from kinformer.nn.depth.random_keys import RandomKeys
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.published_random import PublishedRandom
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.shifted import Shifted
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV

EPS = 1e-12


@member(recipe=Recipe(lr=5e-4), needs={"nodes": "form=etc", "keys": "tables=none", "draw": "tables=none and keys>0"})
def bigbird(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    form: Literal["itc", "etc"] = "itc",
    block: int = 16,
    window: int = 1,
    keys: int = 3,
    draw: Literal["past", "published", "row"] = "past",
    tables: str | tuple[str, ...] | None = None,
    nodes: int = 32,
    length: int = 1024,
    kinds: int = 1,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM:
    """BigBird (Zaheer et al., 2020, arXiv:2007.14062): a window, a few global tokens, and random blocks for each block.

    Choose it over `longformer` where far tokens should meet in few layers without many global ones: random blocks make
    the paths between any two tokens short. Trained by hiding tokens.

    d: width of a token.
    depth: blocks of the stack.
    heads: heads of attention, each with random blocks of its own.
    head_dim: the width of a head; d / heads unless given.
    form: "itc": the first and the last block of a text are global. "etc": `nodes` learned tokens outside the text are.
    block: positions of a block; the paper's 64 for rows of 4,096, as many blocks as 16 make of 1,024.
    window: blocks read on either side of the own one; the paper's three blocks are 1.
    keys: random blocks that a block draws; 0 for none. None of them is read anyway, but with "published" a draw may be
        the last block, which is global, or fall behind the end of a text.
    draw: "past": a block draws from earlier blocks, and a drawn block reads the drawing block too. So the set is the
        same at every length, but early blocks read more. "published": each block draws from the first 16 blocks, as in
        the authors' code. "row": each block draws the same number of blocks from its whole row. All draws follow from
        layer, head and block by arithmetic, so a loaded checkpoint has the same draws.
    tables: random blocks that were drawn elsewhere, such as a published model's, in place of a draw: the expression of
        a pattern, one for all layers or one each. "Heads(Blocks(((), (2, 5)), 16), Blocks(((), (3, 4)), 16))" gives two
        heads in turn the blocks that blocks 0 and 1 of the text read beside window and global ones.
    nodes: how many tokens stand outside the text (etc).
    length: the longest row.
    kinds: how many kinds of segments are told apart.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    for name, value, least in (("keys", keys, 0), ("window", window, 0), ("block", block, 1), ("nodes", nodes, 1)):
        check_at_least(name, value, least)
    itc = form == "itc"
    fixed = None if tables is None else one_per_layer("tables", tables, depth)

    def random(n: int) -> Pattern:
        if fixed is not None:
            return parse(fixed[n])
        first = 1 if itc else 0  # the first block of a text is read anyway where it is global
        if draw == "published":
            return PublishedRandom(keys, block, n, first=first, window=window)
        return Random(keys, block, n, symmetric=True, first=first, back=window + 1)

    def pattern(n: int) -> Pattern:
        near: Pattern = Block(block, window, window)
        near = near | random(n) if fixed or (keys and draw != "row") else near
        wide = block if itc else nodes
        return (near if itc else Shifted(near, nodes)) | Tokens(wide) | Rows(wide)

    def layer(n: int) -> Layer:
        attention = Attention(QKV(d, heads, head_dim=head_dim), Softmax(pattern(n), dropout=dropout, lse=False))
        post_norm = PostNorm(attention, MLP(d), norm=partial(LayerNorm, eps=EPS), dropout=dropout)
        if fixed or not keys or draw != "row":
            return post_norm
        ends, before = (1, 0) if itc else (0, nodes)
        return RandomKeys(post_norm, keys, block, n, first=ends, last=ends, window=window, before=before)

    stack = Stack([layer(n) for n in range(check_at_least("depth", depth, 1))])
    body: Layer = GlobalEnds(stack, block) if itc else GlobalNodes(stack, nodes)
    return MLM(vocab, d, body, position=Learned(d, length), kinds=kinds, eps=EPS, dropout=dropout)


TINY: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "block": 2, "keys": 1, "length": 64, "vocab": 11}
EXAMPLES = (
    lambda: bigbird(**TINY),
    lambda: bigbird(**TINY, draw="row"),
    lambda: bigbird(**TINY, draw="row", form="etc", nodes=3),
    lambda: bigbird(**TINY, draw="published", form="etc", nodes=2, head_dim=6),
    lambda: bigbird(d=16, depth=2, heads=2, block=2, length=64, vocab=11, tables="Blocks(((), (0,)), 2)"),
    lambda: bigbird(
        d=16, depth=2, heads=2, block=2, length=64, vocab=11, tables=("Blocks(((), (0,)), 2)", "Blocks(((1,), ()), 2)")
    ),
)
