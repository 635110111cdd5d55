"""Collaborative: all heads share the columns of one query and one key matrix, and each weighs them in its own way."""

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
    """logit_h(i, j) = ((x_i W_q * m_h) . (x_j W_k) + x_j w_h) / sqrt(s), values by head.

    Choose it where heads want the same things of queries and keys: trained heads do, so `shared` can be a quarter of
    the width and the cache holds one key of that width for all heads. `from_trained` turns a trained `QKV` into one.

    d: the width of what is projected.
    heads: heads of queries and of values.
    shared: columns of W_q and W_k, D; d unless given.
    v_dim: the width of a value, d / heads unless given.
    mixing: how the m_h start. "normal": normal with deviation 0.2, as in the authors' code; "ones": all alike;
        "concatenated": head h has columns of its own, as in ordinary attention.
    scale: s. "shared": D, attention's rule for keys of width D. "head": D / heads, the authors' code, under which
        "concatenated" is ordinary attention.
    content: whether keys have a score of their own, w_h; the authors' code has, the paper's first equation has not.
    bias: whether values have a bias; the layer's output matrix then has one too.

    The mechanism must keep its default scale, 1 / sqrt of the width of a key. Errors: ValueError for sizes that do not
    divide, and for "concatenated" with fewer columns than heads. Source: Cordonnier et al., 2020, arXiv:2006.16362.
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
        # the score of a key alone, one number per head, rides behind it; each head's query picks its own
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
        """s of the equation."""
        return self.shared if self.scale == "shared" else self.shared / self.heads

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries:
        q = self.q(x)[:, None] * self.mixing[:, None]  # [B 1 T shared] times [H 1 shared]
        if self.k_dim > self.shared:
            own_columns = torch.eye(self.heads, dtype=q.dtype, device=q.device)[:, None]
            q = torch.cat([q, own_columns.expand(len(q), -1, q.shape[2], -1)], -1)
        # the mechanism will divide by the root of the width of a key
        return Queries(q * (self.k_dim / self.squared_scale) ** 0.5, pos[:, None])

    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys:
        return Keys(self.k(source)[:, None], by_head(self.v(source), self.heads), pos[:, None])

    @classmethod
    def from_trained(
        cls, trained: QKV, shared: int | None = None, *, sweeps: int = 200, seed: int = 0
    ) -> "Collaborative":
        """A trained projection with `shared` columns in place of heads * head_dim; its layer keeps all other weights.

        The matrices W_q W_k^T of all heads, a tensor [heads d d], become a sum of `shared` products of three vectors
        (CP decomposition, alternating least squares); biases of queries become scores of keys, biases of keys are the
        same for every key and fall out of the softmax. With as many columns as before it is exact.

        trained: queries, keys and values by head.
        shared: columns to keep, as many as there are unless given.
        sweeps: how often each of the three is solved for.
        seed: the decomposition starts from it.

        Errors: ValueError for queries and keys that are turned by position, which no shared column can follow.
        Source: section 4 of the paper. The authors' code divides by the root of the new width per head; here logits
        stay what they were.
        """
        if trained.rotation is not None:
            raise ValueError("a QKV with a rotation turns queries and keys by position; give one without")
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
            f"shared={shared} is too few for {heads} heads with columns of their own; give {heads} at least"
        )
    return _blocks(heads, shared)


def _blocks(heads: int, shared: int) -> Float[Tensor, "H shared"]:
    """A run of columns for each head, some one longer than others where they do not divide."""
    head_of_column = torch.arange(shared) * heads // shared
    return (head_of_column == torch.arange(heads)[:, None]).to(torch.get_default_dtype())


def _factors(
    q: Float[Tensor, "H K D"], k: Float[Tensor, "H K D"], shared: int, sweeps: int, seed: int
) -> tuple[Float[Tensor, "H R"], Float[Tensor, "D R"], Float[Tensor, "D R"]]:
    """m, a, b with q_h^T k_h near sum_r m_hr a_r b_r^T, in float64."""
    heads, width, d = q.shape
    if (extra_width := shared - heads * width) >= 0:
        exact = _blocks(heads, heads * width), q.flatten(0, 1).mT, k.flatten(0, 1).mT
        m, a, b = (F.pad(x, (0, extra_width)) for x in exact)
        draw = torch.Generator().manual_seed(seed)
        for x in (a, b):  # m alone is 0 there, or none of the three would ever learn
            x[:, heads * width :] = torch.randn(d, extra_width, generator=draw).to(x) * x.std()
        return m, a, b
    whole = torch.einsum("hka,hkb->hab", q.double(), k.double())
    draw = torch.Generator().manual_seed(seed)
    m, a, b = (torch.randn(n, shared, generator=draw, dtype=torch.float64).to(q.device) for n in (heads, d, d))
    for start, unfolded in ((a, whole.transpose(0, 1)), (b, whole.movedim(2, 0))):
        directions, sizes, _ = torch.linalg.svd(unfolded.flatten(1), full_matrices=False)
        rank = min(shared, int((sizes > 1e-10 * sizes.max()).sum()))
        start[:, :rank] = directions[:, :rank]  # the main directions of each side, which random ones seldom reach
    for _ in range(check_at_least("sweeps", sweeps, 1)):
        m = _solve("hab,ar,br->hr", whole, a, b)
        a = _solve("hab,hr,br->ar", whole, m, b)
        b = _solve("hab,hr,ar->br", whole, m, a)
        # lengths are free; kept alike, none of the three runs away
        lengths = [x.norm(dim=0).clamp_min(1e-300) for x in (m, a, b)]
        even = torch.stack(lengths).log().mean(0).exp()
        m, a, b = (x / length * even for x, length in zip((m, a, b), lengths, strict=True))
    return m.to(q), a.to(q), b.to(q)


def _solve(sum: str, whole: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The third factor that fits best beside two."""
    return torch.einsum(sum, whole, x, y) @ torch.linalg.pinv((x.mT @ x) * (y.mT @ y), hermitian=True)


EXAMPLES = (
    lambda: Collaborative(16, 2),
    lambda: Collaborative(16, 4, shared=6, v_dim=5, mixing="concatenated", scale="head", content=False, bias=False),
)
