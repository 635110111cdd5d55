"""TextModel: base class of models that predict the next token of a text, with their evaluation."""

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
    """Base class of models that predict the next token; their metric is the bits of each token.

    `vocab` is the number of tokens. A subclass supplies `logits`, `start` and `forward`.
    """

    reads: ClassVar[str] = "text"
    metric = Metric("bits per byte", "bits")
    vocab: int

    def judge(self, batch: Tokens, state: Any = None) -> EvaluationSums:
        """Return the sums for the bits of each token except the first of a row.

        The accuracy is added if the batch marks scored tokens.
        """
        batch = fit_to_window(self, TokenBatch.from_tokens(batch), -1, state)
        read, targets = batch.tokens[:, :-1], next_tokens(batch)
        if batch.documents is None:
            out = read_in_windows(lambda window: self.logits(window, state), read, self.window, state)
        else:
            out = self.logits(read, state, batch.limit_context(context_of_tokens(read, state), -1, state))
        answers = {} if batch.scored is None else accuracy(out.y, targets)
        return EvaluationSums({**answers, **self.metric_sums(out, targets)}, out.state, F.pad(targets >= 0, (1, 0)))

    def metric_sums(self, out: Out, targets: Int[Tensor, "B T"]) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Return the sums for the metric over all targets.

        The steps per token are added if the body has adaptive computation time.

        out: output of the model.
        targets: token to predict at each position; -1 for none.
        """
        bits = sum_and_count(token_nll(out.y, targets) / math.log(2), targets >= 0)
        return {type(self).metric.name: bits, **halting_steps(out, targets >= 0)}

    def sample(self, rows: int, length: int, seed: int) -> Int[Tensor, "B T"]:
        """Return rows of `length` random tokens, to test the model with."""
        return random_tokens(self.vocab, rows, length, seed)


def next_tokens(batch: TokenBatch) -> Int[Tensor, "B _"]:
    """Return the target of each token except the last of its row: the token after it.

    The target is -1 if either token is padding, if the next token is not scored, or if it is of another document.

    batch: rows of tokens.
    """
    targets = batch.targets[:, 1:].masked_fill(batch.tokens[:, :-1] < 0, -1)
    return targets if batch.documents is None else targets.masked_fill(batch.documents.diff() != 0, -1)
