"""MultiExit: a language model with early exits that learns to predict at each exit."""

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
    """Language model that is trained to predict at every exit of an `EarlyExit`.

    loss = sum_n w_n NLL_n / sum_n w_n + alpha * L_exit

    An `EarlyExit` is a stack of layers that tokens can leave after each layer. Choose this model to save computation on
    easy tokens; choose `LM` if all tokens should use all layers. NLL_n is the loss of the predictions at exit n. L_exit
    is the loss of the exit rule, if the rule has parameters. Training computes every exit for all tokens; in eval mode
    tokens exit early. `judge` also reports the mean number of layers per token, as "layers". If the EarlyExit has a
    `chance` (a rule of random exits), tokens exit in training too. The first term is then the mean NLL of
    `paths` forward passes (mixed training, equation 5; the paper's results use aligned training, as above).

    vocab, d, kwargs: arguments of `LM`.
    body: an `EarlyExit`.
    weights: weights w_n of the exits, as in `aligned`.
    alpha: weight of L_exit; the papers train the exit rule together with the layers or after them.
    paths: number of forward passes per batch in mixed training, each with new random exits; the paper's M, 1, 3 and 6.
    outputs: "shared" for one head at all exits, "each" for one head per exit, which cannot be tied to the embedding.
        The paper has both.

    Errors: ValueError for a body that is no EarlyExit, for the exit rule `BySequence`, and for unknown `weights`.
    ValueError also for outputs="each" with a tied head, and for a state in mixed training; and the errors of `LM`.
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
        """Raise ValueError for the exit rule `BySequence`, and for trainable exit rules inside the layers.

        This model's loss does not train the latter.
        """
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
