"""GPT-NeoX: attention and the feed-forward layer of a block read the same input."""

from functools import partial

from torch import nn

from kinformer.core.checks import check_at_least, check_flag, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.patterns.causal import Causal
from kinformer.core.rotary_scaling import scaling_named
from kinformer.models.lm import LM
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.parallel_sublayers import ParallelSublayers
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP, Activation
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.projections.qkv import QKV


def quarter(head_dim: int) -> int:
    """Return the default number of rotating components of a head: an even quarter, at least 2.

    head_dim: width of a head.
    """
    return 2 * max(1, head_dim // 8)


@member(cost="L**2")
def gpt_neox(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    hidden: int | None = None,
    vocab: int = 256,
    base: float = 10000.0,
    turned: int | None = None,
    parallel: bool = True,
    activation: Activation = "gelu",
    bias: bool = True,
    eps: float = 1e-5,
    tie: bool = False,
    scaling: str | None = None,
) -> LM:
    """GPT-NeoX (Black et al., 2022, arXiv:2204.06745): a decoder with parallel sublayers.

    A block is x + attention(norm(x)) + mlp(norm'(x)), as in GPT-J. Only a quarter of each head rotates with the
    position. Choose it to load or continue the models of the Pythia suite (Biderman et al., 2023, arXiv:2304.01373),
    with 154 saved steps of each size.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    hidden: width of the feed-forward layers; 4 d if None.
    vocab: vocabulary size, in tokens.
    base: base of the rotation frequencies; it sets the slowest rotation.
    turned: number of components of a head that rotate; a quarter, at least 2, if None.
    parallel: True adds both sublayers to the same input. False lets the feed-forward layer read the output of
        attention, as in GPT-2.
    activation: nonlinearity of the feed-forward layers.
    bias: use biases in the linear maps of attention.
    eps: epsilon of the norms.
    tie: use the embedding as the output head.
    scaling: change of the rotations for rows longer than in training, as text such as "yarn:factor=4,length=8192"
        (`kinformer list scalings`); None for none.
    """
    norm = partial(LayerNorm, eps=eps)
    width = resolve_head_dim(d, heads, head_dim)
    check_flag("parallel", parallel)

    def block() -> PreNorm:
        rotation = Rotary(
            width,
            base=base,
            pairs="half",
            turned=quarter(width) if turned is None else turned,
            scaling=scaling_named(scaling),
        )
        projection = QKV(d, heads, head_dim=width, rotation=rotation, bias=bias)
        output = OutProjection(heads, width, d, bias=bias)
        attention = Attention(projection, Softmax(Causal(), lse=False), aggregation=output)
        mlp = MLP(d, hidden, activation=activation)
        if parallel:
            return PreNorm(ParallelSublayers(attention, mlp, norm=norm), norm=nn.Identity)
        return PreNorm(attention, mlp, norm=norm)

    blocks = [block() for _ in range(check_at_least("depth", depth, 1))]
    return LM(vocab, d, Stack(blocks, norm(d)), tie=tie)


EXAMPLES = (
    lambda: gpt_neox(d=16, depth=2, heads=2, vocab=11),
    lambda: gpt_neox(
        d=16,
        depth=2,
        heads=2,
        head_dim=6,
        hidden=24,
        vocab=11,
        turned=4,
        parallel=False,
        activation="gelu_tanh",
        bias=False,
        eps=1e-3,
        tie=True,
        scaling="ntk:factor=4",
    ),
)
