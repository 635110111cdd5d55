"""LinearAttention: attention through feature maps, whose past is a state of fixed size."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.checks import a_part, at_least
from kinformer.core.example import Example
from kinformer.core.feature_map import FeatureMap
from kinformer.core.heads import Keys, Queries, Room, Side, Sizes, number_of_groups
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.read import Read
from kinformer.core.state import Exact
from kinformer.mechanisms.support.update import Entering, Fading, Sums, Update

CROSS = (
    "LinearAttention adds up the sequence that asks, in its order, and keys of another sequence came; "
    "use FullLinearAttention(map) for cross-attention"
)


class Sum(Fading):
    """S_t = S_(t-1) + phi(k_t) v_t^T: nothing is forgotten.

    Source: Katharopoulos et al., 2020, arXiv:2006.16236, equations 18 and 19.
    """

    def logs(
        self, k: Float[Tensor, "B G T F"], sides: Mapping[str, Float[Tensor, "B G T n"]]
    ) -> tuple[Float[Tensor, "B G T"], Float[Tensor, "B G T"]]:
        none = k.new_zeros(k.shape[:-1])
        return none, none


class GatedSum(Fading):
    """S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T, g_t = sigmoid(w.x_t + b): choose it where what is recent matters.

    Each key head has a gate of its own, a key side of the layer. Source: Peng et al., 2021, arXiv:2103.02143, section
    3.2.
    """

    def key_sides(self, sizes: Sizes) -> Mapping[str, Side]:
        return {"gate": Side(1)}

    def logs(
        self, k: Float[Tensor, "B G T F"], sides: Mapping[str, Float[Tensor, "B G T n"]]
    ) -> tuple[Float[Tensor, "B G T"], Float[Tensor, "B G T"]]:
        gate = sides["gate"][..., 0].to(k.dtype)
        return F.logsigmoid(gate), F.logsigmoid(-gate)


class LinearAttention(Mechanism):
    """Causal attention with weights phi(q).phi(k), whose time and memory per token do not grow.

    y_i = sum_(j <= i) phi(q_i).phi(k_j) v_j / sum_(j <= i) phi(q_i).phi(k_j)

    Choose it for long text and cheap decoding. It reads array order as time, so it wants `ctx.run`, which every model
    promises. The state is kept in float32 or better. The lse is the log of the sum of the kernel, None for signed maps.

    map: the features phi, such as `ELU()`.
    update: how a token enters the sums, `Sum()` unless given.
    piece: how many tokens are multiplied at once within a call; time grows with it, overhead shrinks.

    Errors: ValueError without `ctx.run`, with `ctx.only` or `ctx.also` (sums cannot be narrowed), and for
    cross-attention, when the layer is built. Source: Katharopoulos et al., 2020, arXiv:2006.16236, section 3.4; gated
    sums and random features: Peng et al., 2021, arXiv:2103.02143.
    """

    def __init__(self, map: FeatureMap, update: Update | None = None, *, piece: int = 128):
        super().__init__()
        self.map = a_part("map", map, FeatureMap, "a feature map, such as ELU()")
        self.update = Sum() if update is None else a_part("update", update, Update, "an update, such as Sum()")
        self.piece = at_least("piece", piece, 1)

    def key_sides(self, sizes: Sizes) -> Mapping[str, Side]:
        if sizes.cross:  # asked when a layer is built, and so refused there
            raise ValueError(CROSS)
        return self.update.key_sides(sizes)

    def start(self, room: Room, sizes: Sizes) -> Exact:
        if sizes.cross:
            raise NoState(CROSS)
        return Exact(_nothing(room, sizes, self.map.features(sizes.k_dim)))

    def forward(self, queries: Queries, keys: Keys | None, state: Exact | None, ctx: Context) -> Out[Read]:
        if keys is None or not keys.own:
            raise ValueError(CROSS)
        if keys.k.shape[2] != queries.q.shape[2]:
            raise ValueError(
                f"LinearAttention got {queries.q.shape[2]} queries and {keys.k.shape[2]} keys; give each token both"
            )
        _check_limits(ctx)
        if not ctx.run:
            raise ValueError(
                "LinearAttention reads array order as time; number tokens consecutively and pass "
                "Context(pos, run=True), or use FullLinearAttention"
            )
        with _exact(keys.k):
            sums = None if state is None else state.inside
            dtype = _precision(keys.k, sums)
            new = _entering(self.map, keys, queries.pos[:, :1] >= 0, dtype)
            q, constant = (None, None) if ctx.remember else _asked(self.map, queries, keys.k.shape[1], dtype)
            sums = _fresh(new) if sums is None else sums
            reads, levels = [], []
            for lo in range(0, new.k.shape[2], self.piece):
                hi = lo + self.piece
                read, level, sums = self.update(
                    sums, None if q is None else q[..., lo:hi, :], new.cut(lo, hi), not self.map.signed
                )
                reads.append(read)
                levels.append(level)
            kept = None if state is None else Exact(sums)
            if q is None or constant is None:
                return Out(Read(queries.q[..., :0], None), kept)
            read = _joined(reads, -2, q.new_zeros(*q.shape[:4], new.v.shape[3]))
            level = _joined(levels, -1, new.weight)[:, :, None] + constant
            return Out(_divided(self.map, read, level, queries), kept)


class FullLinearAttention(Mechanism):
    """Attention with weights phi(q).phi(k) over every key: linear attention for encoders and cross-attention.

    y_i = sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j)

    Positions do not matter, except that padding is left out. In cross-attention it decodes: its state is the sums over
    the source.

    map: the features phi, such as `ELU()`.

    Errors: NoState from `start` of a sequence that reads itself; ValueError there with `ctx.only` or `ctx.also`.
    Source: Katharopoulos et al., 2020, arXiv:2006.16236, equation 5.
    """

    def __init__(self, map: FeatureMap):
        super().__init__()
        self.map = a_part("map", map, FeatureMap, "a feature map, such as ELU()")

    def start(self, room: Room, sizes: Sizes) -> Exact:
        if not sizes.cross:
            raise _no_state()
        return Exact(_nothing(room, sizes, 0))

    def forward(self, queries: Queries, keys: Keys | None, state: Exact | None, ctx: Context) -> Out[Read]:
        if keys is not None and keys.own:
            _check_limits(ctx)  # what a batch says of its own pairs says nothing of a source
            if state is not None:
                raise _no_state()
        with _exact(queries.q):
            if keys is not None:
                sums = _summed(self.map, keys, _precision(keys.k, None if state is None else state.inside))
            elif state is None or not state.inside.s.shape[2]:
                raise ValueError(
                    "cross-attention got no source; give Context(source=..., source_pos=...) in the first call"
                )
            else:
                sums = state.inside
            kept = None if state is None else Exact(sums)
            if ctx.remember:
                return Out(Read(queries.q[..., :0], None), kept)
            q, constant = _asked(self.map, queries, sums.s.shape[1], sums.s.dtype)
            read = (q.flatten(2, 3) @ sums.s).unflatten(2, q.shape[2:4])  # [B G R T W]
            return Out(_divided(self.map, read, sums.level[..., None, None] + constant, queries), kept)


def _nothing(room: Room, sizes: Sizes, features: int) -> Sums:
    if sizes.value_heads != sizes.key_heads:
        raise ValueError(
            f"linear attention adds up products of {sizes.key_heads} key heads and {sizes.value_heads} value heads; "
            "give as many of both"
        )
    dtype = torch.promote_types(room.dtype, torch.float32)
    s = torch.zeros(room.batch, sizes.key_heads, features, sizes.v_dim + 1, dtype=dtype, device=room.device)
    return Sums(s, torch.full((room.batch, sizes.key_heads), -torch.inf, dtype=dtype, device=room.device))


def _precision(x: Tensor, sums: Sums | None) -> torch.dtype:
    """float32 at least, and what a state is kept in."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return wide if sums is None else torch.promote_types(wide, sums.s.dtype)


def _fresh(new: Entering) -> Sums:
    s = new.k.new_zeros(*new.k.shape[:2], new.k.shape[3], new.v.shape[3])
    return Sums(s, s.new_full(s.shape[:2], -torch.inf))


def _entering(map: FeatureMap, keys: Keys, here: Tensor, dtype: torch.dtype) -> Entering:
    k, constant = map(keys.k.to(dtype), False)
    weight = constant.masked_fill(keys.pos[:, :1] < 0, -torch.inf)  # after the map, which may give padding a feature
    return Entering(k, F.pad(keys.v.to(dtype), (0, 1), value=1.0), weight, here, keys.sides)


def _summed(map: FeatureMap, keys: Keys, dtype: torch.dtype) -> Sums:
    """All keys at once."""
    new = _entering(map, keys, keys.pos[:, :1] >= 0, dtype)
    if map.signed or not new.k.shape[2]:
        level = new.weight.new_zeros(new.weight.shape[:2])
    else:
        level = new.weight.detach().amax(-1)
        level = torch.where(level == -torch.inf, 0.0, level)
    weight = (new.weight - level[..., None]).exp()
    return Sums((new.k * weight[..., None]).mT @ new.v, level)  # [B G F S] [B G S W]


def _asked(
    map: FeatureMap, queries: Queries, groups: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "B G R T F"], Float[Tensor, "B G R T"]]:
    """Features of queries, R of them to a key head."""
    heads = number_of_groups(queries.q.shape[1], groups)
    by_group = queries.q.to(dtype).unflatten(1, (groups, heads)).flatten(2, 3)  # [B G R*T K]
    phi, constant = map(by_group, True)
    shape = (heads, queries.q.shape[2])
    return phi.unflatten(2, shape), constant.unflatten(2, shape)


def _divided(
    map: FeatureMap, read: Float[Tensor, "B G R T W"], level: Float[Tensor, "B G R T"], queries: Queries
) -> Read:
    """The quotient of sums over keys, whose last column is the sum of weights; padding reads nothing."""
    read = (read * (queries.pos[:, :1, :, None] >= 0)[:, None]).flatten(1, 2)  # [B H T W]
    divisor = map.denominator(read[..., -1])
    some = divisor != 0
    safe = torch.where(some, divisor, 1.0)
    y = torch.where(some[..., None], read[..., :-1] / safe[..., None], 0.0).to(queries.q.dtype)
    return Read(y, None if map.signed else torch.where(some, safe.log() + level.flatten(1, 2), -torch.inf))


def _joined(pieces: list[Tensor], dim: int, none: Tensor) -> Tensor:
    """Pieces of a row put together; one piece is not copied, no piece is `none`."""
    return torch.cat(pieces, dim) if len(pieces) > 1 else pieces[0] if pieces else none


def _exact(x: Tensor) -> AbstractContextManager:
    """Sums are taken in float32 under autocast too."""
    on = torch.is_autocast_enabled(x.device.type)
    return torch.autocast(x.device.type, enabled=False) if on else nullcontext()


def _check_limits(ctx: Context) -> None:
    if ctx.only is not None or ctx.also is not None:
        raise ValueError(
            "linear attention adds keys up before it reads them and cannot honour ctx.only or ctx.also; use Softmax"
        )


def _no_state() -> NoState:
    return NoState(
        "FullLinearAttention reads the whole sequence at once and has no state; "
        "use LinearAttention(map), or generate(..., recompute=True)"
    )


def _elu() -> LinearAttention:
    from kinformer.maps.elu import ELU

    return LinearAttention(ELU())


def _gated() -> LinearAttention:
    from kinformer.maps.elu import ELU

    return LinearAttention(ELU(), GatedSum(), piece=4)


def _full() -> FullLinearAttention:
    from kinformer.maps.elu import ELU

    return FullLinearAttention(ELU())


def _signed() -> LinearAttention:
    from kinformer.maps.random_fourier import RandomFourier

    return LinearAttention(RandomFourier(2, 8, 64))


NO_LSE = {"merge": "products of sines and cosines may be negative: their sum is clamped once and has no logarithm"}
EXAMPLES = (_elu, _gated, _full, Example(_signed, breaks=NO_LSE))
