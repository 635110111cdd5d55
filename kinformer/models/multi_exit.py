"""MultiExit: a language model that learns to predict at every exit, and when to leave."""

import math
from typing import Any

from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import a_part, one_of, within
from kinformer.core.layer import Layer
from kinformer.core.loss import Loss, gathered, mean, surprise, weighed
from kinformer.core.model import Judged, total
from kinformer.core.numbering import Numbered, numbered
from kinformer.depth.early_exit import EarlyExit
from kinformer.exits.rules import BySequence
from kinformer.losses.aligned import Weights, aligned
from kinformer.models.lm import LM, next_tokens
from kinformer.models.support.exits import refuse_rules
from kinformer.models.support.sliding import fitted, in_windows


class MultiExit(LM):
    """An `LM` over an `EarlyExit`. Training reads every exit with nobody having left; in eval mode tokens leave.

    loss = sum_n w_n NLL_n / sum_n w_n + alpha * L_exit. All exits are read by the one head, L_exit is what the rule
    learns by, where it does. `judge` also counts the layers that a token takes, as "layers". Of Elbayad et al. are left
    out: mixed training with sampled exits, the scaling of gradients by layer, and an output classifier per layer.

    weights: the w_n of `aligned`.
    alpha: the weight of L_exit; the papers train the rule beside, or after, the layers.

    Others: those of `LM`. Errors: ValueError for a body that is no EarlyExit, for `BySequence`, and other weights; the
    LM's. Source: Elbayad et al., 2019, arXiv:1910.10073, section 2.1; Schuster et al., 2022, arXiv:2207.07061, section
    3.5.
    """

    body: EarlyExit

    def __init__(
        self, vocab: int, d: int, body: EarlyExit, *, weights: Weights = "uniform", alpha: float = 1.0, **others: Any
    ):
        a_part("body", body, EarlyExit, "an EarlyExit of the layers, their norms and a rule")
        super().__init__(vocab, d, body, **others)
        self.weights, self.alpha = one_of("weights", weights, Weights), within("alpha", alpha, 0, math.inf)

    def refuse_untrained(self, body: Layer) -> None:
        """ValueError for a rule that reads a source, and for one within the layers, which this loss would not train."""
        assert isinstance(body, EarlyExit)
        if isinstance(body.rule, BySequence):
            raise ValueError("MultiExit has no source for BySequence to read; give one such as Multinomial(d, depth)")
        for layer in body.layers:
            refuse_rules(self, layer)

    def forward(self, batch: Int[Tensor, "B T"], state: Numbered | None = None, progress: float = 1.0) -> Loss:
        """The loss of predicting each token from those before it at every exit."""
        read, wanted = batch[:, :-1], next_tokens(batch)
        names = tuple(str(n) for n in range(len(self.body.layers)))
        out = self.logits(read, state, numbered(read, state).but(taps=names))
        states, real = [out.taps[name] for name in names], wanted >= 0
        logits = [self.head(norm(h)) for norm, h in zip(self.body.heads[:-1], states[:-1], strict=True)] + [out.y]
        exits, count = aligned(logits, wanted, self.weights)
        exits = exits / count.clamp_min(1)
        sums = gathered(out.aux, real)  # of tokens that predict one
        parts = {"nll": mean(surprise(out.y, wanted), real), "exits": exits, **sums}
        loss = weighed(exits, sums, self.penalties)
        learned = self.body.rule.loss(states, logits, wanted)
        if learned is not None:
            parts["leaving"] = mean(learned, real)
            loss = loss + self.alpha * parts["leaving"]
        return Loss(loss, parts, out.state, out.stats, count)

    def judge(self, batch: Int[Tensor, "B T"], state: Numbered | None = None) -> Judged:
        """The bits that each token costs but the first of a row, and the layers that each takes."""
        batch = fitted(self, batch, -1, state)
        out = in_windows(lambda some: self.logits(some, state), batch[:, :-1], self.window, state)
        wanted = next_tokens(batch)
        bits, real = surprise(out.y, wanted) / math.log(2), wanted >= 0
        return Judged({self.metric.name: total(bits, real), "layers": total(out.aux["exit"], real)}, out.state)


def _example() -> MultiExit:
    from kinformer.attention import Attention
    from kinformer.blocks.pre_norm import PreNorm
    from kinformer.exits.confidence import Probe
    from kinformer.exits.rules import Confident
    from kinformer.feedforward.mlp import MLP
    from kinformer.mechanisms.softmax import Softmax
    from kinformer.norms.layer import LayerNorm
    from kinformer.patterns.causal import Causal
    from kinformer.projections.qkv import QKV

    blocks = [PreNorm(Attention(QKV(16, 2), Softmax(Causal())), MLP(16)) for _ in range(3)]
    body = EarlyExit(blocks, [LayerNorm(16) for _ in blocks], Confident(Probe(16), 0.5))
    return MultiExit(11, 16, body, weights="linear")


EXAMPLES = (_example,)
