"""Explicit: softmax attention whose scores and weights can be changed, and whose scores can be handed up."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.bias import Bias
from kinformer.core.keyed import Keyed
from kinformer.core.layer import Context, Out, State
from kinformer.core.pattern import Heads, Pattern, narrowed
from kinformer.core.read import Read
from kinformer.core.scores import allowed, scores
from kinformer.core.state import carry
from kinformer.execute.reference import softmax, weighted
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full


class PairMap(nn.Module, ABC):
    """A change of the scores before the softmax, or of the weights after it, for every pair of query and key.

    `below` is the scores that the block beneath sent up, if any, for the same pairs. `mask` says which pairs are read;
    the others hold numbers without a meaning, and what becomes of them has no effect. The number of heads may change.
    """

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "B H T S"],
        below: Float[Tensor, "B N T S"] | None,
        mask: Bool[Tensor, "B #H T S"],
    ) -> Float[Tensor, "B M T S"]: ...


class FromBelow(PairMap):
    """own * scores + below * scores from below; the lowest block, which has none below, keeps its scores as they are.

    With both weights 1 the scores are residual (RealFormer): each block refines what the one beneath attended to, for
    no parameters and hardly any time. They grow with depth. Source: He et al., 2020, arXiv:2012.11747; the weighted
    form: prior from lower modules in Lin et al., 2021, arXiv:2106.04554.
    """

    def __init__(self, own: float = 1.0, below: float = 1.0):
        super().__init__()
        self.own, self.below = own, below

    def forward(
        self,
        x: Float[Tensor, "B H T S"],
        below: Float[Tensor, "B H T S"] | None,
        mask: Bool[Tensor, "B #H T S"],
    ) -> Float[Tensor, "B H T S"]:
        return x if below is None else self.own * x + self.below * below


class Explicit(Keyed):
    """Softmax attention that holds its whole matrix of scores; where nothing needs that, choose Softmax.

    `before` changes the scores, `after` the weights; a pair that the pattern does not allow has weight 0 whatever they
    do. `up=True` sends the scores (after `before`, unmasked) up, where the next block's same sublayer finds them; with
    a state they cover kept and new keys in the order of the cache, so layers that share scores must share one pattern.
    `dropout` drops weights after `after`. With `after`, the lse is None and reads cannot be merged, because changed
    weights are no softmax. Memory is T x S per head.

    RealFormer is `Explicit(pattern, before=FromBelow(), up=True)`; talking heads are in `mechanisms/talking_heads.py`.
    Errors: NoState from `start` where the pattern reads ahead; ValueError for scores from below of other keys.
    Source: prior from lower modules in Lin et al., 2021, arXiv:2106.04554; He et al., 2020, arXiv:2012.11747.
    """

    def __init__(
        self,
        pattern: Pattern,
        bias: Bias | None = None,
        *,
        before: PairMap | None = None,
        after: PairMap | None = None,
        up: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.pattern, self.bias, self.before, self.after = pattern, bias, before, after
        self.up, self.scale, self.dropout = up, scale, dropout

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
        pattern = narrowed(self.pattern, ctx.only, ctx.also)
        (k, v, k_pos), kept = carry(state, k, v, k_pos, pattern)
        at = {"q_pos": ctx.pos[:, None], "k_pos": k_pos[:, None]}
        x = scores(q, k, **at, pattern=pattern, bias=self.bias, scale=self.scale, ctx=ctx, sides=sides)
        below = sent(ctx.below, k_pos, x) if self.before or self.after else None
        if self.before is not None:
            x = self.before(x, below, allowed(pattern, x.shape[1], **at))
        logits = x.masked_fill(~allowed(pattern, x.shape[1], **at), -torch.inf)
        weights, lse = softmax(logits)
        if self.after is not None:
            read = (logits > -torch.inf).any(1, keepdim=True)  # a constant that `after` adds is no leave to read a key
            weights = self.after(weights, below, read).masked_fill(~read, 0.0)
        _check_value_heads(weights.shape[1], v.shape[1])
        y = weighted(F.dropout(weights, self.dropout, self.training), v, self.bias, **at)
        up = {"scores": x, "scores_pos": k_pos} if self.up else {}
        found = Read(y, lse if self.after is None else None)
        return Out(found, kept, {} if self.bias is None else self.bias.aux(sides), up)


def sent(
    below: Mapping[str, Tensor], k_pos: Int[Tensor, "B S"], own: Float[Tensor, "B H T S"]
) -> Float[Tensor, "B N T S"] | None:
    """The scores that came from below, if any; ValueError where they are not for the pairs of `own`."""
    found = below.get("scores")
    if found is None:
        return None
    same = found.shape[2:] == own.shape[2:]
    if same and not torch.compiler.is_compiling():
        same = torch.equal(below["scores_pos"], k_pos)
    if not same:
        raise ValueError(
            f"the scores from below ({found.shape[2]} queries x {found.shape[3]} keys) are not for this layer's "
            f"{own.shape[2]} x {own.shape[3]} pairs; give layers that share scores one pattern and one kind of state"
        )
    return found


def _check_value_heads(heads: int, value_heads: int) -> None:
    if heads % value_heads:
        raise ValueError(
            f"{heads} heads of weights cannot share {value_heads} heads of values evenly; "
            "let `after` give a multiple of the layer's key_heads"
        )


EXAMPLES = (
    lambda: Explicit(Causal()),
    lambda: Explicit(Causal() & Band(3), before=FromBelow(), up=True),
    lambda: Explicit(Heads(Causal() & Band(2), Causal()), before=FromBelow(0.7, 0.3), up=True, scale=0.5),
    lambda: Explicit(Full(), up=True),
)
COMPILES = True
