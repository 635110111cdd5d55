"""ResidualScores: the product of query and key, and the scores of the block beneath."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import if_given, within
from kinformer.core.layer import PerPair, Want
from kinformer.core.pair_map import PairMap
from kinformer.core.request import Request
from kinformer.core.score import Score
from kinformer.core.scores import mask
from kinformer.scores.product import Product


class ResidualScores(Score):
    """own * scale q_i.k_j + below * g(score of i and j in the block beneath): each block refines what that attended to.

    With both weights 1 it is RealFormer's, for no parameters and hardly any time: `Explicit(pattern,
    score=ResidualScores(), up=True)` in every block. The lowest block, which has none beneath, takes the product as it
    is. Scores grow with depth. A pair that a bias beneath shut out (-inf) stays out, unless `below` is 0.

    own, below: the weights of the two; 1 and 1 in RealFormer, 1 / n and 1 - 1 / n in block n of its running mean.
    change: g, what becomes of all scores from beneath at once, such as `MixHeads(heads)`; they stay as they are unless
        given.

    Errors: ValueError for scores from below of other pairs or of another number of heads. Source: He et al., 2020,
    arXiv:2012.11747; weights: prior from lower modules in Lin et al., 2021, arXiv:2106.04554.
    """

    wants = (Want("scores", optional=True),)

    def __init__(self, own: float = 1.0, below: float = 1.0, change: PairMap | None = None):
        super().__init__()
        self.change = if_given("change", change, PairMap, "a PairMap, such as MixHeads(heads)")
        self.own, self.below = (within(n, w, -math.inf, math.inf) for n, w in (("own", own), ("below", below)))
        self.product = Product()

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        own, sent = self.product(request), request.below.get("scores")
        if sent is None:
            return own
        beneath = checked(sent, request, tuple(own.shape))
        if not self.below:
            return self.own * own
        if self.change is not None:
            beneath = self.change(beneath, mask(request))
        # a negative weight would make of -inf the largest score of all
        return torch.where(beneath == -torch.inf, -torch.inf, self.own * own + self.below * beneath)


def checked(sent: object, request: Request, shape: tuple[int, ...]) -> Float[Tensor, "B H T S"]:
    """Scores from below, if they are for the pairs of a request.

    Positions that are one object are not looked at; others once for each forward.
    """
    if not isinstance(sent, PerPair):
        raise ValueError(
            f"what came up as 'scores' is {type(sent).__name__}; let the block beneath send PerPair scores"
        )
    here = request.queries.pos, request.keys.pos
    same = tuple(sent.scores.shape) == shape
    if same and not torch.compiler.is_compiling():  # a compiled graph cannot look, and knows no object again
        pairs = list(zip((sent.q_pos, sent.k_pos), here, strict=True))
        same = all(
            a is b or request.memo.get(lambda a=a, b=b: torch.equal(a, b), "equal", a, b)  # type: ignore[misc]
            for a, b in pairs
        )
    if not same:
        heads, queries, keys = sent.scores.shape[1:]
        raise ValueError(
            f"the scores from below ({heads} heads x {queries} queries x {keys} keys) are not for this layer's "
            f"{shape[1]} x {shape[2]} x {shape[3]} pairs; give layers that share scores one pattern and one kind of "
            "state"
        )
    return sent.scores


def _changed() -> ResidualScores:
    from kinformer.mechanisms.talking_heads import MixHeads

    return ResidualScores(0.7, 0.3, MixHeads(2))


EXAMPLES = (ResidualScores, lambda: ResidualScores(0.7, 0.3), _changed)
