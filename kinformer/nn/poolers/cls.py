"""CLSPooler: one vector for a row from an extra token at its start."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.pooler import Pooler


class CLSPooler(Pooler):
    """Vector of an extra [CLS] token before the row, through a linear layer and tanh.

    It represents the whole row, and a classifier reads it. The model adds the token before it reads the row (method
    `rows`). BERT pools in this way.

    d: width of a vector.

    Errors: ValueError if rows have length 0.

    Source: Devlin et al., 2018, arXiv:1810.04805, section 3.
    """

    own = 1

    def __init__(self, d: int):
        super().__init__()
        self.dense = nn.Linear(d, d)

    def rows(self, tokens: Int[Tensor, "B T"], mark: int) -> Int[Tensor, "B _"]:
        before = _padding_before(tokens < 0)
        longer = torch.cat([torch.full_like(tokens[:, :1], -1), tokens], 1)
        return longer.scatter(1, before, mark)  # after any padding at the start of the row

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        if not y.shape[1]:
            raise ValueError(
                "CLSPooler got rows without tokens: it reads the first token, which its rows() puts before each row"
            )
        at = _padding_before(~real).clamp_max(y.shape[1] - 1)
        return self.dense(y.take_along_dim(at[..., None], 1)[:, 0]).tanh()


def _padding_before(padding: Bool[Tensor, "B T"]) -> Int[Tensor, "B 1"]:
    return padding.long().cumprod(1).sum(1, keepdim=True)


EXAMPLES = (lambda: CLSPooler(16),)
