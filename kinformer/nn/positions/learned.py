"""Learned: a trained vector for each position."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_at_least
from kinformer.core.position import Position


class Learned(Position):
    """Trained vector for each position, 0 at padding.

    BERT and GPT-2 use it. It has a fixed length, and its vectors for positions beyond the training length stay random.
    If a text is longer than the table, `generate` and evaluation read its last half again from position 0
    (kinformer.models.support.sliding_reader). A forward call with a longer row is an error.

    d: width of a vector.
    length: number of positions of the table.

    Errors: IndexError if a position is beyond the table. On a GPU, its own assertion fails instead, so that the host
    does not wait for it.

    Source: Gehring et al., 2017, arXiv:1705.03122, section 3.1.
    """

    def __init__(self, d: int, length: int = 1024):
        super().__init__()
        self.length = check_at_least("length", length, 1)
        self.table = nn.Embedding(length, check_at_least("d", d, 1))
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        if not torch.compiler.is_compiling() and pos.numel():
            self._check(pos)
        # expanded copies of one row are looked up once
        rows = pos[:1] if len(pos) and pos.stride(0) == 0 else pos
        vectors = self.table(rows.clamp_min(0)) * (rows >= 0)[..., None]
        return vectors.expand(len(pos), -1, -1)

    def _check(self, pos: Int[Tensor, "B T"]) -> None:
        length = self.table.num_embeddings
        advice = (
            f"is beyond the table of {length} learned positions: the model reads at most {length} tokens. Give a "
            "shorter text, or build the model with a larger length"
        )
        if pos.device.type != "cpu":
            torch._assert_async((pos < length).all(), f"a position {advice}")  # does not wait for the device
        elif (max_pos := int(pos.max())) >= length:
            raise IndexError(f"position {max_pos} {advice}")


EXAMPLES = (lambda: Learned(16, 64),)
