"""EdgePredictor: recurrent network of SAC that chooses the keys of each token one by one."""

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

NEVER = -1e30  # logit of a token that is not allowed; finite, so rows without allowed tokens give no NaN


class WalkState(NamedTuple):
    """State of an `EdgePredictor` between two choices, for P walks (sequences of choices) in each row.

    h, c: hidden and cell vector of the LSTM, [B, P, n].
    last: vector of the token that was chosen last, [B, P, n].
    """

    h: Float[Tensor, "B P n"]
    c: Float[Tensor, "B P n"]
    last: Float[Tensor, "B P n"]

    def where(self, mask: Bool[Tensor, "B #P 1"], other: "WalkState") -> "WalkState":
        """Return this state for the walks that `mask` marks, and `other` for the rest.

        mask: walks that keep this state, [B, #P, 1].
        other: state of all other walks.
        """
        return WalkState(*(torch.where(mask, a, b) for a, b in zip(self, other, strict=True)))

    def to(self, dtype: torch.dtype) -> "WalkState":
        return WalkState(*(x.to(dtype) for x in self))


class EdgePredictor(nn.Module):
    """LSTM of SAC (sparse adaptive connection) that chooses the next key from the key it chose last.

    p(j) = softmax_j(h W (x_j + D_min(distance, clip))), h, c = LSTM(token chosen last; h, c)

    h is the hidden vector of the LSTM, W a learned matrix, x_j the vector of token j, and D a learned vector for each
    distance.

    width: width of a token as the network sees it, and of the LSTM.
    clip: largest distance with its own vector D; greater distances share that vector.

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
        """Return the learned state before the first choice among `nodes`, the vectors of the tokens."""
        return WalkState(*(x.to(nodes.dtype).expand(*nodes.shape[:2], -1) for x in self.first))

    def step(self, walk: WalkState) -> tuple[Float[Tensor, "B P n"], WalkState]:
        """Run the LSTM once. Return the vector h W, whose product with a token scores it, and the new state."""
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
        """Choose a token for each walk. Return its index in `nodes`, log-probability and the new state.

        walk: state of the network.
        nodes: tokens to choose from, [B, P, S, n].
        may: tokens that are allowed, [B, #P, S].
        distance: distance of each token, in tokens, from the query or, in `PublishedSAC`, from the last choice,
            [B, #P, S].
        noise: Gumbel noise for a random choice, [B, P, S]; None takes the most likely token.
        """
        u, walk = self.step(walk)
        far = distance.clamp(0, self.clip).expand(-1, u.shape[1], -1)
        with disable_autocast(nodes):  # rounded logits would give probabilities that do not sum to 1
            near = u @ self.distance.to(u.dtype).mT  # [B P clip + 1]
            logits = (nodes @ u[..., None])[..., 0] + near.gather(2, far)
        logits = logits.masked_fill(~may, NEVER)

        def best() -> Int[Tensor, "B P 1"]:
            if noise is not None:
                return (logits + noise).masked_fill(~may, NEVER).argmax(-1, keepdim=True)
            # equal tokens beyond the clip have equal scores up to rounding; the furthest of them is chosen
            size = u.norm(dim=-1, keepdim=True) * nodes.norm(dim=-1).masked_fill(~may, 0.0).amax(-1, keepdim=True)
            return torch.where(equal_to_largest(logits, tolerance_of(size)), distance, -1).argmax(-1, keepdim=True)

        at = choice(best)
        log_p = (logits.gather(2, at) - logits.logsumexp(-1, keepdim=True))[..., 0]
        return at, log_p, walk._replace(last=nodes.take_along_dim(at[..., None], 2)[:, :, 0])


class EdgeChooser(nn.Module):
    """Base class of both forms of SAC: it owns the network that chooses keys, and its random numbers.

    The network sees an extra projection of each token. A loss on the log-probabilities of its choices trains it. A
    subclass calls `choose_by` in its constructor and defines the attention.
    """

    unrepeatable = Unrepeatable(
        "SAC draws the keys that it reads from a learned distribution", "use a stack without SAC"
    )

    def choose_by(self, edges: int, width: int, clip: int, by: By, seed: int) -> None:
        """Create the network that chooses keys, and its source of random numbers.

        edges: number of choices for each token.
        width, clip: sizes of the network, as in `EdgePredictor`.
        by: "layer" chooses once for all heads, "head" for each key head.
        seed: seed of the random choices.
        """
        self.edges, self.by = check_at_least("edges", edges, 1), check_option("by", by, By)
        self.predictor, self.chance = EdgePredictor(width, clip), Chance(seed)

    def sent_names(self, name: str, send: bool) -> frozenset[str]:
        """Return the names of the outputs for layers above: `name` if `send` is true, none otherwise.

        Errors: ValueError for send=True with by="head", because there would be one set of choices for each head.
        """
        if check_flag("send", send) and self.by == "head":
            raise ValueError(f"send=True passes one set of {name} to the layers above, so it needs by='layer'")
        return frozenset({name} if send else ())

    def penalties(self) -> dict[str, Penalty]:
        """Return the loss term that trains the network that chooses; it also trains the layers below."""
        return {CHOICES: Penalty(trains=tuple(self.predictor.parameters()), reaches_x=True, alone=True, by="weight")}

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {"node": ExtraProjection(self.predictor.width)}

    def nodes(self, request: Request) -> Float[Tensor, "B P S n"]:
        """Return the token vectors (nodes) that the network sees, for each key head or once for the layer."""
        nodes = at_least_float32(request.keys.extras["node"])
        return nodes if self.by == "head" else nodes.mean(1, keepdim=True)

    def noise(
        self,
        nodes: Float[Tensor, "B P S n"],
        turn: Int[Tensor, "B #P 1"],
        k_pos: Int[Tensor, "B #P S"],
        visible: Bool[Tensor, "B #P S"],
    ) -> Tensor | None:
        """Return Gumbel noise [B, P, S], which makes an argmax over nodes a random choice; None in eval mode.

        The noise depends on the visible nodes (token vectors) and on no others, because the choice may depend only on
        these. Each choice and training step has its own noise. Rows that differ in a visible node get independent
        noise.

        nodes: tokens as the network sees them, [B, P, S, n].
        turn: number of the choice, [B, #P, 1].
        k_pos: positions of the nodes, [B, #P, S].
        visible: nodes that the choice may depend on, [B, #P, S].
        """
        if not self.training:
            return None
        walker = torch.arange(nodes.shape[1], device=nodes.device)[:, None]
        row = torch.where(visible, content(nodes, k_pos), 0).sum(-1, keepdim=True)
        return self.chance.gumbel(walker, turn, k_pos, row).to(nodes.dtype)
