"""WrappedLM: a trained language model with changed predictions of the next token."""

from typing import Any

from jaxtyping import Int
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.core.checks import check_part
from kinformer.core.layer import Context, Device, Dtype
from kinformer.core.loss import Loss, masked_mean, token_nll
from kinformer.core.token_positions import NumberedState, context_of_tokens
from kinformer.models.lm import LM
from kinformer.models.support.text_model import TextModel, Tokens, next_tokens


class WrappedLM(TextModel):
    """Base class of wrappers of a trained model that change its predictions of the next token.

    A wrapper has the model's vocabulary, tokenizer and metric, and is used as the model is. It has no weights of its
    own, so a saved folder holds only the model. A subclass supplies `logits`.

    model: a trained `LM` or `WrappedLM`.
    """

    def __init__(self, model: "LM | WrappedLM"):
        super().__init__()
        self.model = check_part("model", model, (LM, WrappedLM), "a language model, such as load(folder)")
        self.vocab: int = model.vocab
        self.d: int = model.d
        self.lanes, self.metric = model.lanes, model.metric
        self.trained_length, self.trained_on = model.trained_length, model.trained_on
        self.tokenizer, self.labels = model.tokenizer, model.labels
        self.member: Any = getattr(model, "member", None)

    @property
    def embedding(self) -> Any:
        """Embedding of the wrapped model."""
        return self.model.embedding

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> Any:
        return self.model.start(batch, length, dtype=dtype, device=device)

    def forward(self, batch: Tokens, state: Any = None, progress: float = 0.0) -> Loss:
        """Return the loss of predicting each token, or each scored token, from the tokens before it."""
        batch = TokenBatch.from_tokens(batch)
        read, targets = batch.tokens[:, :-1], next_tokens(batch)
        out = self.logits(read, state, batch.limit_context(number_tokens(read, state), -1, state))
        nll = masked_mean(token_nll(out.y, targets), targets >= 0)
        return Loss(nll, {"nll": nll}, out.state, out.stats, (targets >= 0).sum())

    def sample(self, rows: int, length: int, seed: int) -> Int[Tensor, "B T"]:
        return self.model.sample(rows, length, seed)


def number_tokens(tokens: Int[Tensor, "B T"], state: Any) -> Context:
    """Return the context of tokens whose positions count from 0, or continue from a state.

    tokens: rows of tokens.
    state: decoding state of any form to continue from; None starts at position 0.
    """
    return context_of_tokens(tokens, None if state is None else NumberedState(state.now, ()))
