"""RepeatedKeys: a bias that lets most queries count the first block of keys several times."""

import math
from collections.abc import Mapping
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.bias import Bias, ScoreFn, at
from kinformer.core.checks import check_at_least
from kinformer.core.example import Example
from kinformer.core.heads import StateSpec
from kinformer.core.mechanism import NoState
from kinformer.core.request import Request


class RepeatedKeys(Bias):
    """Bias that adds log(times) to the scores of the first block of keys, as BigBird in effect does.

    score_ij + log(times) if j < block <= i < end

    Here `end` is the first position of the row's last block. Choose it only for weights of BigBird from Hugging Face
    transformers. Outside training, all random blocks of its queries are copies of the first block. A softmax over them
    counts that block `times` times. Queries of the first and the last block are global and read every block once.

    block: number of positions in a block.
    times: number of times that the keys of the first block count; 1 plus the number of random blocks.
    full_up_to: rows of at most this many tokens have full attention, so their keys count once.

    Errors: NoState from `start`, since the last block is known only from the whole row. Source: BigBird (Zaheer et al.,
    2020, arXiv:2007.14062) as in transformers 5.23.
    """

    def __init__(self, block: int, times: int, full_up_to: int = 0):
        super().__init__()
        self.block, self.times = check_at_least("block", block, 1), check_at_least("times", times, 1)
        self.full_up_to = check_at_least("full_up_to", full_up_to, 0)

    def start(self, spec: StateSpec) -> NoReturn:
        raise NoState(
            "RepeatedKeys has no decoding state: the last block is known only from the whole row. Use a causal layer"
        )

    def prepare(self, request: Request) -> Mapping[str, Float[Tensor, "B H T 1"]]:
        q, pos = request.queries.q, request.queries.pos
        last = F.pad(request.keys.pos, (0, 1), value=-1).amax(-1, keepdim=True)  # [B 1 1]
        between = (pos >= self.block) & (pos < last // self.block * self.block) & (last >= self.full_up_to)
        wide = torch.promote_types(q.dtype, torch.float32)
        term = between.to(wide) * math.log(self.times)
        return {"repeats": term.expand(-1, q.shape[1], -1)[..., None]}

    def bind(self, piece: Request) -> ScoreFn:
        term, k_pos = piece.queries.extras["repeats"], piece.keys.pos

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + torch.where(at(k_pos, b, h, j) < self.block, term[b, h, i, 0], 0.0).to(s.dtype)

        return score


_LATER = {"peek": "queries of the last block count keys once, and the last block is known only from the whole row"}
EXAMPLES = (Example(lambda: RepeatedKeys(2, 3), _LATER), Example(lambda: RepeatedKeys(3, 2, full_up_to=4), _LATER))
