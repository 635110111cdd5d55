"""A decoding step of one attention layer against the same layer over a bare cache."""

from collections.abc import Callable

import torch
from interleave import race, report, setup
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer import Attention, Context, fork
from kinformer.core.patterns.causal import Causal
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV

HEADS, HEAD_DIM, KEPT, STEPS = 8, 64, 1024, 32
D = HEADS * HEAD_DIM


class Bare(nn.Module):
    """Attention over a cache without a library: one matrix for q, k and v, a slice write, the used prefix read."""

    def __init__(self, batch: int):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.k, self.v = (torch.randn(batch, HEADS, KEPT + STEPS, HEAD_DIM) for _ in range(2))
        self.used = KEPT

    def forward(self, x: Float[Tensor, "B 1 D"]) -> Float[Tensor, "B 1 D"]:
        # [B 1 3D] -> q, k, v of [B H 1 K]
        q, k, v = (z.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for z in self.qkv(x).split(D, dim=2))
        self.k[:, :, self.used : self.used + 1], self.v[:, :, self.used : self.used + 1] = k, v
        self.used += 1
        y = F.scaled_dot_product_attention(q, self.k[:, :, : self.used], self.v[:, :, : self.used])
        return self.out(y.transpose(1, 2).flatten(2))


def measure(batch: int, rounds: int) -> None:
    layer, bare = Attention(QKV(D, HEADS), Softmax(Causal(), lse=False)).eval(), Bare(batch)
    tokens = torch.randn(STEPS, batch, 1, D)
    pos = torch.arange(KEPT + STEPS).expand(batch, -1)
    before = Context(pos[:, :KEPT], run=True, full=True)
    filled = layer(torch.randn(batch, KEPT, D), layer.start(batch, KEPT + STEPS), before).state

    def kinformer() -> Callable[[], None]:
        states = [fork(filled)]  # the 1,024 keys again: a state that was handed over is spent

        def steps() -> None:
            for n, x in enumerate(tokens, KEPT):
                states[0] = layer(x, states[0], Context(pos[:, n : n + 1], run=True, full=True)).state

        return steps

    def bare_cache() -> Callable[[], None]:
        bare.used = KEPT

        def steps() -> None:
            for x in tokens:
                bare(x)

        return steps

    contenders = {"kinformer": kinformer, "bare cache": bare_cache}
    report(f"heads {HEADS} of {HEAD_DIM}, batch {batch}", race(contenders, rounds), batch * STEPS, STEPS)


if __name__ == "__main__":
    rounds = setup(f"A decoding step of one attention layer, mean of {STEPS} after {KEPT:,} keys, float32.")
    with torch.no_grad():
        for batch in (1, 8):
            measure(batch, rounds)
