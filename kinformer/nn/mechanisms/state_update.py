"""StateUpdate: how tokens enter the sums of linear attention, and what queries read of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.function_transforms import first_order, is_transformed
from kinformer.core.heads import HeadSizes

__all__ = ["DecayUpdate", "StateUpdate"]


class UpdateWeights(NamedTuple):
    """What keys weigh, in pieces of P tokens.

    For query i of its piece key j <= i weighs exp(entered_j - top_i), and the sums before the piece `before`_i. After a
    piece its keys weigh `entering` and the sums before it the last number of `before`.
    """

    entered: Float[Tensor, "B G N P"]
    top: Float[Tensor, "B G N P"]
    before: Float[Tensor, "B G N P"]
    entering: Float[Tensor, "B G N P"]

    def pairs(self) -> Float[Tensor, "B G N P S"]:
        length = self.top.shape[-1]
        future = self.top.new_full((length, length), -torch.inf).triu(1)
        return (self.entered[..., None, :] - self.top[..., :, None]).add_(future).exp_()

    def pair_weights_in_place(self) -> Float[Tensor, "B G N P S"]:
        """The same where nothing is learned through them. exp of -inf took thirteen times as long on a Xeon."""
        return (self.entered[..., None, :] - self.top[..., :, None]).exp_().tril_()

    def is_uniform(self, s: Float[Tensor, "B G F W"]) -> bool:
        """Does every key weigh 1, and nothing fade but sums `s` of nothing? Then no number is multiplied by a weight.

        Other devices than a CPU are not waited for.
        """
        first = self.before[:, :, 0]
        if first.device.type != "cpu":
            return False
        factors = self.entering, self.before[:, :, 1:], torch.where(first == 0, 1.0, first)
        if not all(bool((factor == 1).all()) for factor in factors):
            return False
        return bool((first == first[..., :1]).all()) and not bool(s[first[..., 0] == 0].any())

    def needs_no_gradient(self) -> bool:
        """Is there nothing to learn through them, and are tensors what they seem?"""
        seem = torch.compiler.is_compiling() or is_transformed()
        return not (seem or any(weight.requires_grad for weight in self))


class DecayedSum(torch.autograd.Function):
    """read_i = before_i q_i S + sum over j <= i of weight_ij (q_i.k_j) v_j, S being the sums before the piece."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        s: Float[Tensor, "B G F W"],
        q: Float[Tensor, "B G N R P F"],
        k: Float[Tensor, "B G N P F"],
        v: Float[Tensor, "B G N P W"],
        *weights: Float[Tensor, "B G N P"],
    ) -> tuple[Float[Tensor, "B G N R P W"], Float[Tensor, "B G F W"]]:
        factors = UpdateWeights(*weights)
        ctx.even = even = factors.is_uniform(s)  # type: ignore[attr-defined]
        states = k.mT @ (v if even else v * factors.entering[..., None])
        last = _run(s, _steps(factors, states))
        ctx.save_for_backward(q, k, v, states, *weights)
        ctx.set_materialize_grads(False)
        read = (q.flatten(3, 4) @ states).unflatten(3, q.shape[3:5])
        if not even:
            read.mul_(factors.before[:, :, :, None, :, None])
        return _add(read, _pairs(q, k, None if even else factors.pair_weights_in_place()), v), last

    @staticmethod
    @first_order
    def backward(ctx: FunctionCtx, gy: Tensor | None, gs: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # type: ignore[attr-defined]
        with torch.autocast(saved[0].device.type, enabled=False):  # where a backward is called under it
            return *_gradients(*saved, gy=gy, gs=gs, even=ctx.even), None, None, None, None  # type: ignore[attr-defined]


def _gradients(
    q: Float[Tensor, "B G N R P F"],
    k: Float[Tensor, "B G N P F"],
    v: Float[Tensor, "B G N P W"],
    states: Float[Tensor, "B G N F W"],
    *weights: Float[Tensor, "B G N P"],
    gy: Float[Tensor, "B G N R P W"] | None,
    gs: Float[Tensor, "B G F W"] | None,
    even: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the sums, queries, keys and values."""
    factors = UpdateWeights(*weights)
    gy = torch.zeros_like(q[..., :1]).expand(*q.shape[:5], v.shape[-1]) if gy is None else gy
    gs = torch.zeros_like(states[:, :, 0]) if gs is None else gs
    pairs = None if even else factors.pair_weights_in_place()
    of_pairs, inside = _pairs(gy, v, pairs), _pairs(q, k, pairs)
    faded, weighed = (gy, v) if even else (gy * factors.before[:, :, :, None, :, None], v * factors.entering[..., None])
    # what the sums before each piece are told by its reads, and by all that comes after it
    after = q.flatten(3, 4).mT @ faded.flatten(3, 4)
    gs = _run(gs, _steps(factors, after)[::-1])
    if even:  # where there was nothing before the row, nothing is told to it
        gs = gs * factors.before[:, :, 0, -1, None, None]
    dq = _add((of_pairs @ k).unflatten(3, q.shape[3:5]), faded.flatten(3, 4), states.mT)
    dk = _add(weighed @ after.mT, of_pairs.mT, q.flatten(3, 4))
    dv = k @ after if even else (k @ after).mul_(factors.entering[..., None])
    return gs, dq, dk, _add(dv, inside.mT, gy.flatten(3, 4))


def _pairs(
    x: Float[Tensor, "B G N R P n"], y: Float[Tensor, "B G N P n"], weights: Float[Tensor, "B G N P S"] | None
) -> Float[Tensor, "B G N R*P S"]:
    """Products of the tokens of a piece with those up to them, weighed."""
    products = (x.flatten(3, 4) @ y.mT).unflatten(3, x.shape[3:5])
    return (products.tril_() if weights is None else products.mul_(weights[:, :, :, None])).flatten(3, 4)


Steps = list[tuple[Float[Tensor, "B G 1 1"], Float[Tensor, "B G F W"]]]


def _steps(factors: UpdateWeights, new: Float[Tensor, "B G N F W"]) -> Steps:
    """What sums before each piece weigh after it, and what it adds."""
    return [*zip(factors.before[..., -1, None, None].unbind(2), new.unbind(2), strict=True)]


def _run(s: Float[Tensor, "B G F W"], steps: Steps) -> Float[Tensor, "B G F W"]:
    """The sums after the last step; those before each one are written where what it adds stood."""
    for keep, new in steps:
        after = torch.addcmul(new, keep, s)
        new.copy_(s)
        s = after
    return s


def _add(to: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """to + x y, in place."""
    to.view(-1, x.shape[-2], y.shape[-1]).baddbmm_(x.flatten(0, 2), y.flatten(0, 2))
    return to


class LinearState(NamedTuple):
    """All that linear attention keeps of the past.

    The last column of `s` is the normaliser: s exp(level) is the sum of the weights of phi(k) [v, 1]^T. `level` is the
    largest weight so far, in logs, so that no weight overflows and none is lost beside none: -inf before any key.
    """

    s: Float[Tensor, "B G F W"]
    level: Float[Tensor, "B G"]

    def reset(self, rows: Bool[Tensor, " B"]) -> "LinearState":
        """The marked rows as before any key."""
        mark = rows.to(self.s.device)
        s, level = (
            torch.where(mark[:, None, None, None], 0.0, self.s),
            torch.where(mark[:, None], -torch.inf, self.level),
        )
        return LinearState(s, level)


class KeyFeatures(NamedTuple):
    """Tokens of a chunk on their way into the sums, in float32 or better: N pieces of P.

    `k` are features, `v` values with a 1 at their end, `weight` the log of what the features left out, -inf where there
    is no key. `here` is where time passes: not at padding.
    """

    k: Float[Tensor, "B G *T F"]
    v: Float[Tensor, "B G *T W"]
    weight: Float[Tensor, "B G *T"]
    real: Bool[Tensor, "B 1 *T"]
    extras: Mapping[str, Float[Tensor, "B G *T n"]]

    def pieces(self, sizes: list[int], piece: int) -> list["KeyFeatures"]:
        """Chunks of so many tokens, each in pieces."""
        k, v, weight, real = (in_pieces(x, sizes, piece) for x in self[:4])
        extras = {name: in_pieces(x, sizes, piece) for name, x in self.extras.items()}
        of = [{name: side[n] for name, side in extras.items()} for n in range(len(sizes))]
        return [KeyFeatures(*fields) for fields in zip(k, v, weight, real, of, strict=True)]


def in_pieces(x: Float[Tensor, "B G T *n"] | Bool[Tensor, "B 1 T"], sizes: list[int], piece: int) -> list[Tensor]:
    """Chunks of so many tokens as [B G N P *n]; split once: the gradient of a slice is as long as the row."""
    chunks = x.split(sizes, 2) if len(sizes) > 1 else [x] * len(sizes)
    return [chunk.unflatten(2, (-1, min(piece, n))) for chunk, n in zip(chunks, sizes, strict=True)]


class StateUpdate(nn.Module, ABC):
    """What a chunk's tokens do to the sums, and what its queries read: the arithmetic of a rule (sum, gate, delta).

    A step is a chunk of one token. A faster arithmetic of the same rule is another StateUpdate.
    """

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """What it wants from the layer's input for each token and key head, by name: they are found in `extras`."""
        return {}

    @abstractmethod
    def forward(
        self, sums: LinearState, q: Float[Tensor, "B G N R P F"] | None, new: KeyFeatures, levels: bool
    ) -> tuple[Float[Tensor, "B G N R P W"] | None, Float[Tensor, "B G N P"] | None, LinearState]:
        """What each query reads of the sums before the chunk and of the tokens up to its own, and the sums after it.

        A read times exp(level) is what the query reads, and its last column divides the others. A rule whose sums are
        no weighted mean gives no level, and nothing is divided. Without `levels` every level is 0: for maps whose sums
        are not only divided. Without q only the sums are wanted. Sums may be written in place where nothing learns.
        """


class DecayUpdate(StateUpdate):
    """S_t = keep_t S_(t-1) + add_t phi(k_t) [v_t, 1]^T: write `logs`, the logs of keep and add."""

    @abstractmethod
    def logs(
        self, k: Float[Tensor, "B G N P F"], extras: Mapping[str, Float[Tensor, "B G N P n"]]
    ) -> tuple[Float[Tensor, "B G N P"], Float[Tensor, "B G N P"]]:
        """log keep and log add of every token, neither above 0."""

    def forward(
        self, sums: LinearState, q: Float[Tensor, "B G N R P F"] | None, new: KeyFeatures, levels: bool
    ) -> tuple[Float[Tensor, "B G N R P W"] | None, Float[Tensor, "B G N P"], LinearState]:
        keep, add = self.logs(new.k, new.extras)
        faded = keep.masked_fill(~new.real, 0.0).cumsum(-1)  # since the piece began
        # for query i of its piece key j <= i weighs exp(entered_j + faded_i), and the sums before exp(start + faded_i)
        entered = add + new.weight - faded
        constant = faded.detach()
        highest = entered.detach().cummax(-1).values if levels else -constant
        starts = _levels_of_pieces(sums.level, highest[..., -1], constant[..., -1])
        start = torch.stack(starts[:-1], -1)[..., None]  # [B G N 1]
        top = torch.maximum(start, highest)  # the largest weight up to each token
        top = torch.where(top == -torch.inf, 0.0, top)
        level, after = top + constant, starts[-1]
        top = top + (constant - faded)  # levels are numbers through which nothing learns: whatever is taken off is back
        before = (start - top).exp()  # never above 1
        if new.k.shape[2:4] == (1, 1):
            s = _add_key(sums.s, before[..., 0], (entered - top).exp()[..., 0], new, q)
            return None if q is None else multiply(q, s.unflatten(1, (-1, 1))), level, LinearState(s, after)
        entering = (entered - top[..., -1:]).exp()
        weights = UpdateWeights(entered, top, before, entering)
        if q is not None and weights.needs_no_gradient():
            read, s = DecayedSum.apply(sums.s, q, new.k, new.v, *weights)
            return read, level, LinearState(s, after)
        states = _sums_of_pieces(sums.s, before[..., -1], new.k.mT @ (new.v * entering[..., None]))
        read = None
        if q is not None:
            inside = multiply(q, new.k.mT) * weights.pairs()[:, :, :, None]  # [B G N R P S]
            past = multiply(q, torch.stack(states[:-1], 2))
            read = torch.addcmul(multiply(inside, new.v), past, before[:, :, :, None, :, None])
        return read, level, LinearState(states[-1], after)


def _levels_of_pieces(
    level: Float[Tensor, "B G"], highest: Float[Tensor, "B G N"], faded: Float[Tensor, "B G N"]
) -> list[Float[Tensor, "B G"]]:
    """The largest weight before each piece and after the last."""
    starts = [level]
    for new, end in zip(highest.unbind(-1), faded.unbind(-1), strict=True):
        starts.append(torch.maximum(starts[-1], new) + end)
    return starts


def _sums_of_pieces(
    s: Float[Tensor, "B G F W"], keep: Float[Tensor, "B G N"], new: Float[Tensor, "B G N F W"]
) -> list[Float[Tensor, "B G F W"]]:
    """The sums before each piece and after the last."""
    states = [s]
    for decay, added in zip(keep[..., None, None].unbind(2), new.unbind(2), strict=True):
        states.append(torch.addcmul(added, decay, states[-1]))
    return states


def _add_key(
    s: Tensor, before: Float[Tensor, "B G 1"], weight: Float[Tensor, "B G 1"], new: KeyFeatures, q: Tensor | None
) -> Tensor:
    """The sums with one more key, in place where nothing learns, nor a query by what it read there."""
    k, v = new.k[:, :, 0].mT, new.v[:, :, 0] * weight[..., None]  # [B G F 1], [B G 1 W]
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (s, before, k, v, q)):
        return s * before[..., None] + k * v
    return s.mul_(before[..., None]).addcmul_(k, v)


def multiply(x: Float[Tensor, "B G N R P K"], y: Float[Tensor, "B G N K M"]) -> Float[Tensor, "B G N R P M"]:
    """x y, the R query heads of a key head one under the other."""
    return (x.flatten(3, 4) @ y).unflatten(3, x.shape[3:5])


def apply_in_pieces(
    update: StateUpdate,
    sums: LinearState,
    q: Float[Tensor, "B G R T F"] | None,
    new: KeyFeatures,
    piece: int,
    levels: bool,
) -> tuple[Float[Tensor, "B G R T W"] | None, Float[Tensor, "B G T"] | None, LinearState]:
    """What each query of a row reads, in pieces of so many tokens, its level, and the sums after the row."""
    length = new.k.shape[2]
    sizes = [n for n in (length - length % piece, length % piece) if n]
    pieces = [None] * len(sizes) if q is None else in_pieces(q.transpose(2, 3), sizes, piece)
    reads, levels_read = [], []
    for queries, of_keys in zip(pieces, new.pieces(sizes, piece), strict=True):
        asking = None if queries is None else queries.transpose(3, 4).contiguous()  # [B G N R P F]
        read, level, sums = update(sums, asking, of_keys, levels)
        reads += [] if read is None else [read.transpose(2, 3).flatten(3, 4)]  # [B G R T W]
        levels_read += [] if level is None else [level.flatten(2)]
    if q is None:
        return None, None, sums
    read = _concatenate(reads, -2, new.v.new_zeros(*q.shape[:4], new.v.shape[3]))
    return read, None if reads and not levels_read else _concatenate(levels_read, -1, new.weight), sums


def _concatenate(pieces: list[Tensor], dim: int, empty: Tensor) -> Tensor:
    """Pieces of a row put together; one piece is not copied, no piece is `none`."""
    return torch.cat(pieces, dim) if len(pieces) > 1 else pieces[0] if pieces else empty
