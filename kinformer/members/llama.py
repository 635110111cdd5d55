"""Llama: a decoder with rotary positions, RMS norms and a gated feed-forward layer."""

from functools import partial
from typing import Literal

from kinformer.core.checks import check_flag, check_option, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.pattern_parser import parse
from kinformer.core.rotary_scaling import scaling_named
from kinformer.members.support.window_sizes import one_per_layer
from kinformer.models.lm import LM
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import Activation, GatedMLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.rms import RMSNorm
from kinformer.nn.positions.rotary import Pairs, Rotary
from kinformer.nn.projections.qkv import QKV

Biases = Literal["none", "qkv", "attention", "all"]


@member(cost="L**2")
def llama(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    key_heads: int = 2,
    hidden: int | None = None,
    vocab: int = 256,
    base: float = 10000.0,
    pairs: Pairs = "half",
    turned: int | None = None,
    tie: bool = False,
    pattern: str | tuple[str, ...] = "Causal()",
    activation: Activation = "silu",
    bias: Biases = "none",
    query_norm: bool = False,
    eps: float = 1e-6,
    scaling: str | None = None,
) -> LM:
    """Llama (Touvron et al., 2023, arXiv:2302.13971): the most common architecture of current decoders.

    It has rotary positions, RMS norms, a gated feed-forward layer and no biases. Choose it over `gpt` for a smaller
    cache. Train it at the length that it will read. The rotations have no end, but distances beyond the training length
    make its predictions worse. Choose `bloom` for longer rows, or a `scaling` if the model is already trained.

    d: model width.
    depth: number of blocks.
    heads: number of query heads.
    head_dim: width of a head; d / heads if None.
    key_heads: number of heads of keys and values; heads / key_heads query heads share each, as in Llama 2
        (arXiv:2307.09288).
    hidden: width of the feed-forward layer; 8/3 d if None.
    vocab: vocabulary size, in tokens.
    base: base of the rotation frequencies; it sets the slowest rotation.
    pairs: pairs of a head's numbers that rotate together: the "half" layout of the published weights, or "interleaved"
        as in RoPE's paper (arXiv:2104.09864).
    turned: number of components of a head that rotate; all if None, a quarter in GPT-NeoX (arXiv:2204.06745).
    tie: use the embedding as the output head.
    pattern: expression for the tokens that each token reads; one for every block, or a tuple with one for each block
        from the bottom. Mistral reads a window: "Causal() & Band(4095)".
    activation: nonlinearity of the feed-forward gate.
    bias: linear maps with a bias: "none" as in Llama, "qkv" (queries, keys and values) as in Qwen2, "attention" (these
        and the output of attention), or "all".
    query_norm: normalise each head's queries and keys, as in Qwen3.
    eps: epsilon of the norms; 1e-5 in Llama 2 and later.
    scaling: change of the rotations for rows longer than in training, as text such as "yarn:factor=4,length=8192"
        (`kinformer list scalings`); None for none.
    """
    check_option("bias", bias, Biases)
    norm = partial(RMSNorm, eps=eps)
    head_norm = norm if check_flag("query_norm", query_norm) else None
    width = resolve_head_dim(d, heads, head_dim)

    def block(reads: str) -> PreNorm:
        rotation = Rotary(width, base=base, pairs=pairs, turned=turned, scaling=scaling_named(scaling))
        projection = QKV(
            d, heads, head_dim=head_dim, key_heads=key_heads, rotation=rotation, bias=bias != "none", norm=head_norm
        )
        output = OutProjection(heads, width, d, bias=bias in ("attention", "all"))
        attention = Attention(projection, Softmax(parse(reads), lse=False), aggregation=output)
        return PreNorm(attention, GatedMLP(d, hidden, activation=activation, bias=bias == "all"), norm=norm)

    blocks = [block(reads) for reads in one_per_layer("pattern", pattern, depth)]
    return LM(vocab, d, Stack(blocks, norm(d)), tie=tie)


EXAMPLES = (
    lambda: llama(d=16, depth=2, heads=4, key_heads=2, vocab=11),
    lambda: llama(d=16, depth=1, heads=2, key_heads=1, hidden=24, vocab=11, tie=True),
    lambda: llama(d=16, depth=1, heads=2, key_heads=1, pairs="interleaved", turned=4, vocab=11, bias="all"),
    lambda: llama(
        d=16,
        depth=2,
        heads=2,
        key_heads=1,
        head_dim=6,
        vocab=11,
        pattern=("Causal()", "Causal() & Band(3)"),
        activation="gelu_tanh",
        bias="qkv",
        query_norm=True,
        eps=1e-5,
    ),
    lambda: llama(d=16, depth=1, heads=2, key_heads=1, vocab=11, bias="attention"),
    lambda: llama(d=16, depth=1, heads=2, key_heads=1, vocab=11, scaling="yarn:factor=4,length=16"),
)
