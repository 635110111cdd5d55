"""Linear: attention through feature maps, whose past is a state of fixed size."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.feature_map import FeatureMap
from kinformer.core.layer import Context, Out, State
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.read import Read
from kinformer.maps.elu import ELU


class Sums(NamedTuple):
    """All that linear attention keeps of the past: `s` sums phi(k) v^T, `z` sums phi(k), in float32 or more."""

    s: Float[Tensor, "B G F V"]
    z: Float[Tensor, "B G F"]


class Update(ABC):
    """How a token enters the sums: S_t = keep_t S_(t-1) + add_t phi(k_t) v_t^T, and z likewise, by the logs of keep
    and add."""

    def sides(self) -> Mapping[str, int]:
        """How many numbers per head it wants from the layer's input, by name."""
        return {}

    @abstractmethod
    def logs(
        self, k: Float[Tensor, "B G T F"], sides: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "B G T"], Float[Tensor, "B G T"]]:
        """log keep and log add of every token."""


class Sum(Update):
    """Plain sums: nothing is forgotten. Source: Katharopoulos et al., 2020, arXiv:2006.16236, equations 18 and 19."""

    def logs(
        self, k: Float[Tensor, "B G T F"], sides: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "B G T"], Float[Tensor, "B G T"]]:
        none = k.new_zeros(k.shape[:-1])
        return none, none


class Gated(Update):
    """A learned gate per head and token: keep g_t, add 1 - g_t, g_t = sigmoid(w.x_t + b). Choose it where what is
    recent matters more.

    Needs as many key heads as heads. Source: Peng et al., 2021, arXiv:2103.02143, section 3.2.
    """

    def sides(self) -> Mapping[str, int]:
        return {"gate": 1}

    def logs(
        self, k: Float[Tensor, "B G T F"], sides: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "B G T"], Float[Tensor, "B G T"]]:
        gate = sides["gate"][..., 0].to(k.dtype)
        if gate.shape[1] != k.shape[1]:
            raise ValueError(
                f"{gate.shape[1]} gated heads cannot share {k.shape[1]} key heads' sums; give as many of both"
            )
        return F.logsigmoid(gate), F.logsigmoid(-gate)


class Linear(Mechanism):
    """Causal attention with weights phi(q).phi(k), whose time and memory per token do not grow.

    Choose it for long text and cheap decoding. `map` makes the features, `update` says how a token enters the sums:
    `Sum()` or `Gated()`. A step is a chunk of one token. Within a call `piece` tokens at a time are multiplied at
    once. It reads array order as time, so it wants `ctx.run`; padding is left out after the map. The lse is None
    where the map is signed, else the log of the sum of the map's kernel, with plain sums.

    Errors: ValueError without `ctx.run`, with `ctx.only` or `ctx.also` (sums cannot be narrowed), with keys of
    another sequence. Source: Katharopoulos et al., 2020, arXiv:2006.16236, section 3.4; gated and random features:
    Peng et al., 2021, arXiv:2103.02143.
    """

    def __init__(self, map: FeatureMap, update: Update | None = None, *, piece: int = 128):
        super().__init__()
        self.map, self.update, self.piece = map, update or Sum(), piece

    def sides(self, k_dim: int, v_dim: int) -> Mapping[str, int]:
        return self.update.sides()

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
    ) -> Sums:
        dtype, features = _precise(dtype or torch.get_default_dtype()), self.map.features(k_dim)
        return Sums(
            torch.zeros(batch, key_heads, features, v_dim, dtype=dtype, device=device),
            torch.zeros(batch, key_heads, features, dtype=dtype, device=device),
        )

    def forward(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        v: Float[Tensor, "B G S V"],
        k_pos: Int[Tensor, "B S"],
        state: Sums | None,
        ctx: Context,
        sides: Mapping[str, Float[Tensor, "B H T n"]],
    ) -> Out:
        _plain(ctx)
        _in_order(k_pos, ctx)
        phi_q, q_constant = _queries(self.map, q, k.shape[1])
        phi_k, k_constant = self.map(_wide(k), False)
        keep, add = self.update.logs(phi_k, sides)
        keep = keep.masked_fill((ctx.pos < 0)[:, None], 0.0)
        add = (add + k_constant).masked_fill((k_pos < 0)[:, None], -torch.inf)
        vectors = [x.split(self.piece, -2) for x in (phi_q, phi_k, _counted(v))]
        numbers = [x.split(self.piece, -1) for x in (keep, add)]
        sums = self._before(state, phi_k, v)
        reads = []
        for piece in zip(*vectors, *numbers, strict=True):
            read, sums = _chunk(sums, *piece)
            reads.append(read)
        kept = None if state is None else Sums(sums[..., :-1], sums[..., -1])
        return Out(_read(self.map, torch.cat(reads, -2), q_constant, q, ctx.pos), kept)

    def _before(self, state: Sums | None, phi: Tensor, v: Tensor) -> Tensor:
        if state is None:
            return phi.new_zeros(*phi.shape[:2], phi.shape[-1], v.shape[-1] + 1)
        return torch.cat([state.s, state.z[..., None]], -1).to(phi.dtype)


class FullLinear(Mechanism):
    """Attention with weights phi(q).phi(k) over every key: linear attention for encoders and cross-attention.

    Positions do not matter, except that padding is left out. Errors: NoState from `start`; ValueError with `ctx.only`
    or `ctx.also`. Source: Katharopoulos et al., 2020, arXiv:2006.16236, equation 5.
    """

    def __init__(self, map: FeatureMap):
        super().__init__()
        self.map = map

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
        raise NoState(
            "FullLinear reads the whole sequence at once and has no state; "
            "use Linear(map), or generate(..., recompute=True)"
        )

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
        _plain(ctx)
        phi_q, q_constant = _queries(self.map, q, k.shape[1])
        phi_k, k_constant = self.map(_wide(k), False)
        weight = k_constant.masked_fill(~(k_pos >= 0)[:, None], -torch.inf).exp()
        sums = torch.einsum("bgsf,bgs,bgsv->bgfv", phi_k, weight, _counted(v))
        read = torch.einsum("bgrtf,bgfv->bgrtv", phi_q, sums)
        return Out(_read(self.map, read, q_constant, q, ctx.pos))


def _chunk(
    sums: Float[Tensor, "B G F V"],
    q: Float[Tensor, "B G R T F"],
    k: Float[Tensor, "B G T F"],
    v: Float[Tensor, "B G T V"],
    keep: Float[Tensor, "B G T"],
    add: Float[Tensor, "B G T"],
) -> tuple[Float[Tensor, "B G R T V"], Float[Tensor, "B G F V"]]:
    """What the queries of a chunk read of the sums before it and of its own keys, and the sums after it.

    Key j counts exp(add_j + keep_(j+1) + ... + keep_i) for query i. keep is never positive, so no exponent of a pair
    in order is large.
    """
    faded = keep.cumsum(-1)
    future = torch.ones(k.shape[2], k.shape[2], dtype=torch.bool, device=k.device).triu(1)
    pairs = (faded[..., :, None] - faded[..., None, :] + add[..., None, :]).masked_fill(future, -torch.inf).exp()
    inside = torch.einsum("bgrtf,bgsf,bgts->bgrts", q, k, pairs)
    read = torch.einsum("bgrts,bgsv->bgrtv", inside, v) + torch.einsum("bgrtf,bgfv,bgt->bgrtv", q, sums, faded.exp())
    all_kept = keep.sum(-1)
    entering = (all_kept[..., None] - faded + add).exp()
    return read, all_kept.exp()[..., None, None] * sums + torch.einsum("bgsf,bgs,bgsv->bgfv", k, entering, v)


def _read(
    map: FeatureMap,
    read: Float[Tensor, "B G R T W"],
    constant: Float[Tensor, "B G R T"],
    q: Float[Tensor, "B H T K"],
    pos: Int[Tensor, "B T"],
) -> Read:
    """The quotient of sums over keys, whose last column is the sum of weights; padding reads nothing."""
    read = (read * (pos >= 0)[:, None, None, :, None]).flatten(1, 2)
    total = read[..., -1]
    divisor = map.denominator(total)
    some = divisor != 0
    safe = torch.where(some, divisor, 1.0)
    y = torch.where(some[..., None], read[..., :-1] / safe[..., None], 0.0).to(q.dtype)
    return Read(y, None if map.signed else torch.where(some, safe.log() + constant.flatten(1, 2), -torch.inf))


def _queries(
    map: FeatureMap, q: Float[Tensor, "B H T K"], groups: int
) -> tuple[Float[Tensor, "B G R T F"], Float[Tensor, "B G R T"]]:
    """Features of queries, R of them to a key head."""
    if q.shape[1] % groups:
        raise ValueError(
            f"{q.shape[1]} query heads cannot share {groups} key heads evenly; make the first a multiple of the second"
        )
    shape = (q.shape[1] // groups, q.shape[2])
    phi, constant = map(_wide(q).unflatten(1, (groups, -1)).flatten(2, 3), True)
    return phi.unflatten(2, shape), constant.unflatten(2, shape)


def _counted(v: Float[Tensor, "B G T V"]) -> Float[Tensor, "B G T W"]:
    """Values with a 1 at their end: its weighted sum is the normaliser."""
    return F.pad(_wide(v), (0, 1), value=1.0)


def _wide(x: Tensor) -> Tensor:
    return x.to(_precise(x.dtype))


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _plain(ctx: Context) -> None:
    if ctx.only is not None or ctx.also is not None:
        raise ValueError(
            "linear attention adds keys up before it reads them and cannot honour ctx.only or ctx.also; use Softmax"
        )


def _in_order(k_pos: Int[Tensor, "B S"], ctx: Context) -> None:
    if not ctx.run:
        raise ValueError(
            "Linear reads array order as time; number tokens consecutively and pass Context(pos, run=True), "
            "or use FullLinear"
        )
    own = k_pos.shape == ctx.pos.shape
    if own and not torch.compiler.is_compiling():
        own = bool(((k_pos == ctx.pos) | (k_pos < 0)).all())
    if not own:
        raise ValueError(
            "Linear reads the sequence that asks and got keys of another; use FullLinear for cross-attention, "
            "and no memory="
        )


EXAMPLES = (
    lambda: Linear(ELU()),
    lambda: Linear(ELU(), Gated(), piece=4),
    lambda: FullLinear(ELU()),
)
COMPILES = True
