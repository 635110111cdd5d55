"""MultiExit: a language model that learns to predict at every exit, and learns when to exit."""

from typing import Any

import kinformer as kf
from kinformer.core.batch import TokenBatch
from kinformer.core.checks import check_part
from kinformer.core.layer import Layer
from kinformer.core.token_positions import context_of_tokens
from kinformer.models.lm import LM
from kinformer.models.support.exit_losses import ExitOutputs, ManyExits, Outputs
from kinformer.models.support.text_model import Tokens, next_tokens
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.exits.by_sequence import BySequence
from kinformer.nn.losses.aligned_exits import Weights


class MultiExit(ManyExits, LM):
    """Language model over an `EarlyExit` that is trained at every exit.

    loss = sum_n w_n NLL_n / sum_n w_n + alpha * L_exit

    Choose it to save computation on easy tokens; choose `LM` if all tokens should use all layers. L_exit is the loss of
    the exit rule, if the rule learns. Training computes every exit for all tokens; in eval mode tokens exit early.
    `judge` also reports the mean number of layers per token, as "layers". If the EarlyExit has a `chance`, tokens exit
    in training too: the first term is then the mean NLL of `paths` forward passes (mixed training, equation 5; the
    paper uses aligned training).

    vocab, d, kwargs: arguments of `LM`.
    body: an `EarlyExit`.
    weights: weights w_n of the exits, as in `aligned`.
    alpha: weight of L_exit; the papers train the rule together with the layers or after them.
    paths: M, number of forward passes with newly drawn exits; 1, 3 and 6 in the paper.
    outputs: "shared" for one head at all exits, "each" for one head per exit, which cannot be tied to the embedding.
        The paper has both.

    Errors: ValueError for a body that is no EarlyExit, for `BySequence`, and for other weights. ValueError also for a
    tied head if each exit has its own, and for a state in mixed training; and the errors of `LM`.
    Source: Elbayad et al., 2019, arXiv:1910.10073, section 2.2; Schuster et al., 2022, arXiv:2207.07061, section 3.5.
    """

    body: EarlyExit

    def __init__(
        self,
        vocab: int,
        d: int,
        body: EarlyExit,
        *,
        weights: Weights = "uniform",
        alpha: float = 1.0,
        paths: int = 1,
        outputs: Outputs = "shared",
        **kwargs: Any,
    ):
        check_part("body", body, EarlyExit, "an EarlyExit of the layers, their norms and a rule")
        super().__init__(vocab, d, body, **kwargs)
        self.set_training(weights, alpha, paths, outputs)

    @property
    def exits(self) -> EarlyExit:
        return self.body

    def every_exit(self, batch: Tokens) -> ExitOutputs:
        batch = TokenBatch.from_tokens(batch)
        read = batch.tokens[:, :-1]
        ctx = self.context(batch.limit_context(context_of_tokens(read), -1))
        _, states, logits = self._read_every_exit(lambda taps: self.logits(read, None, ctx.replace(taps=taps)))
        return ExitOutputs(states, logits, next_tokens(batch), ctx)

    def refuse_untrained(self, part: Layer) -> None:
        """Raise ValueError for `BySequence`, and for rules inside the layers, which this loss does not train."""
        if isinstance(self.body.rule, BySequence):
            raise ValueError(
                "MultiExit has no source, which BySequence reads; give a rule such as Multinomial(d, depth), or use "
                "MultiExitSeq2Seq"
            )
        super().refuse_untrained(part)


def _example(balance: bool = False) -> MultiExit:
    blocks = [kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16)) for _ in range(3)]
    body = EarlyExit(
        blocks, [kf.LayerNorm(16) for _ in blocks], kf.ConfidenceThreshold(kf.Probe(16, balance=balance, depth=3), 0.5)
    )
    return MultiExit(11, 16, body, weights="linear")


EXAMPLES = (_example, lambda: _example(balance=True))
