"""SplitHeads: some heads read in one way, others in another."""

import dataclasses
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.layer import Context, Out, State, prefixed, under
from kinformer.core.mechanism import Mechanism
from kinformer.core.read import Read
from kinformer.maps.elu import ELU
from kinformer.mechanisms.linear import Linear
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal


class SplitHeads(Mechanism):
    """Each mechanism gets an equal run of the heads, in order: of 8 heads, `SplitHeads(a, b)` gives 0..3 to a.

    Choose it for "half of the heads local": `SplitHeads(Softmax(Causal() & Band(64)), Routing(4, 32, 16))`, where each
    mechanism is made for its own heads. A single head of keys serves all. For heads that differ by nothing but their
    pattern, `Softmax(Heads(...))` does. The lse is that of the parts, None where one gives none.

    Errors: ValueError where the heads cannot be split evenly; NoState from `start` where a part has no state.
    Source: Roy et al., 2020, arXiv:2003.05997, section 5 (half of the heads local).
    """

    def __init__(self, *parts: Mechanism):
        super().__init__()
        if not parts:
            raise ValueError("SplitHeads got no mechanism; give it one for each run of heads")
        self.parts = nn.ModuleList(parts)

    def sides(self, k_dim: int, v_dim: int) -> Mapping[str, int]:
        found = [part.sides(k_dim, v_dim) for part in self.parts]
        return {f"{n}.{name}": size for n, own in enumerate(found) for name, size in own.items()}

    def start(
        self,
        batch: int,
        length: int,
        key_heads: int,
        k_dim: int,
        v_dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> State:
        if key_heads > 1 and key_heads % len(self.parts):
            raise ValueError(self._uneven(key_heads, "heads of keys"))
        own = max(1, key_heads // len(self.parts))
        return tuple(part.start(batch, length, own, k_dim, v_dim, dtype=dtype, device=device) for part in self.parts)

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
        if q.shape[1] % len(self.parts):
            raise ValueError(self._uneven(q.shape[1], "heads"))
        outs = [
            part(
                *(self._run(x, n) for x in (q, k, v)),
                k_pos,
                None if state is None else state[n],
                dataclasses.replace(ctx, below=under(n, ctx.below)),
                {name: self._run(side, n) for name, side in under(n, sides).items()},
            )
            for n, part in enumerate(self.parts)
        ]
        lses = [out.y.lse for out in outs]
        lse = None if any(one is None for one in lses) else torch.cat(lses, 1)
        aux, up, stats = (
            {name: value for n, out in enumerate(outs) for name, value in prefixed(n, getattr(out, kind)).items()}
            for kind in ("aux", "up", "stats")
        )
        kept = None if state is None else tuple(out.state for out in outs)
        return Out(Read(torch.cat([out.y.y for out in outs], 1), lse), kept, aux, up, stats)

    def _run(self, x: Float[Tensor, "B H T n"], n: int) -> Float[Tensor, "B R T n"]:
        """What belongs to part n of what is given per head; a single head belongs to all."""
        return x if x.shape[1] == 1 else x.chunk(len(self.parts), 1)[n]

    def _uneven(self, heads: int, what: str) -> str:
        return f"{heads} {what} cannot be split evenly among {len(self.parts)} mechanisms; give a multiple of them"


EXAMPLES = (
    lambda: SplitHeads(Softmax(Causal() & Band(2)), Softmax(Causal())),
    lambda: SplitHeads(Softmax(Causal() & Band(2)), Linear(ELU())),
)
COMPILES = True
