"""StateUpdate: rules that add tokens to the sums of linear attention, and outputs from these sums."""

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
from kinformer.core.keyword_hints import KeywordHints

__all__ = ["DecayUpdate", "StateUpdate"]


class UpdateWeights(NamedTuple):
    """Weights of keys in linear attention with decay, in pieces of P consecutive tokens.

    A query i gives weight exp(entered_j - top_i) to a key j <= i of its piece, and weight before_i to the sums before
    the piece. After a piece, its keys have the weights `entering`. The sums before it then have the last weight of
    `before`.

    entered, top, before, entering: weights as above, each [B, G, N, P].
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
        """Return the weights of the (query, key) pairs of each piece, without gradients.

        Later keys are masked after exp, because exp of -inf took thirteen times as long on a Xeon.
        """
        return (self.entered[..., None, :] - self.top[..., :, None]).exp_().tril_()

    def is_uniform(self, s: Float[Tensor, "B G F W"]) -> bool:
        """Return True if every key has weight 1 and no nonzero sum `s` decays.

        Weights then need no multiplication. On devices other than a CPU it returns False, to avoid a wait.
        """
        first = self.before[:, :, 0]
        if first.device.type != "cpu":
            return False
        factors = self.entering, self.before[:, :, 1:], torch.where(first == 0, 1.0, first)
        if not all(bool((factor == 1).all()) for factor in factors):
            return False
        return bool((first == first[..., :1]).all()) and not bool(s[first[..., 0] == 0].any())

    def needs_no_gradient(self) -> bool:
        """Return True if no weight needs a gradient and the code is neither compiled nor transformed."""
        seem = torch.compiler.is_compiling() or is_transformed()
        return not (seem or any(weight.requires_grad for weight in self))


class DecayedSum(torch.autograd.Function):
    """Autograd function of linear attention: the outputs of pieces, and the sums after them.

    read_i = before_i q_i S + sum over j <= i of weight_ij (q_i.k_j) v_j

    S are the sums before the piece. q, k and v are features of queries, features of keys, and values.
    """

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
        with torch.autocast(saved[0].device.type, enabled=False):  # a backward pass may be called under autocast
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
    """Return the gradients of the sums, queries, keys and values."""
    factors = UpdateWeights(*weights)
    gy = torch.zeros_like(q[..., :1]).expand(*q.shape[:5], v.shape[-1]) if gy is None else gy
    gs = torch.zeros_like(states[:, :, 0]) if gs is None else gs
    pairs = None if even else factors.pair_weights_in_place()
    of_pairs, inside = _pairs(gy, v, pairs), _pairs(q, k, pairs)
    faded, weighed = (gy, v) if even else (gy * factors.before[:, :, :, None, :, None], v * factors.entering[..., None])
    # gradient of the sums before each piece, from its reads and from everything after it
    after = q.flatten(3, 4).mT @ faded.flatten(3, 4)
    gs = _run(gs, _steps(factors, after)[::-1])
    if even:  # sums before the row that were empty get no gradient
        gs = gs * factors.before[:, :, 0, -1, None, None]
    dq = _add((of_pairs @ k).unflatten(3, q.shape[3:5]), faded.flatten(3, 4), states.mT)
    dk = _add(weighed @ after.mT, of_pairs.mT, q.flatten(3, 4))
    dv = k @ after if even else (k @ after).mul_(factors.entering[..., None])
    return gs, dq, dk, _add(dv, inside.mT, gy.flatten(3, 4))


def _pairs(
    x: Float[Tensor, "B G N R P n"], y: Float[Tensor, "B G N P n"], weights: Float[Tensor, "B G N P S"] | None
) -> Float[Tensor, "B G N R*P S"]:
    """Return the weighted products of the tokens of a piece with the tokens up to them."""
    products = (x.flatten(3, 4) @ y.mT).unflatten(3, x.shape[3:5])
    return (products.tril_() if weights is None else products.mul_(weights[:, :, :, None])).flatten(3, 4)


Steps = list[tuple[Float[Tensor, "B G 1 1"], Float[Tensor, "B G F W"]]]


def _steps(factors: UpdateWeights, new: Float[Tensor, "B G N F W"]) -> Steps:
    """Return for each piece the weight of the sums before it, and the sum that it adds."""
    return [*zip(factors.before[..., -1, None, None].unbind(2), new.unbind(2), strict=True)]


def _run(s: Float[Tensor, "B G F W"], steps: Steps) -> Float[Tensor, "B G F W"]:
    """Return the sums after the last step, and write the sums before each step over its addend."""
    for keep, new in steps:
        after = torch.addcmul(new, keep, s)
        new.copy_(s)
        s = after
    return s


def _add(to: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Compute to + x y in place."""
    to.view(-1, x.shape[-2], y.shape[-1]).baddbmm_(x.flatten(0, 2), y.flatten(0, 2))
    return to


class LinearState(NamedTuple):
    """Decoding state of linear attention.

    s: sums of features and values, [B, G, F, W]. The last column is the divisor: s exp(level) is the weighted sum of
        phi(k) [v, 1]^T over the keys.
    level: log of the largest weight so far, [B, G]; -inf before the first key. It prevents overflow and the loss of
        small weights.
    """

    s: Float[Tensor, "B G F W"]
    level: Float[Tensor, "B G"]

    def reset(self, rows: Bool[Tensor, " B"]) -> "LinearState":
        """Return the state with the rows that `rows` marks reset to the state before the first key."""
        mark = rows.to(self.s.device)
        s, level = (
            torch.where(mark[:, None, None, None], 0.0, self.s),
            torch.where(mark[:, None], -torch.inf, self.level),
        )
        return LinearState(s, level)


class KeyFeatures(NamedTuple):
    """Tokens of a chunk before they enter the sums of linear attention, in float32 or wider.

    They are stored as a row or as N pieces of P tokens.

    k: features of the keys.
    v: values with an appended 1.
    weight: log of the factor that the features leave out; -inf if there is no key.
    real: False at padding, at which the sums do not decay.
    extras: extra projections by name.
    """

    k: Float[Tensor, "B G *T F"]
    v: Float[Tensor, "B G *T W"]
    weight: Float[Tensor, "B G *T"]
    real: Bool[Tensor, "B 1 *T"]
    extras: Mapping[str, Float[Tensor, "B G *T n"]]

    def pieces(self, sizes: list[int], piece: int) -> list["KeyFeatures"]:
        """Split the tokens into chunks, and each chunk into pieces.

        sizes: number of tokens of each chunk.
        piece: number of tokens of a piece.
        """
        k, v, weight, real = (in_pieces(x, sizes, piece) for x in self[:4])
        extras = {name: in_pieces(x, sizes, piece) for name, x in self.extras.items()}
        of = [{name: side[n] for name, side in extras.items()} for n in range(len(sizes))]
        return [KeyFeatures(*fields) for fields in zip(k, v, weight, real, of, strict=True)]


def in_pieces(x: Float[Tensor, "B G T *n"] | Bool[Tensor, "B 1 T"], sizes: list[int], piece: int) -> list[Tensor]:
    """Split x into chunks of pieces, [B, G, N, P, *n].

    x: tensor with tokens in dimension 2. One split is used, because the gradient of a slice is as long as the row.
    sizes: number of tokens of each chunk.
    piece: number of tokens of a piece.
    """
    chunks = x.split(sizes, 2) if len(sizes) > 1 else [x] * len(sizes)
    return [chunk.unflatten(2, (-1, min(piece, n))) for chunk, n in zip(chunks, sizes, strict=True)]


class StateUpdate(nn.Module, KeywordHints, ABC):
    """Base class of update rules for the sums of linear attention, such as sum, gate or delta.

    A subclass defines `forward`: the change of the sums by a chunk of tokens, and the outputs of the chunk's queries.

    A decoding step is a chunk of one token. A faster computation of the same rule is another StateUpdate.
    """

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """Return the extra projections of each token and key head by name; `forward` finds them in `extras`."""
        return {}

    @abstractmethod
    def forward(
        self, sums: LinearState, q: Float[Tensor, "B G N R P F"] | None, new: KeyFeatures, levels: bool
    ) -> tuple[Float[Tensor, "B G N R P W"] | None, Float[Tensor, "B G N P"] | None, LinearState]:
        """Return the outputs of the queries, their levels, and the sums after the chunk.

        A query reads the sums before the chunk and the tokens up to its own. Its result is the output times exp(level),
        and the last column divides the others. A rule that computes no weighted mean returns no levels, and nothing is
        divided. Sums may be written in place if nothing needs a gradient.

        sums: sums before the chunk.
        q: features of the queries, [B, G, N, R, P, F]; None computes only the sums.
        new: tokens of the chunk.
        levels: False sets every level to 0, so that the sums are not relative to a largest weight.
        """


class DecayUpdate(StateUpdate):
    """Base class of rules with a decay: a subclass defines `logs`, the logs of both factors.

    S_t = keep_t S_(t-1) + add_t phi(k_t) [v_t, 1]^T
    """

    @abstractmethod
    def logs(
        self, k: Float[Tensor, "B G N P F"], extras: Mapping[str, Float[Tensor, "B G N P n"]]
    ) -> tuple[Float[Tensor, "B G N P"], Float[Tensor, "B G N P"]]:
        """Return the logs of keep, the factor of the old sums, and of add, the factor of the new token.

        Both have one number for each token, at most 0.

        k: features of the keys.
        extras: extra projections by name.
        """

    def forward(
        self, sums: LinearState, q: Float[Tensor, "B G N R P F"] | None, new: KeyFeatures, levels: bool
    ) -> tuple[Float[Tensor, "B G N R P W"] | None, Float[Tensor, "B G N P"], LinearState]:
        keep, add = self.logs(new.k, new.extras)
        faded = keep.masked_fill(~new.real, 0.0).cumsum(-1)  # decay since the start of the piece
        # for query i, key j <= i of its piece has weight exp(entered_j + faded_i), the sums before exp(start + faded_i)
        entered = add + new.weight - faded
        constant = faded.detach()
        highest = entered.detach().cummax(-1).values if levels else -constant
        starts = _levels_of_pieces(sums.level, highest[..., -1], constant[..., -1])
        start = torch.stack(starts[:-1], -1)[..., None]  # [B G N 1]
        top = torch.maximum(start, highest)  # the largest weight up to each token
        top = torch.where(top == -torch.inf, 0.0, top)
        level, after = top + constant, starts[-1]
        top = top + (constant - faded)  # levels have no gradient; this restores the gradient of the decay
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
    """Return the log of the largest weight before each piece and after the last one."""
    starts = [level]
    for new, end in zip(highest.unbind(-1), faded.unbind(-1), strict=True):
        starts.append(torch.maximum(starts[-1], new) + end)
    return starts


def _sums_of_pieces(
    s: Float[Tensor, "B G F W"], keep: Float[Tensor, "B G N"], new: Float[Tensor, "B G N F W"]
) -> list[Float[Tensor, "B G F W"]]:
    """Return the sums before each piece and after the last one."""
    states = [s]
    for decay, added in zip(keep[..., None, None].unbind(2), new.unbind(2), strict=True):
        states.append(torch.addcmul(added, decay, states[-1]))
    return states


def _add_key(
    s: Tensor, before: Float[Tensor, "B G 1"], weight: Float[Tensor, "B G 1"], new: KeyFeatures, q: Tensor | None
) -> Tensor:
    """Add one key to the sums, in place if no gradient needs the old sums."""
    k, v = new.k[:, :, 0].mT, new.v[:, :, 0] * weight[..., None]  # [B G F 1], [B G 1 W]
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (s, before, k, v, q)):
        return s * before[..., None] + k * v
    return s.mul_(before[..., None]).addcmul_(k, v)


def multiply(x: Float[Tensor, "B G N R P K"], y: Float[Tensor, "B G N K M"]) -> Float[Tensor, "B G N R P M"]:
    """Return the product x y for the R query heads that share each key head, stacked into one matrix."""
    return (x.flatten(3, 4) @ y).unflatten(3, x.shape[3:5])


def apply_in_pieces(
    update: StateUpdate,
    sums: LinearState,
    q: Float[Tensor, "B G R T F"] | None,
    new: KeyFeatures,
    piece: int,
    levels: bool,
) -> tuple[Float[Tensor, "B G R T W"] | None, Float[Tensor, "B G T"] | None, LinearState]:
    """Apply an update rule of linear attention to a row of tokens in pieces.

    Return the output and the level (log of a common factor) of each query, and the sums after the row.

    update: rule of the sums.
    sums: sums before the row.
    q: features of the queries, [B, G, R, T, F]; None computes only the sums.
    new: tokens of the row.
    piece: number of tokens of a piece.
    levels: as in `StateUpdate.forward`.
    """
    length = new.k.shape[2]
    piece = length if torch.compiler.is_exporting() else piece  # a graph for all lengths cannot count the pieces
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
    """Join the pieces of a row; one piece is not copied, and no pieces give `empty`."""
    return torch.cat(pieces, dim) if len(pieces) > 1 else pieces[0] if pieces else empty
