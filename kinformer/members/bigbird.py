"""BigBird: an encoder for long texts with a window, global tokens and random blocks."""

from functools import partial
from typing import Any, Literal

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.layer import Layer
from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.window_sizes import one_per_layer
from kinformer.models.mlm import GELU, MLM
from kinformer.nn.attention import Attention
from kinformer.nn.biases.repeated_keys import RepeatedKeys
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


@member(
    cost="L * block * (window + keys)",
    recipe=Recipe(lr=5e-4),
    needs={"nodes": "form=etc", "full_up_to": "form=itc", "keys": "tables=none", "draw": "tables=none and keys>0"},
)
def bigbird(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    form: Literal["itc", "etc"] = "itc",
    block: int = 16,
    window: int = 1,
    keys: int = 3,
    draw: Literal["past", "published", "row", "first"] = "past",
    tables: str | tuple[str, ...] | None = None,
    nodes: int = 32,
    length: int = 1024,
    kinds: int = 1,
    vocab: int = 256,
    dropout: float = 0.0,
    hidden: int | None = None,
    mask: int | None = None,
    eps: float = 1e-12,
    activation: GELU = "gelu",
    full_up_to: int = 0,
) -> MLM:
    """BigBird (Zaheer et al., 2020, arXiv:2007.14062): a window, global tokens and random blocks.

    Choose it over `longformer` if distant tokens should meet within few layers without many global tokens. Random
    blocks make the paths between any two tokens short. The model trains on the prediction of masked tokens.

    d: model width.
    depth: number of layers.
    heads: number of attention heads; each head has its own random blocks.
    head_dim: width of a head; d / heads if None.
    form: "itc" makes the first and the last block of a text global. "etc" adds `nodes` learned global tokens outside
        the text.
    block: positions in a block. The paper has 64 for rows of 4,096; 16 gives as many blocks for rows of 1,024.
    window: blocks on either side of its own that a block reads; 1 gives the paper's three blocks.
    keys: number of random blocks that each block draws; 0 for none. The blocks that are read anyway are excluded. With
        "published" the random blocks may include the last block, which is global, and blocks after the end of the text.
    draw: choice of the random blocks. With "past" each block draws from earlier blocks, and a drawn block reads the
        drawing block too. The choice is then the same at every length, but early blocks read more. With "published"
        each block draws from the first 16 blocks, as in the authors' code. With "row" each block draws the same number
        of blocks from its whole row. With "first" every draw is the first block, whose keys then count `keys` + 1
        times, as in Hugging Face transformers outside training; it needs form "itc". All draws are computed from layer,
        head and block, so a loaded checkpoint has the same draws.
    tables: fixed lists of blocks in place of random ones, such as the lists of a published model. Give one pattern
        expression for all layers, or a tuple with one for each. `Blocks(((), (2, 5)), 16)` lists the blocks that blocks
        0 and 1 of the text read besides window and global blocks. Two heads with different blocks are
        "Heads(Blocks(((), (2, 5)), 16), Blocks(((), (3, 4)), 16))".
    nodes: number of global tokens outside the text (form "etc").
    length: longest row in tokens.
    kinds: number of segment types.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    hidden: width of the feed-forward layers; 4 d if None.
    mask: id of masked tokens, if it is one of the tokens, as in published vocabularies; `vocab` if None.
    eps: epsilon of the norms.
    activation: nonlinearity of the feed-forward layers and of the head; "gelu_tanh" in published models.
    full_up_to: rows of at most this many tokens have full attention (form "itc"); 0 for none. Hugging Face
        transformers has (5 + 2 keys) blocks.
    """
    for name, value, least in (("keys", keys, 0), ("window", window, 0), ("block", block, 1), ("nodes", nodes, 1)):
        check_at_least(name, value, least)
    itc = form == "itc"
    if draw == "first" and not itc:
        raise ValueError(
            f"draw={draw!r} repeats the first block, but form={form!r} has no global blocks; use form='itc'"
        )
    fixed = None if tables is None else one_per_layer("tables", tables, depth)

    def random(n: int) -> Pattern:
        if fixed is not None:
            return parse(fixed[n])
        first = 1 if itc else 0  # in "itc" every query reads the first block anyway
        if draw == "published":
            return PublishedRandom(keys, block, n, first=first, window=window)
        return Random(keys, block, n, symmetric=True, first=first, back=window + 1)

    def pattern(n: int) -> Pattern:
        near: Pattern = Block(block, window, window)
        near = near | random(n) if fixed or (keys and draw in ("past", "published")) else near
        wide = block if itc else nodes
        return (near if itc else Shifted(near, nodes)) | Tokens(wide) | Rows(wide)

    def layer(n: int) -> Layer:
        repeats = RepeatedKeys(block, keys + 1, full_up_to) if draw == "first" else None
        mechanism = Softmax(pattern(n), repeats, dropout=dropout, lse=False)
        mlp = MLP(d, hidden, activation=activation)
        attention = Attention(QKV(d, heads, head_dim=head_dim), mechanism)
        post_norm = PostNorm(attention, mlp, norm=partial(LayerNorm, eps=eps), dropout=dropout)
        if fixed or not keys or draw != "row":
            return post_norm
        ends, before = (1, 0) if itc else (0, nodes)
        return RandomKeys(post_norm, keys, block, n, first=ends, last=ends, window=window, before=before)

    stack = Stack([layer(n) for n in range(check_at_least("depth", depth, 1))])
    body: Layer = GlobalEnds(stack, block, full_up_to) if itc else GlobalNodes(stack, nodes)
    options: dict[str, Any] = {"eps": eps, "dropout": dropout, "mask": mask, "activation": activation}
    return MLM(vocab, d, body, position=Learned(d, length), kinds=kinds, **options)


TINY: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "block": 2, "keys": 1, "length": 64, "vocab": 11}
EXAMPLES = (
    lambda: bigbird(**TINY),
    lambda: bigbird(**TINY, draw="row"),
    lambda: bigbird(**TINY, draw="first", full_up_to=14, hidden=24, mask=3, eps=1e-5, activation="gelu_tanh"),
    lambda: bigbird(**TINY, draw="row", form="etc", nodes=3),
    lambda: bigbird(**TINY, draw="published", form="etc", nodes=2, head_dim=6),
    lambda: bigbird(d=16, depth=2, heads=2, block=2, length=64, vocab=11, tables="Blocks(((), (0,)), 2)"),
    lambda: bigbird(
        d=16, depth=2, heads=2, block=2, length=64, vocab=11, tables=("Blocks(((), (0,)), 2)", "Blocks(((1,), ()), 2)")
    ),
)
