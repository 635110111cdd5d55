"""Early-exit models: a decoder that tokens leave early, with or without an encoder before it."""

from typing import Any, Literal

from torch import nn

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.layer import Layer
from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.causal import Causal
from kinformer.members.support.encoder_decoder import embedding_std, encoder_decoder_blocks
from kinformer.members.support.wiring import Wiring
from kinformer.models.multi_exit import MultiExit
from kinformer.models.multi_exit_seq2seq import MultiExitSeq2Seq
from kinformer.models.support.exit_losses import Outputs
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.uniform_exit import UniformExit
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.norms.layer import LayerNorm

Form = Literal["decoder", "encoder_decoder"]


def early_exit(
    wiring: Wiring,
    form: Form,
    depth: int,
    pattern: str,
    rule: ExitRule,
    *,
    vocab: int,
    outputs: Outputs = "shared",
    paths: int = 0,
    gamma: float | None = None,
    **training: Any,
) -> MultiExit | MultiExitSeq2Seq:
    """Build a model like `gpt` or `transformer` with a decoder that tokens can leave early.

    wiring: positions, norms, heads and dropout of the model.
    form: "decoder" for a model like `gpt`, "encoder_decoder" for one like `transformer`.
    depth: number of layers of each stack.
    pattern: pattern of self-attention; with an encoder, it holds for both stacks. If it is causal without other limits,
        the encoder reads both directions.
    rule: exit rule, which decides after which layer a token leaves.
    vocab: vocabulary size, in tokens.
    outputs: "shared" for one norm and head, tied to the embedding; "each" for a norm and a head at each exit.
    paths: number of forward passes with random exits in training; 0 for one pass without exits.
    gamma: `gamma` of `EarlyExit`.
    training: further keywords of `MultiExit`.
    """

    def exits(layers: tuple[Layer, ...]) -> EarlyExit:
        norms = [LayerNorm(wiring.d) if wiring.norm == "pre" else nn.Identity() for _ in layers]
        exit_draw = UniformExit(depth) if check_at_least("paths", paths, 0) else None
        return EarlyExit(layers, norms if outputs == "each" else norms[0], rule, chance=exit_draw, gamma=gamma)

    training |= {"outputs": outputs, "tie": outputs == "shared", "paths": max(paths, 1)}
    if check_option("form", form, Form) == "decoder":
        layers = tuple(
            wiring.block(wiring.attention(pattern, dropout=wiring.dropout), MLP(wiring.d, activation="gelu_tanh"))
            for _ in range(check_at_least("depth", depth, 1))
        )
        body, options = exits(layers), {"position": wiring.added_position(), "dropout": wiring.dropout, **training}
        return MultiExit(vocab, wiring.d, body, scale=wiring.scale, std=wiring.start, **options)
    sides = "Full()" if parse(pattern) == Causal() else pattern
    encoder, decoder = encoder_decoder_blocks(wiring, depth, None, sides, dropout=wiring.dropout)
    options = {"position": wiring.added_position(), "dropout": wiring.dropout, **training}
    return MultiExitSeq2Seq(
        vocab,
        wiring.d,
        wiring.stack(encoder),
        exits(decoder),
        scale=wiring.d**0.5,
        std=embedding_std(wiring),
        **options,
    )
