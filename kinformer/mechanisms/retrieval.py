"""Retrieval: near keys are read as usual, far ones only where they are among the k best of their query."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.bias import Bias
from kinformer.core.keyed import Keyed
from kinformer.core.layer import Context, Out, State
from kinformer.core.pattern import Not, Pattern, narrowed
from kinformer.core.read import Read, merge
from kinformer.core.scores import allowed, scores
from kinformer.core.state import carry, detach
from kinformer.execute import attend
from kinformer.patterns.causal import Causal
from kinformer.patterns.segment import Segment
from kinformer.projections.shared_qk import unit


class Retrieval(Keyed):
    """Local attention, and beside it attention to the k keys of a long memory that fit a query best.

    Choose it, in one of the upper layers, for text that says again what was said long ago. Positions decide which key
    is which: a query reads its own segment of `length` tokens and `cache` before it as softmax attention does, with
    the `bias`; of the `memory` keys before those it reads the `k` with the highest scores, of equal ones the latest.
    Queries and keys have length 1 per head (`eps` is added to |x|^2), and scores are a learned |s_h| times their
    product. Nothing learns through the memory: its keys and values are detached, and so is the state, a cache of
    keys. `memory` is no parameter: set it to another number at any time. Documents of one row are kept apart by
    `ctx.only`. The memory is searched exactly: every key is scored.

    `combine="gate"` is the paper's g_h far + (1 - g_h) near, g_h a learned number that starts at 1/2; a query without
    a memory reads 0 there. "joint", as in later code, is one softmax over both, whose lse can be merged.

    Source: Wu et al., 2022, arXiv:2203.08913, section 3.
    """

    def __init__(
        self,
        heads: int,
        length: int,
        memory: int,
        k: int = 32,
        bias: Bias | None = None,
        *,
        cache: int = 0,
        combine: Literal["gate", "joint"] = "gate",
        eps: float = 1e-6,
    ):
        super().__init__()
        if k < 1:
            raise ValueError(f"k={k}: retrieve at least one key, or use Softmax(Causal() & Segment({length}, {cache}))")
        if combine not in ("gate", "joint"):
            raise ValueError(f"combine={combine!r} is not known; choose 'gate' or 'joint'")
        self.length, self.cache, self.memory, self.k = length, cache, memory, k
        self.bias, self.combine, self.eps = bias, combine, eps
        self.scale = nn.Parameter(torch.ones(heads))
        self.gate = nn.Parameter(torch.zeros(heads)) if combine == "gate" else None

    @property
    def near(self) -> Pattern:
        """What is read whole."""
        return Causal() & Segment(self.length, self.cache)

    @property  # derived, because `memory` may be set to another number
    def pattern(self) -> Pattern:  # type: ignore[override]
        """What may be read at all."""
        return Causal() & Segment(self.length, self.cache + self.memory)

    def sides(self, k_dim: int, v_dim: int) -> Mapping[str, int]:
        return {} if self.bias is None else self.bias.sides(k_dim, v_dim)

    def forward(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        v: Float[Tensor, "B G S V"],
        k_pos: Int[Tensor, "B S"],
        state: State | None,
        ctx: Context,
        sides: Mapping[str, Float[Tensor, "B H T n"]],
    ) -> Out:
        if q.shape[1] != len(self.scale):
            raise ValueError(f"Retrieval was made for {len(self.scale)} heads and got {q.shape[1]}; give it heads=...")
        pattern = narrowed(self.pattern, ctx.only, ctx.also)
        q, k = unit(q, self.eps) * self.scale.abs()[:, None, None], unit(k, self.eps)
        (k, v, k_pos), kept = carry(state, k, v, k_pos, pattern)
        q_pos, k_pos = ctx.pos[:, None], k_pos[:, None]
        near, far = pattern & self.near, pattern & Not(self.near)  # ~ does not compile
        own = dataclasses.replace(ctx, only=None, also=None)  # both patterns have them
        local = attend(q, k, v, q_pos=q_pos, k_pos=k_pos, pattern=near, bias=self.bias, scale=1.0, ctx=own, sides=sides)
        k, v = k.detach(), v.detach()
        found = folded(q, k, v, q_pos, k_pos, far, best(q, k, far, q_pos, k_pos, self.k))
        kept = None if kept is None else detach(kept)
        return Out(self._combined(found, local), kept, {} if self.bias is None else self.bias.aux(sides))

    def _combined(self, found: Read, local: Read) -> Read:
        if self.gate is None:
            return merge(found, local)
        gate = self.gate.sigmoid()[:, None, None]
        return Read(gate * found.y + (1 - gate) * local.y, None)


@torch.no_grad()
def best(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    pattern: Pattern,
    q_pos: Int[Tensor, "B 1 T"],
    k_pos: Int[Tensor, "B 1 S"],
    most: int,
) -> Int[Tensor, "B H T R"]:
    """The columns of the `most` keys of the pattern that fit each query best; of equal ones the later columns.

    A query with fewer keys gets others in their place, which the pattern does not allow.
    """
    found = scores(q, k, q_pos=q_pos, k_pos=k_pos, pattern=pattern, scale=1.0)
    found = found.masked_fill(~allowed(pattern, q.shape[1], q_pos, k_pos), -torch.inf)
    order = torch.sort(found.flip(-1), stable=True, dim=-1, descending=True).indices
    return found.shape[-1] - 1 - order[..., :most]


def folded(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S V"],
    q_pos: Int[Tensor, "B 1 T"],
    k_pos: Int[Tensor, "B 1 S"],
    pattern: Pattern,
    columns: Int[Tensor, "B H T R"],
) -> Read:
    """What each query reads in keys of its own: a query is a row of a larger batch, with the keys at its columns."""
    batch, heads, length, _ = q.shape
    b = torch.arange(batch, device=q.device)
    head = torch.arange(heads, device=q.device) // (heads // k.shape[1])
    at = (b[:, None, None, None], head[:, None, None], columns)
    k, v = (x[at].transpose(1, 2).flatten(0, 1) for x in (k, v))
    read = attend(
        q.transpose(1, 2).flatten(0, 1)[:, :, None],
        k,
        v,
        q_pos=q_pos[:, 0].reshape(-1, 1, 1),
        k_pos=k_pos[:, 0][b[:, None, None, None], columns].transpose(1, 2).flatten(0, 1),
        pattern=pattern,
        scale=1.0,
        rows=b.repeat_interleave(length),
    )
    assert read.lse is not None
    y = read.y[:, :, 0].unflatten(0, (batch, length)).transpose(1, 2)
    return Read(y, read.lse[:, :, 0].unflatten(0, (batch, length)).transpose(1, 2))


EXAMPLES = (
    lambda: Retrieval(2, 4, 6, 2),
    lambda: Retrieval(2, 3, 8, 3, cache=2, combine="joint"),
    lambda: Retrieval(2, 2, 20, 1),
)
BREAKS = {"merge": "the k best of a part of the keys are not the k best of all"}
COMPILES = True
