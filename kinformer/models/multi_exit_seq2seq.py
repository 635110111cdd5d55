"""MultiExitSeq2Seq: an encoder-decoder with early exits that learns to predict at each exit."""

from typing import Any

import kinformer as kf
from kinformer.core.checks import check_part
from kinformer.core.layer import Layer
from kinformer.models.seq2seq import Pair, Seq2Seq
from kinformer.models.support.exit_losses import ExitOutputs, ManyExits, Outputs
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.losses.aligned_exits import Weights


class MultiExitSeq2Seq(ManyExits, Seq2Seq):
    """Sequence-to-sequence model with an `EarlyExit` as its decoder, trained like `MultiExit`.

    An `EarlyExit` is a stack of layers that tokens can leave after each layer. The papers have this form of model.
    Choose it for pairs of sequences, and for the exit rule `BySequence`, which reads the encoder's output. Choose
    `Seq2Seq` if all tokens should use all layers. The loss of the exit rule also trains the encoder. Label smoothing
    applies to the targets of every exit.

    vocab, d, encoder, kwargs: arguments of `Seq2Seq`.
    decoder: an `EarlyExit`.
    weights, alpha, paths, outputs: arguments of `MultiExit`.

    Errors: ValueError for a decoder that is no EarlyExit, for trainable exit rules inside its layers or in the encoder,
    and for unknown `weights`; and the errors of `Seq2Seq`.
    Source: Elbayad et al., 2019, arXiv:1910.10073; Schuster et al., 2022, arXiv:2207.07061.
    """

    decoder: EarlyExit

    def __init__(
        self,
        vocab: int,
        d: int,
        encoder: Layer,
        decoder: EarlyExit,
        *,
        weights: Weights = "uniform",
        alpha: float = 1.0,
        paths: int = 1,
        outputs: Outputs = "shared",
        **kwargs: Any,
    ):
        check_part("decoder", decoder, EarlyExit, "an EarlyExit of the layers, their norms and a rule")
        super().__init__(vocab, d, encoder, decoder, **kwargs)
        self.set_training(weights, alpha, paths, outputs)

    @property
    def exits(self) -> EarlyExit:
        return self.decoder

    def every_exit(self, batch: Pair) -> ExitOutputs:
        read, targets = self.framed_targets(batch)
        ctx = self.context(self._with_source(read, batch[0], None, None)[1])
        _, states, logits = self._read_every_exit(lambda taps: self._decode(read, None, ctx.replace(taps=taps)))
        return ExitOutputs(states, logits, targets, ctx)


def _example() -> MultiExitSeq2Seq:
    def block() -> kf.PreNorm:
        itself, source = kf.Softmax(kf.Causal()), kf.Softmax(kf.Full())
        return kf.PreNorm(
            kf.Attention(kf.QKV(16, 2), itself), kf.Attention(kf.QKV(16, 2), source, cross=True), kf.MLP(16)
        )

    encoder = kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full())), kf.MLP(16))
    decoder = EarlyExit([block() for _ in range(3)], kf.LayerNorm(16), kf.BySequence(16, 3))
    return MultiExitSeq2Seq(11, 16, encoder, decoder)


EXAMPLES = (_example,)
