"""TransformerXL: relative positions by sinusoids, with two learned vectors added to the query."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.bias import Bias, Distances, ScoreFn, at, check_bias_heads, entry
from kinformer.core.checks import check_at_least
from kinformer.core.heads import number_of_groups
from kinformer.core.request import Request
from kinformer.nn.positions.sinusoidal import angular


class TransformerXL(Bias):
    """Relative positions by sinusoids of the distance, for sequences of any length.

    score_ij = scale * [(q_i + u).k_j + (q_i + v).(W R_{i-j})]

    Choose it if a layer reads a memory of earlier segments, because absolute position embeddings do not fit tokens of
    earlier segments. It also suits encoders, because R distinguishes keys before and after the query. R_n is the
    sinusoid of n: all sines, then all cosines. W, u and v are learned; each head has its own u and v.

    Costs: if the range of distances is known without reading a tensor, W R is computed once per distance. It is known
    from the pattern's reach, or from a row without gaps. Otherwise the sinusoid of i - j is computed from the sinusoids
    of i and j. Both forms give equal results, and neither waits for the device.

    heads: number of heads of the layer.
    head_dim: width of a query.
    d: width of R, an even number; heads * head_dim by default.
    u, v: parameters of another layer, of shape [heads, head_dim], to share them as the paper's model does.
    clamp: largest distance, in positions; larger distances count as this one. The authors' code has this option for
        memories that are longer than in training.

    Errors: ValueError if d is odd, if u or v has another shape, or if the layer has a different number of heads.
    Source: Dai et al., 2019, arXiv:1901.02860, section 3.3.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        d: int | None = None,
        *,
        u: nn.Parameter | None = None,
        v: nn.Parameter | None = None,
        clamp: int | None = None,
    ):
        super().__init__()
        width = check_at_least("heads", heads, 1) * check_at_least("head_dim", head_dim, 1)
        self.heads, self.d = heads, width if d is None else check_at_least("d", d, 2)
        if self.d % 2:
            raise ValueError(f"d={self.d} is odd, but sinusoids come in pairs of sine and cosine. Pass an even d")
        for name, shared in (("u", u), ("v", v)):
            if shared is not None and shared.shape != (heads, head_dim):
                raise ValueError(
                    f"{name} has the wrong shape: got {list(shared.shape)}, expected [{heads}, {head_dim}]"
                )
        self.clamp = None if clamp is None else check_at_least("clamp", clamp, 1)
        self.position = nn.Linear(self.d, width, bias=False)
        self.u = _make_vector(heads, head_dim) if u is None else u
        self.v = _make_vector(heads, head_dim) if v is None else v

    @classmethod
    def make_sharing(
        cls, layers: int, heads: int, head_dim: int, d: int, clamp: int | None = None
    ) -> list["TransformerXL"]:
        """Return one bias for each of several layers, which share u and v as in the paper's model.

        layers: number of layers.
        heads, head_dim, d, clamp: see the class.
        """
        first = cls(heads, head_dim, d, clamp=clamp)
        rest = (cls(heads, head_dim, d, u=first.u, v=first.v, clamp=clamp) for _ in range(layers - 1))
        return [first, *rest][:layers]

    def bind(self, piece: Request) -> ScoreFn:
        check_bias_heads(f"a TransformerXL of {self.heads} heads", self.heads, piece)
        q, k, q_pos, k_pos = piece.queries.q, piece.keys.k, piece.queries.pos, piece.keys.pos
        groups = k.shape[1]
        number_of_groups(self.heads, groups)
        by_group = self.u.unflatten(0, (groups, -1))  # [G R K]: head h reads key head h // R
        content = torch.einsum("grk,bgsk->bgrs", by_group.to(k.dtype), k).flatten(1, 2) * piece.scale  # [B H S]
        asks = (q + self.v[:, None]) * piece.scale  # [B H T K]
        bounds = distances(piece, self.clamp)
        if bounds is None:
            position = self._of_positions(asks, q_pos, k_pos)
            return lambda s, b, h, i, j: s + content[b, h, j] + position[b, h, i, j]
        nearest, furthest = bounds
        # all layers of a call share the sinusoids; each layer has its own projection of them
        dtype = self.position.weight.dtype
        key = ("sinusoids", nearest, furthest, self.d, dtype, q.device)
        far = torch.arange(nearest, furthest + 1, device=q.device)
        # the queries may have a wider dtype than the weights, for example when received attention is computed later
        table = self.position(piece.memo.get(lambda: sinusoids(far, self.d, dtype), *key)).to(q.dtype)  # [N H*K]
        of_distances = torch.einsum("bhtk,nhk->bhtn", asks, table.unflatten(-1, (self.heads, -1)))

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = at(q_pos, b, h, i) - at(k_pos, b, h, j)
            return s + content[b, h, j] + entry(of_distances, b, h, i, distance.clamp(nearest, furthest) - nearest)

        return score

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        check_bias_heads(f"a TransformerXL of {self.heads} heads", self.heads, request)
        q = request.queries.q
        n = far if self.clamp is None else far.clamp(-self.clamp, self.clamp)
        waves = sinusoids(n, self.d, self.position.weight.dtype)
        table = self.position(waves).to(q.dtype).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # [H N K]
        return Distances(q + self.u[:, None], table, (q + self.v[:, None]) * request.scale)

    def _of_positions(
        self, asks: Float[Tensor, "B H T K"], q_pos: Int[Tensor, "B #H T"], k_pos: Int[Tensor, "B #H S"]
    ) -> Float[Tensor, "B H T S"]:
        """Return asks_i.(W R_{i-j}) without a table, as a product of a function of i and R_j.

        It costs D more numbers per pair. At each wavelength sin(i - j) = sin i cos j - cos i sin j and
        cos(i - j) = cos i cos j + sin i sin j.
        """
        # angles count from the last query, so that angles of near positions are small and precise
        last = F.pad(q_pos.flatten(1), (0, 1)).amax(1)[:, None, None]
        weight = self.position.weight.to(asks.dtype).unflatten(0, (self.heads, -1))
        sines, cosines = torch.einsum("bhtk,hkd->bhtd", asks, weight).chunk(2, -1)
        sin, cos = sinusoids(q_pos - last, self.d, asks.dtype).chunk(2, -1)  # [B #H T D/2]
        turned = torch.cat([cosines * sin - sines * cos, sines * sin + cosines * cos], -1)
        return turned @ sinusoids(k_pos - last, self.d, asks.dtype).mT  # [B H T D] [B #H D S]


def distances(piece: Request, clamp: int | None = None) -> tuple[int, int] | None:
    """Return the smallest and the largest distance i - j of any pair, or None if they are unknown.

    The function does not read positions from the device.

    piece: queries and keys that are computed together, a part of an attention call.
    clamp: largest distance, in positions; larger distances count as this one.
    """
    back, ahead = piece.pattern.reach()
    if piece.run and piece.queries.pos is piece.keys.pos:
        furthest = max(piece.keys.pos.shape[-1] - 1, 0)
        back, ahead = min(back, furthest), min(ahead, furthest)
    if clamp is not None:
        back, ahead = max(min(back, clamp), -clamp), max(min(ahead, clamp), -clamp)
    if math.inf in (back, ahead):
        return None
    return int(-ahead), max(int(-ahead), int(back))


def sinusoids(n: Int[Tensor, "*N"], d: int, dtype: torch.dtype) -> Float[Tensor, "*N D"]:
    """Return the sinusoid of each number: all sines, then all cosines.

    [sin(n w_0), .., cos(n w_0), ..] with w_m = 10000^(-2m/d)

    n: positions or distances.
    d: width of a sinusoid, an even number.
    dtype: dtype of the result; angles are computed in float32 or a wider dtype.
    """
    exact = torch.promote_types(dtype, torch.float32)  # the angles of far distances need more digits than bfloat16 has
    angle = n[..., None].to(exact) * angular(d, exact, n.device)
    return torch.cat([angle.sin(), angle.cos()], -1).to(dtype)


def _make_vector(heads: int, head_dim: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(heads, head_dim) * 0.02)


SHARED = {"*.bias.[uv]": "all layers share one u and one v, as in the paper's model"}  # by `make_sharing`, in examples
EXAMPLES = (lambda: TransformerXL(2, 8), lambda: TransformerXL(2, 8, 12), lambda: TransformerXL(2, 8, clamp=3))
