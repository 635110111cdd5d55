"""Edges: a network that goes from token to token and says which pairs are read."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.checks import check_at_least, check_flag, check_option
from kinformer.core.choice import choice
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes
from kinformer.core.loss import CHOICES, Penalty
from kinformer.core.request import Request
from kinformer.core.ties import equal_to_largest, tolerance_of
from kinformer.core.unrepeatable import Unrepeatable
from kinformer.nn.mechanisms.repeatable_chance import Chance, content

By = Literal["layer", "head"]

NEVER = -1e30  # the logit of a token that may not be chosen; finite, so that rows without any give no NaN


class WalkState(NamedTuple):
    """Where the network stands: its two vectors, and the token that it chose last."""

    h: Float[Tensor, "B P n"]
    c: Float[Tensor, "B P n"]
    last: Float[Tensor, "B P n"]

    def where(self, mask: Bool[Tensor, "B #P 1"], other: "WalkState") -> "WalkState":
        """This one in the marked rows, the other elsewhere."""
        return WalkState(*(torch.where(mask, a, b) for a, b in zip(self, other, strict=True)))

    def to(self, dtype: torch.dtype) -> "WalkState":
        return WalkState(*(x.to(dtype) for x in self))


class EdgePredictor(nn.Module):
    """p(j) = softmax_j(h W (x_j + D_min(distance, clip))), h, c = LSTM(token chosen last; h, c).

    width: of a token as the network sees it, and of the LSTM.
    clip: the furthest distance with a vector of its own.

    Source: Li et al., 2020, arXiv:2003.09833, section 3.
    """

    def __init__(self, width: int, clip: int):
        super().__init__()
        self.width, self.clip = check_at_least("width", width, 1), check_at_least("clip", clip, 0)
        self.cell = nn.LSTMCell(width, width)
        self.match = nn.Linear(width, width, bias=False)
        self.first = nn.Parameter(torch.randn(3, width) * width**-0.5)
        self.distance = nn.Parameter(torch.randn(clip + 1, width) * width**-0.5)

    def begin(self, nodes: Float[Tensor, "B P S n"]) -> WalkState:
        """Before the first choice among these: vectors that are learned."""
        return WalkState(*(x.to(nodes.dtype).expand(*nodes.shape[:2], -1) for x in self.first))

    def step(self, walk: WalkState) -> tuple[Float[Tensor, "B P n"], WalkState]:
        """What the next choice is made by, and the vectors after it."""
        dtype, shape = self.cell.weight_ih.dtype, walk.h.shape
        last, h, c = (x.to(dtype).flatten(0, 1) for x in (walk.last, walk.h, walk.c))
        h, c = self.cell(last, (h, c))
        u = self.match(h).to(walk.h.dtype).view(shape)
        return u, WalkState(h.to(walk.h.dtype).view(shape), c.to(walk.h.dtype).view(shape), walk.last)

    def choose(
        self,
        walk: WalkState,
        nodes: Float[Tensor, "B P S n"],
        may: Bool[Tensor, "B #P S"],
        distance: Int[Tensor, "B #P S"],
        noise: Float[Tensor, "B P S"] | None,
    ) -> tuple[Int[Tensor, "B P 1"], Float[Tensor, "B P"], WalkState]:
        """A column, drawn where there is noise and else the likeliest, the log of its probability, and the walk on."""
        u, walk = self.step(walk)
        far = distance.clamp(0, self.clip).expand(-1, u.shape[1], -1)
        with disable_autocast(nodes):  # or shares of keys would not add up to 1
            near = u @ self.distance.to(u.dtype).mT  # [B P clip + 1]
            logits = (nodes @ u[..., None])[..., 0] + near.gather(2, far)
        logits = logits.masked_fill(~may, NEVER)

        def best() -> Int[Tensor, "B P 1"]:
            if noise is not None:
                return (logits + noise).masked_fill(~may, NEVER).argmax(-1, keepdim=True)
            # equal tokens beyond the clip have equal scores, whatever rounding makes of them: of these the furthest
            size = u.norm(dim=-1, keepdim=True) * nodes.norm(dim=-1).masked_fill(~may, 0.0).amax(-1, keepdim=True)
            return torch.where(equal_to_largest(logits, tolerance_of(size)), distance, -1).argmax(-1, keepdim=True)

        at = choice(best)
        log_p = (logits.gather(2, at) - logits.logsumexp(-1, keepdim=True))[..., 0]
        return at, log_p, walk._replace(last=nodes.take_along_dim(at[..., None], 2)[:, :, 0])


class EdgeChooser(nn.Module):
    """What both forms of SAC share: the network that chooses, what it sees of tokens, its chance and what trains it."""

    unrepeatable = Unrepeatable("SAC draws the keys it reads by what it has learned", "give a stack without SAC")

    def choose_by(self, edges: int, width: int, clip: int, by: By, seed: int) -> None:
        """How many are chosen for a token, by which network, and for whom."""
        self.edges, self.by = check_at_least("edges", edges, 1), check_option("by", by, By)
        self.predictor, self.chance = EdgePredictor(width, clip), Chance(seed)

    def sent_names(self, name: str, send: bool) -> frozenset[str]:
        """What is handed up; ValueError where there are several sets of it."""
        if check_flag("send", send) and self.by == "head":
            raise ValueError(f"send=True hands up one set of {name}; give by='layer' beside it")
        return frozenset({name} if send else ())

    def penalties(self) -> dict[str, Penalty]:
        """What was chosen trains the network and, through what it sees, the layer's input."""
        return {CHOICES: Penalty(trains=tuple(self.predictor.parameters()), reaches_x=True, alone=True, by="weight")}

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {"node": ExtraProjection(self.predictor.width)}

    def nodes(self, request: Request) -> Float[Tensor, "B P S n"]:
        """Tokens as the network sees them: for each head of the keys, or once for the layer."""
        nodes = at_least_float32(request.keys.extras["node"])
        return nodes if self.by == "head" else nodes.mean(1, keepdim=True)

    def noise(
        self,
        nodes: Float[Tensor, "B P S n"],
        turn: Int[Tensor, "B #P 1"],
        k_pos: Int[Tensor, "B #P S"],
        visible: Bool[Tensor, "B #P S"],
    ) -> Tensor | None:
        """Gumbel noise [B P S] that turns an argmax over nodes into a draw; None in eval mode.

        The noise depends on the turn and on the known nodes, those that the choice may depend on. So rows that differ
        in a known node have independent draws.
        """
        if not self.training:
            return None
        walker = torch.arange(nodes.shape[1], device=nodes.device)[:, None]
        row = torch.where(visible, content(nodes, k_pos), 0).sum(-1, keepdim=True)
        return self.chance.gumbel(walker, turn, k_pos, row).to(nodes.dtype)
