"""Softmax: attention under a pattern and a bias."""

from collections.abc import Mapping

from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.bias import Bias
from kinformer.core.keyed import Keyed
from kinformer.core.layer import Context, Out, State
from kinformer.core.pattern import Heads, Pattern, narrowed
from kinformer.core.read import Read, mass
from kinformer.core.state import carry
from kinformer.execute import Impl, attend
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full
from kinformer.patterns.strided import Strided


class Softmax(Keyed):
    """softmax(scale q.k + bias) over the keys that the pattern allows.

    The mechanism to choose unless you want another one.

    It decodes with a cache of keys where the pattern never reads ahead. `scale` is 1/sqrt(head_dim) unless given;
    `dropout` drops attention weights in training. `lse=False` gives up the log-sum-exp, which merging with other
    reads needs, for a faster executor; `impl` picks the executor by name.

    Errors: NoState from `start` where the pattern reads ahead. Source: Vaswani et al., 2017, arXiv:1706.03762,
    section 3.2.1.
    """

    def __init__(
        self,
        pattern: Pattern,
        bias: Bias | None = None,
        *,
        scale: float | None = None,
        dropout: float = 0.0,
        lse: bool = True,
        impl: Impl = "auto",
    ):
        super().__init__()
        self.pattern, self.bias, self.scale = pattern, bias, scale
        self.dropout, self.lse, self.impl = dropout, lse, impl

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
        (k, v, k_pos), kept = carry(state, k, v, k_pos, narrowed(self.pattern, ctx.only, ctx.also))
        read = attend(
            q,
            k,
            v,
            q_pos=ctx.pos[:, None],
            k_pos=k_pos[:, None],
            pattern=self.pattern,
            bias=self.bias,
            scale=self.scale,
            lse=self.lse,
            dropout=self.dropout if self.training else 0.0,
            impl=self.impl,
            ctx=ctx,
            sides=sides,
        )
        return Out(read, kept, {} if self.bias is None else self.bias.aux(sides))

    def mass(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        k_pos: Int[Tensor, "B S"],
        read: Read,
        ctx: Context,
        sides: Mapping[str, Tensor],
    ) -> Float[Tensor, "B S"]:
        """How much attention each key got in `read`, averaged over heads. ValueError without an lse."""
        if read.lse is None:
            raise ValueError("the attention mass of a Softmax needs its lse; make it without lse=False")
        pattern = narrowed(self.pattern, ctx.only, ctx.also)
        found = mass(
            q,
            k,
            read.lse,
            q_pos=ctx.pos[:, None],
            k_pos=k_pos[:, None],
            pattern=pattern,
            bias=self.bias,
            scale=self.scale,
            ctx=ctx,
            sides=sides,
        )
        return found.mean(1)


EXAMPLES = (
    lambda: Softmax(Causal()),
    lambda: Softmax(Causal() & (Band(3) | Strided(4))),
    lambda: Softmax(Heads(Causal() & Band(2), Causal()), scale=0.5),
    lambda: Softmax(Full()),
)
COMPILES = True
