"""LSH: a query reads the keys that random rotations put into its own buckets, whole buckets of them."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.bias import ScoreFn, at
from kinformer.core.keyed import Keyed
from kinformer.core.layer import Context, Out, State
from kinformer.core.pattern import Pattern, narrowed
from kinformer.core.read import Read, merge
from kinformer.core.state import carry
from kinformer.execute import attend
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full

LAST_RESORT = 1e5  # what a token's score of itself loses: it reads itself where there is nothing else


class Rotations(nn.Module):
    """Angular hashes: the bucket of x in a round is argmax([x R, -x R]). A hash depends on its own vector alone.

    One R per head and round, drawn once from `seed` and saved. Source: Andoni et al., 2015, arXiv:1509.02897.
    """

    r: Float[Tensor, "H K R b"]

    def __init__(self, heads: int, k_dim: int, buckets: int, rounds: int, seed: int):
        super().__init__()
        if buckets < 2 or buckets % 2:
            raise ValueError(
                f"buckets={buckets}: a rotation and its negative make two buckets each; give an even number"
            )
        if rounds < 1:
            raise ValueError(f"rounds={rounds}: hash at least once")
        draw = torch.Generator().manual_seed(seed)
        self.register_buffer("r", torch.randn(heads, k_dim, rounds, buckets // 2, generator=draw))

    def forward(self, x: Float[Tensor, "B G T K"]) -> Int[Tensor, "B H R T"]:
        heads, k_dim = self.r.shape[:2]
        if heads % x.shape[1] or k_dim != x.shape[3]:
            raise ValueError(
                f"LSH was made for {heads} heads of width {k_dim} and got {x.shape[1]} of width {x.shape[3]}; "
                f"make it with heads={x.shape[1]}, k_dim={x.shape[3]}"
            )
        spread = precise(x.repeat_interleave(heads // x.shape[1], 1))
        turned = torch.einsum("bhtk,hkrn->bhrtn", spread, self.r.to(spread.dtype))
        return torch.cat([turned, -turned], -1).argmax(-1)


class LSH(Keyed):
    """Softmax attention over S_i = the keys that share a bucket with query i in at least one of several rounds.

    Choose it where few keys, found by content, carry the attention; with `projection=SharedQK(d, heads)`, as in the
    paper. Buckets are read whole, and a hash sees nothing but its own vector: so cuts, padding and what comes later
    change nothing, and it decodes with a cache of keys (`PublishedLSH` is the paper's sorted and chunked form). Each
    round is read for itself with log N_ij taken off the scores, N_ij the number of rounds in which j is found, so
    that the merge of the rounds counts every key once. A token reads itself only where it finds nothing else. This
    form is dense; it says what is read. A vector near a border may hash into another bucket when its precision
    changes. `buckets` is even; `heads` are those of the queries; `scale` is 1/sqrt(K) unless given.

    Errors: NoState from `start` where the pattern reads ahead; ValueError with `ctx.also`, since keys of other buckets
    cannot be added. Source: Kitaev et al., 2020, arXiv:2001.04451, section 2.
    """

    def __init__(
        self,
        heads: int,
        k_dim: int,
        buckets: int,
        rounds: int = 1,
        *,
        pattern: Pattern | None = None,
        scale: float | None = None,
        seed: int = 0,
    ):
        super().__init__()
        self.hash = Rotations(heads, k_dim, buckets, rounds, seed)
        self.rounds, self.pattern, self.scale = rounds, pattern or Causal(), scale

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
        no_additions(ctx)
        (k, v, k_pos), kept = carry(state, k, v, k_pos, narrowed(self.pattern, ctx.only, None))
        q_bucket, k_bucket = self.hash(q), self.hash(k)
        reads = [
            attend(
                precise(q),
                precise(k),
                precise(v),
                q_pos=ctx.pos[:, None],
                k_pos=k_pos[:, None],
                pattern=self.pattern,
                bias=Round(n, q_bucket, k_bucket),
                scale=self.scale,
                ctx=ctx,
            )
            for n in range(self.rounds)
        ]
        read = merge(*reads)
        return Out(Read(read.y.to(q.dtype), read.lse), kept)


class Round:
    """The score terms of one round: other buckets shut out, log N_ij off, and the token itself put last."""

    def __init__(self, n: int, q_bucket: Int[Tensor, "B H R T"], k_bucket: Int[Tensor, "B H R S"]):
        self.n, self.q_bucket, self.k_bucket = n, q_bucket, k_bucket

    def __call__(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        q_pos: Int[Tensor, "B #H T"],
        k_pos: Int[Tensor, "B #H S"],
        *,
        scale: float,
        reach: tuple[float, float],
        ctx: Context | None,
        sides: Mapping[str, Tensor],
    ) -> ScoreFn:
        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            itself = at(q_pos, b, h, i) == at(k_pos, b, h, j)
            rounds = range(self.q_bucket.shape[2])
            found = [itself | (self.q_bucket[b, h, n, i] == self.k_bucket[b, h, n, j]) for n in rounds]
            count = torch.stack(found).sum(0).clamp_min(1)
            s = torch.where(itself, s - LAST_RESORT, s) - count.to(s.dtype).log()
            return torch.where(found[self.n], s, -torch.inf)

        return score


def no_additions(ctx: Context, name: str = "LSH", sets: str = "buckets") -> None:
    if ctx.also is not None:
        raise ValueError(f"{name} reads its {sets} and cannot add keys to them by ctx.also; use Softmax, or drop it")


def precise(x: Tensor) -> Tensor:
    """x in float32 at least: a score of -1e5 is none in float16, and near borders a rounded hash is another one."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


EXAMPLES = (
    lambda: LSH(2, 8, 4, 2),
    lambda: LSH(2, 8, 2, seed=1),
    lambda: LSH(2, 8, 6, 3, pattern=Full(), scale=1.0),
)
COMPILES = True
