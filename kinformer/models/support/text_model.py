"""TextModel: what models share that predict the next token of a text: how they are judged, and by what."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.batch import TokenBatch
from kinformer.core.layer import Out
from kinformer.core.loss import token_nll
from kinformer.core.model import EvaluationSums, Metric, Writer, accuracy, random_tokens, sum_and_count
from kinformer.core.token_positions import context_of_tokens
from kinformer.models.support.halting_steps import halting_steps
from kinformer.models.support.sliding_reader import fit_to_window, read_in_windows

Tokens = Int[Tensor, "B T"] | TokenBatch


class TextModel(Writer):
    """A model of texts: it reads rows of tokens, is judged by the bits of each, and goes on with them.

    `vocab` is how many tokens there are.
    """

    reads: ClassVar[str] = "text"
    metric = Metric("bits per byte", "bits")
    vocab: int

    def judge(self, batch: Tokens, state: Any = None) -> EvaluationSums:
        """The bits that each token costs but the first of a row; of what is scored alone also how much is right."""
        batch = fit_to_window(self, TokenBatch.from_tokens(batch), -1, state)
        read, targets = batch.tokens[:, :-1], next_tokens(batch)
        if batch.documents is None:
            out = read_in_windows(lambda window: self.logits(window, state), read, self.window, state)
        else:
            out = self.logits(read, state, batch.limit_context(context_of_tokens(read, state), -1, state))
        answers = {} if batch.scored is None else accuracy(out.y, targets)
        return EvaluationSums({**answers, **self.metric_sums(out, targets)}, out.state, F.pad(targets >= 0, (1, 0)))

    def metric_sums(self, out: Out, targets: Int[Tensor, "B T"]) -> Mapping[str, tuple[Tensor, Tensor]]:
        """The measures of a reading, over all targets; where its body halts, also the steps that a token takes."""
        bits = sum_and_count(token_nll(out.y, targets) / math.log(2), targets >= 0)
        return {type(self).metric.name: bits, **halting_steps(out, targets >= 0)}

    def sample(self, rows: int, length: int, seed: int) -> Int[Tensor, "B T"]:
        """Rows of `length` random tokens."""
        return random_tokens(self.vocab, rows, length, seed)


def next_tokens(batch: TokenBatch) -> Int[Tensor, "B _"]:
    """What each token but the last is to predict.

    -1 where it, or what comes after it, is padding, or that is not scored, or is of another document.
    """
    targets = batch.targets[:, 1:].masked_fill(batch.tokens[:, :-1] < 0, -1)
    return targets if batch.documents is None else targets.masked_fill(batch.documents.diff() != 0, -1)
