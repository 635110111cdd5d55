"""Collaborative: heads that share the dimensions of queries and keys, and weight them differently."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_flag, check_option, resolve_head_dim
from kinformer.core.heads import Keys, Queries
from kinformer.core.projection import Projection, by_head
from kinformer.nn.projections.qkv import QKV

Mixing = Literal["normal", "ones", "concatenated"]
Scale = Literal["shared", "head"]


class Collaborative(Projection):
    """Projection with queries and keys that all heads share; each head weights their dimensions.

    logit_h(i, j) = ((x_i W_q * m_h) . (x_j W_k) + x_j w_h) / sqrt(s)

    Here m_h are the weights of head h, and x_j w_h is a score of the key itself. Each head has its own values. Choose
    it if the queries and keys of different heads are similar, as in trained models. Then `shared` can be a quarter of
    the width, and the cache holds one key of that width for all heads. `from_trained` converts a trained `QKV`.

    The mechanism must keep its default scale, 1 / sqrt(key width).

    d: width of the input.
    heads: number of heads of queries and of values.
    shared: D, the number of columns of W_q and W_k, the width of the shared queries and keys; d by default.
    v_dim: width of a value; d / heads by default.
    mixing: initial values of m_h. "normal": normal with standard deviation 0.2, as in the authors' code; "ones": all
        equal; "concatenated": each head has its own columns, as in ordinary attention.
    scale: s of the equation. "shared": D, attention's rule for keys of width D. "head": D / heads, as in the authors'
        code; with it "concatenated" is ordinary attention.
    content: whether each key has its own score w_h. The authors' code has it; the paper's first equation does not.
    bias: whether values have a bias; the layer's output matrix then has one too.

    Errors: ValueError if sizes do not divide, or if "concatenated" has fewer columns than heads.

    Source: Cordonnier et al., 2020, arXiv:2006.16362.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        *,
        shared: int | None = None,
        v_dim: int | None = None,
        mixing: Mixing = "normal",
        scale: Scale = "shared",
        content: bool = True,
        bias: bool = True,
    ):
        super().__init__()
        self.d, self.heads, self.key_heads = check_at_least("d", d, 1), check_at_least("heads", heads, 1), 1
        self.shared = d if shared is None else check_at_least("shared", shared, 1)
        self.v_dim = resolve_head_dim(d, heads) if v_dim is None else check_at_least("v_dim", v_dim, 1)
        self.scale, self.bias = check_option("scale", scale, Scale), check_flag("bias", bias)
        # the scores of a key, one per head, are extra columns of the key; each head's query selects its own column
        self.k_dim = self.shared + (heads if check_flag("content", content) else 0)
        self.q = nn.Linear(d, self.shared, bias=False)
        self.k = nn.Linear(d, self.k_dim, bias=False)
        self.v = nn.Linear(d, heads * self.v_dim, bias=bias)
        self.mixing = nn.Parameter(_initial_mixing(heads, self.shared, check_option("mixing", mixing, Mixing)))

    @property
    def value_heads(self) -> int:
        return self.heads

    @property
    def squared_scale(self) -> float:
        """The divisor s under the root in the equation of the class."""
        return self.shared if self.scale == "shared" else self.shared / self.heads

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries:
        q = self.q(x)[:, None] * self.mixing[:, None]  # [B 1 T shared] times [H 1 shared]
        if self.k_dim > self.shared:
            own_columns = torch.eye(self.heads, dtype=q.dtype, device=q.device)[:, None]
            q = torch.cat([q, own_columns.expand(len(q), -1, q.shape[2], -1)], -1)
        # the mechanism divides by the root of the key width
        return Queries(q * (self.k_dim / self.squared_scale) ** 0.5, pos[:, None])

    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys:
        return Keys(self.k(source)[:, None], by_head(self.v(source), self.heads), pos[:, None])

    @classmethod
    def from_trained(
        cls, trained: QKV, shared: int | None = None, *, sweeps: int = 200, seed: int = 0
    ) -> "Collaborative":
        """Convert a trained `QKV` to shared queries and keys of width `shared` instead of heads * head_dim.

        All other weights of an attention layer stay valid. A CP decomposition by alternating least squares approximates
        the tensor [heads d d] of all matrices W_q W_k^T. The result is a sum of `shared` products of three vectors.
        Query biases become scores of keys. Key biases add the same number to every key, so the softmax cancels them.
        With the original number of columns the conversion is exact.

        trained: projection with queries, keys and values by head.
        shared: width of the shared queries and keys; heads * head_dim by default.
        sweeps: number of iterations of alternating least squares.
        seed: random seed of the decomposition's start.

        Errors: ValueError if positions rotate the queries and keys, because shared queries and keys cannot represent
        that.

        Source: section 4 of the paper.

        Differences: the authors' code divides logits by the root of the new width per head. In this
        class the mixing weights make up for the new divisor, so the logits stay the same.
        """
        if trained.rotation is not None:
            raise ValueError(
                "a QKV with a rotation cannot be converted: the rotation turns queries and keys by position. Pass a "
                "QKV without one"
            )
        heads, group = trained.heads, trained.heads // trained.key_heads
        with torch.no_grad():
            (q, q_bias), (k, _), (v, v_bias) = (trained.matrix(name) for name in ("q", "k", "v"))
            q = q.unflatten(0, (heads, -1))  # [H K D]
            k, v = (x.unflatten(0, (trained.key_heads, -1)).repeat_interleave(group, 0) for x in (k, v))
            mix, left, right = _factors(q, k, heads * trained.k_dim if shared is None else shared, sweeps, seed)
            projection = cls(
                trained.d,
                heads,
                shared=mix.shape[1],
                v_dim=trained.v_dim,
                scale="head",
                bias=v_bias is not None,
                content=q_bias is not None,
            )
            root = (projection.squared_scale / trained.k_dim) ** 0.5
            projection.mixing.copy_(mix * root)
            projection.q.weight.copy_(left.mT)
            alone = [] if q_bias is None else [torch.einsum("hk,hkd->hd", q_bias.unflatten(0, (heads, -1)), k) * root]
            projection.k.weight.copy_(torch.cat([right.mT.to(k.dtype), *alone]))
            projection.v.weight.copy_(v.flatten(0, 1))
            if v_bias is not None:
                by_group = v_bias.unflatten(0, (trained.key_heads, -1))
                projection.v.bias.copy_(by_group.repeat_interleave(group, 0).flatten())
        return projection.to(q)


def _initial_mixing(heads: int, shared: int, mixing: Mixing) -> Float[Tensor, "H shared"]:
    if mixing == "normal":
        return torch.randn(heads, shared) * 0.2
    if mixing == "ones":
        return torch.ones(heads, shared)
    if shared < heads:
        raise ValueError(
            f"shared={shared} is too small for {heads} heads that each have columns of their own. Pass at least {heads}"
        )
    return _blocks(heads, shared)


def _blocks(heads: int, shared: int) -> Float[Tensor, "H shared"]:
    """Return a run of columns for each head; some runs are one column longer if `shared` does not divide."""
    head_of_column = torch.arange(shared) * heads // shared
    return (head_of_column == torch.arange(heads)[:, None]).to(torch.get_default_dtype())


def _factors(
    q: Float[Tensor, "H K D"], k: Float[Tensor, "H K D"], shared: int, sweeps: int, seed: int
) -> tuple[Float[Tensor, "H R"], Float[Tensor, "D R"], Float[Tensor, "D R"]]:
    """Return m, a, b with q_h^T k_h close to sum_r m_hr a_r b_r^T, computed in float64."""
    heads, width, d = q.shape
    if (extra_width := shared - heads * width) >= 0:
        exact = _blocks(heads, heads * width), q.flatten(0, 1).mT, k.flatten(0, 1).mT
        m, a, b = (F.pad(x, (0, extra_width)) for x in exact)
        draw = torch.Generator().manual_seed(seed)
        for x in (a, b):  # only m is 0 there: with all three at 0, none would get a gradient
            x[:, heads * width :] = torch.randn(d, extra_width, generator=draw).to(x) * x.std()
        return m, a, b
    whole = torch.einsum("hka,hkb->hab", q.double(), k.double())
    draw = torch.Generator().manual_seed(seed)
    m, a, b = (torch.randn(n, shared, generator=draw, dtype=torch.float64).to(q.device) for n in (heads, d, d))
    for start, unfolded in ((a, whole.transpose(0, 1)), (b, whole.movedim(2, 0))):
        directions, sizes, _ = torch.linalg.svd(unfolded.flatten(1), full_matrices=False)
        rank = min(shared, int((sizes > 1e-10 * sizes.max()).sum()))
        start[:, :rank] = directions[:, :rank]  # the main directions of each side; random starts seldom reach them
    for _ in range(check_at_least("sweeps", sweeps, 1)):
        m = _solve("hab,ar,br->hr", whole, a, b)
        a = _solve("hab,hr,br->ar", whole, m, b)
        b = _solve("hab,hr,ar->br", whole, m, a)
        # only the product of the three lengths matters; equal lengths keep all three factors bounded
        lengths = [x.norm(dim=0).clamp_min(1e-300) for x in (m, a, b)]
        even = torch.stack(lengths).log().mean(0).exp()
        m, a, b = (x / length * even for x, length in zip((m, a, b), lengths, strict=True))
    return m.to(q), a.to(q), b.to(q)


def _solve(sum: str, whole: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the third factor that fits best with the two given ones."""
    return torch.einsum(sum, whole, x, y) @ torch.linalg.pinv((x.mT @ x) * (y.mT @ y), hermitian=True)


EXAMPLES = (
    lambda: Collaborative(16, 2),
    lambda: Collaborative(16, 4, shared=6, v_dim=5, mixing="concatenated", scale="head", content=False, bias=False),
)
