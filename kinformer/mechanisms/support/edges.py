"""Edges: a network that goes from token to token and says which pairs are read."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.checks import at_least
from kinformer.core.choice import choice

NEVER = -1e30  # the logit of a token that may not be chosen; finite, so that rows without any give no NaN


class Walk(NamedTuple):
    """Where the network stands: its two vectors, and the token that it chose last."""

    h: Float[Tensor, "B P n"]
    c: Float[Tensor, "B P n"]
    last: Float[Tensor, "B P n"]

    def where(self, mask: Bool[Tensor, "B #P 1"], other: "Walk") -> "Walk":
        """This one in the marked rows, the other elsewhere."""
        return Walk(*(torch.where(mask, a, b) for a, b in zip(self, other, strict=True)))

    def to(self, dtype: torch.dtype) -> "Walk":
        return Walk(*(x.to(dtype) for x in self))


class EdgePredictor(nn.Module):
    """p(j) = softmax_j(h W (x_j + D_min(distance, clip))), h, c = LSTM(token chosen last; h, c).

    width: of a token as the network sees it, and of the LSTM.
    clip: the furthest distance with a vector of its own.

    Source: Li et al., 2020, arXiv:2003.09833, section 3.
    """

    def __init__(self, width: int, clip: int):
        super().__init__()
        self.width, self.clip = at_least("width", width, 1), at_least("clip", clip, 0)
        self.cell = nn.LSTMCell(width, width)
        self.match = nn.Linear(width, width, bias=False)
        self.first = nn.Parameter(torch.randn(3, width) * width**-0.5)
        self.distance = nn.Parameter(torch.randn(clip + 1, width) * width**-0.5)

    def begin(self, nodes: Float[Tensor, "B P S n"]) -> Walk:
        """Before the first choice among these: vectors that are learned."""
        return Walk(*(x.to(nodes.dtype).expand(*nodes.shape[:2], -1) for x in self.first))

    def step(self, walk: Walk) -> tuple[Float[Tensor, "B P n"], Walk]:
        """What the next choice is made by, and the vectors after it."""
        dtype, shape = self.cell.weight_ih.dtype, walk.h.shape
        last, h, c = (x.to(dtype).flatten(0, 1) for x in (walk.last, walk.h, walk.c))
        h, c = self.cell(last, (h, c))
        u = self.match(h).to(walk.h.dtype).view(shape)
        return u, Walk(h.to(walk.h.dtype).view(shape), c.to(walk.h.dtype).view(shape), walk.last)

    def choose(
        self,
        walk: Walk,
        nodes: Float[Tensor, "B P S n"],
        may: Bool[Tensor, "B #P S"],
        distance: Int[Tensor, "B #P S"],
        noise: Float[Tensor, "B P S"] | None,
    ) -> tuple[Int[Tensor, "B P 1"], Float[Tensor, "B P"], Walk]:
        """A column, drawn where there is noise and else the likeliest, the log of its probability, and the walk on."""
        u, walk = self.step(walk)
        near = u @ self.distance.to(u.dtype).mT  # [B P clip + 1]
        far = distance.clamp(0, self.clip).expand(-1, u.shape[1], -1)
        logits = (nodes @ u[..., None])[..., 0] + near.gather(2, far)
        logits = logits.masked_fill(~may, NEVER)

        def best() -> Int[Tensor, "B P 1"]:
            told = logits if noise is None else logits + noise
            return told.masked_fill(~may, NEVER).argmax(-1, keepdim=True)

        at = choice(best)
        log_p = (logits.gather(2, at) - logits.logsumexp(-1, keepdim=True))[..., 0]
        return at, log_p, walk._replace(last=nodes.take_along_dim(at[..., None], 2)[:, :, 0])
