"""Layer, the interface of every layer: `forward(x, state, ctx) -> Out`."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Union

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_forward, check_output, check_rows, refuse_arguments, refuse_mask
from kinformer.core.heads import Selection, StateSpec, cut, cut_each
from kinformer.core.keyword_hints import KeywordHints, hint_keywords, hint_value
from kinformer.core.memo import Memo, empty_memo
from kinformer.core.patterns.document import Document
from kinformer.core.quote import quote
from kinformer.core.sublayer_names import entries_under, names_beneath

if TYPE_CHECKING:
    from kinformer.core.pattern import Pattern

State = Any  # a tree of NamedTuples, tuples, lists and dicts with batch-first tensors as leaves; () for no state
Dtype = torch.dtype | None
Device = torch.device | str | None
Y = TypeVar("Y")


class PerToken(NamedTuple):
    """One value for each token, which a layer passes to later blocks (in `Out.up`, `Context.below`)."""

    value: Tensor  # [B T ..]

    def piece(self, rows: Selection, columns: Selection) -> "PerToken":
        return PerToken(cut(self.value, rows, 1))


class PerPair(NamedTuple):
    """Scores or weights of (query, key) pairs, which a layer passes to later blocks (in `Out.up`).

    scores: scores or weights, [B N T S].
    q_pos, k_pos: positions of the queries and of the keys, -1 at padding.
    pattern: the pattern that the weights are normalised over; None for scores.
    """

    scores: Float[Tensor, "B N T S"]
    q_pos: Int[Tensor, "B #H T"]
    k_pos: Int[Tensor, "B #H S"]
    pattern: Union["Pattern", None] = None

    def piece(self, rows: Selection, columns: Selection) -> "PerPair":
        q_pos, k_pos = cut(self.q_pos, rows, 2), cut(self.k_pos, columns, 2)
        return PerPair(cut(cut(self.scores, rows, 2), columns, 3), q_pos, k_pos, self.pattern)


class PairFactors(NamedTuple):
    """Queries and keys, which a layer passes to later blocks (in `Out.up`) instead of attention weights.

    The weights are softmax(q.k / sqrt(K)) over the pairs of `pattern`.

    q, k: queries and keys.
    q_pos, k_pos: positions of the queries and of the keys, -1 at padding.
    pattern: the pairs that the weights are normalised over.
    """

    q: Float[Tensor, "B H T K"]
    k: Float[Tensor, "B G S K"]
    q_pos: Int[Tensor, "B #H T"]
    k_pos: Int[Tensor, "B #H S"]
    pattern: Union["Pattern", None] = None

    def piece(self, rows: Selection, columns: Selection) -> "PairFactors":
        q_pos, k_pos = cut(self.q_pos, rows, 2), cut(self.k_pos, columns, 2)
        return PairFactors(cut(self.q, rows, 2), cut(self.k, columns, 2), q_pos, k_pos, self.pattern)


Below = PerToken | PerPair | PairFactors


class Want(NamedTuple):
    """The declaration that a part needs a value from an earlier block, by its name in `ctx.below`.

    name: the key in `ctx.below`.
    optional: if True, the value may be missing in the first block.
    """

    name: str
    optional: bool = False


class Decoding(NamedTuple):
    """The progress of decoding: the number of output tokens so far, without the prompt.

    step: for each position, the index of the output token that is chosen after reading it. The last token of the prompt
        has step 0; tokens before it have steps below 0.
    max_new_tokens: the largest number of tokens that the output may have.
    """

    step: Int[Tensor, "#B T"]
    max_new_tokens: int


@dataclass(frozen=True, eq=False)
class Context:
    """The inputs of a call that all layers share: positions, limits of attention, source, memo.

    pos: absolute positions, unique within a row; -1 is padding for every layer.
    run: a promise that each row of `pos` is -1s, then consecutive ascending numbers, then -1s. Layers that take the
        order in the tensor as time (linear attention, RNNs) raise without it.
    full: a promise that neither `pos` nor `source_pos` contains -1.
    only, also: patterns that narrow and widen attention in this batch: a layer's pattern p becomes `(p | also) & only`.
    source, source_pos: the sequence that cross-attention reads, and its positions.
    below: values by name that earlier blocks pass on in `Out.up`, and values that the model puts in first.
    labels: integers of each token (such as its segment) that are kept beside its key.
    memo: results that this forward has already computed. The memo notices in-place changes of positions, but not in
        inference mode, where PyTorch counts no writes: make another context there.
    head: the model's norm and head, for early exits.
    taps: names of hidden states to return in `Out.taps`: "3" is the output of sublayer 3, "3.1.input" is the input of
        its sublayer 1. In a call with `taps` no token leaves early.
    remember: if True, a layer updates its state and may return no y.
    decoding: the count of the tokens that `generate` writes; None if no output is decoded.
    is_clean: a promise of finite numbers at padding of x and `source`. The outermost layer writes zeros and sets it.
    gathered: True if tokens of several rows stand in one row of `pos`, so that positions may repeat.
    used_slots: number of first slots that hold all keys, by the size of a cache. Compiled decoding gives it.

    Errors: ValueError if positions are not integers (pass a mask to `Context.of_sequence(x, mask)` instead).
    """

    pos: Int[Tensor, "B T"]
    run: bool = False
    full: bool = False
    only: Union["Pattern", None] = None
    also: Union["Pattern", None] = None
    source: Float[Tensor, "B S D"] | None = None
    source_pos: Int[Tensor, "B S"] | None = None
    below: Mapping[str, Below] = field(default_factory=dict)
    labels: Mapping[str, Int[Tensor, "B T"]] = field(default_factory=dict)
    memo: Memo = field(default_factory=empty_memo)
    head: nn.Module | None = None
    taps: tuple[str, ...] = ()
    remember: bool = False
    decoding: Decoding | None = None
    is_clean: bool = False
    gathered: bool = False
    used_slots: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pos in (self.pos, self.source_pos):
            if pos is not None and not (isinstance(pos, Tensor) and has_integer_dtype(pos) and pos.dim() == 2):
                actual = f"{pos.dtype} of shape {list(pos.shape)}" if isinstance(pos, Tensor) else quote(pos)
                raise ValueError(
                    f"positions must be integers [B, T], got {actual}; make them with Context.of_sequence(x, mask)"
                )
            if pos is not None and not self.gathered:
                refuse_mask(pos)

    @classmethod
    @hint_keywords
    def of_sequence(
        cls,
        x: Tensor,
        mask: Bool[Tensor, "B T"] | None = None,
        source: Float[Tensor, "B S D"] | None = None,
        source_mask: Bool[Tensor, "B S"] | None = None,
    ) -> "Context":
        """Return the context of a whole sequence: real tokens are numbered from 0.

        x: the sequence, or any tensor that starts with dimensions [B T].
        mask: True at real tokens, bool of shape [B T]; None if every token is real.
        source: the sequence that cross-attention reads; its real tokens are numbered from 0 too.
        source_mask: True at real tokens of the source; None if every token is real.

        Errors: ValueError if a mask has another dtype or shape, or if the source has another batch than x.
        """
        if source is not None or source_mask is not None:
            if source is None or source.dim() != 3 or len(source) != len(x):
                shape = None if source is None else list(source.shape)
                raise ValueError(f"source must be a tensor [B, S, D] for {len(x)} rows, got {shape}; give source=")
            read, whole = cls.of_sequence(source, source_mask), cls.of_sequence(x, mask)
            full = read.full and whole.full
            return whole.replace(source=source, source_pos=read.pos, full=full)
        if mask is None:
            return cls(torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1), run=True, full=True)
        if mask.dtype != torch.bool or mask.shape != x.shape[:2]:
            actual = f"{mask.dtype} of shape {list(mask.shape)}"
            expected = f"bool of shape {list(x.shape[:2])}, True at each real token"
            is_bool = mask.dtype == torch.bool
            advice = "PairMask(mask) takes a mask of pairs" if is_bool else "call mask.bool() on a mask of 0 and 1"
            raise ValueError(f"mask must be {expected}, got {actual}; {advice}")
        run = not torch.compiler.is_compiling() and not bool(gaps(mask).any())
        return cls(count_positions(mask), run=run)

    @property
    def by_head(self) -> Int[Tensor, "B 1 T"]:
        """The positions with a dimension for heads, as queries and keys carry them."""
        return self.memo.by_head(self.pos)

    @property
    def source_by_head(self) -> Int[Tensor, "B 1 S"]:
        """The source's positions with a dimension for heads, as keys carry them."""
        if self.source_pos is None:
            raise ValueError(
                "the source has no positions; give Context.of_sequence(x, source=source, source_mask=mask)"
            )
        return self.memo.by_head(self.source_pos)

    @property
    def position_ids(self) -> Int[Tensor, "B T"]:
        """Positions for tables of absolute positions.

        If `only` separates the documents of a row, positions start from 0 in each document; otherwise they are `pos`.
        """
        only = self.only
        if not isinstance(only, Document):
            return self.pos
        return self.memo.get(lambda: only.positions_in_document(self.pos), "places", self.pos)

    @property
    def steps(self) -> Int[Tensor, "#B T"]:
        """The index of the output token that `generate` chooses after each position, 0 throughout a prompt.

        Without decoding, the whole sequence counts as an output: its steps are the `position_ids`, so padding is -1.
        """
        return self.position_ids if self.decoding is None else self.decoding.step.clamp_min(0)

    @property
    def max_new_tokens(self) -> int | None:
        """The largest number of tokens of the output; None if no output is decoded."""
        return None if self.decoding is None else self.decoding.max_new_tokens

    def replace(self, **changes: object) -> "Context":
        """Return the same context with other fields.

        Other positions or limits start a new memo. Other positions also reset `full` and `decoding`, because both
        describe the old ones: pass them again if they hold.
        """
        if not {"pos", "source_pos"}.isdisjoint(changes):
            changes.setdefault("full", False)
        if "pos" in changes:
            changes.setdefault("decoding", None)
        if not {"pos", "source_pos", "only", "also", "memo"}.isdisjoint(changes):
            changes.setdefault("memo", Memo())
        elif not torch.compiler.is_compiling() and changes.keys() <= vars(self).keys():
            new = object.__new__(Context)  # skip the check of unchanged positions, which would slow each decoding step
            vars(new).update(vars(self), **changes)
            return new
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def columns(self, lo: int, hi: int) -> "Context":
        """Return the context of the token places lo .. hi - 1 of each row.

        Layers that cut out the same places share the positions and the memo of the result.
        """
        at = slice(lo, hi)
        pos, memo = self.memo.get(lambda: (self.pos[:, at], empty_memo()), "columns", self.pos, lo, hi)
        below = {name: value.piece(at, None) for name, value in self.below.items()}
        labels, decoding = cut_each(self.labels, at, 1), self.decoding
        if decoding is not None:
            decoding = decoding._replace(step=decoding.step[:, at])
        return self.replace(pos=pos, full=self.full, memo=memo, below=below, labels=labels, decoding=decoding)

    def for_sublayer(self, place: str | int) -> "Context":
        """Return the context of the sublayer at `place`, its number in a block.

        Names in `below` and `taps` that begin with "place." lose that prefix. Undotted names in `below` stay the same.
        """
        if not self.below and not self.taps:
            return self
        return self.replace(below=entries_under(place, self.below), taps=names_beneath(place, self.taps))


class Out(NamedTuple, Generic[Y]):
    """The output of a layer: y, the next state, and named values. Never change its mappings in place.

    y: the output vectors, or the output of a mechanism.
    state: the next decoding state or memory; None if the layer was called without a state.
    aux: per-token values [B T], which a model averages over real tokens, or penalties on parameters []. Names begin
        with the numbers of sublayers ("3.0.ponder").
    up: values by name for later blocks, which find them in `ctx.below`.
    stats: detached sums for the method `after_step` of modules; empty in eval mode.
    taps: the hidden states that `ctx.taps` names.
    """

    y: Y
    state: State | None = None
    aux: Mapping[str, Tensor] = {}  # noqa: RUF012  (a NamedTuple default; law 15 holds everyone to never writing to it)
    up: Mapping[str, Below] = {}  # noqa: RUF012
    stats: Mapping[str, Tensor] = {}  # noqa: RUF012
    taps: Mapping[str, Tensor] = {}  # noqa: RUF012


hint_value(
    Out,
    "a layer returns Out",
    "layer(x).y",
    "; PlainLayer(layer) returns it, as nn.Sequential needs",
    logits="model.logits(tokens).y",
)


class Layer(nn.Module, KeywordHints, ABC):
    """Base class of layers, maps from sequence to sequence: attention, feed-forward, block or stack.

    A subclass writes `forward`, and `start` if it has a state. `layer(x).y` is the output for a whole sequence. To go
    chunk by chunk, pass each call the state from the previous one; every way to cut gives the same outputs.

    d: the width of x and y.
    has_source_state: True if the state depends on `ctx.source` only and is the same for every x.
    wants: names of values from earlier blocks that the layer must find in `ctx.below`.
    sends: names of values that the layer passes to later blocks in `Out.up`.
    """

    d: int
    has_source_state: bool = False
    wants: tuple[Want, ...] = ()
    sends: frozenset[str] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_forward(cls)

    @hint_keywords
    def __call__(self, x: Float[Tensor, "B T D"], state: State | None = None, ctx: Context | None = None) -> Out:
        if isinstance(state, Tensor) if ctx is None else not isinstance(ctx, Context):
            refuse_arguments(self, state, ctx)
        if ctx is None:
            ctx = Context.of_sequence(check_rows(x)) if state is None else _context_after(check_rows(x), state)
        elif not torch.compiler.is_compiling() and ctx.pos.shape != check_rows(x).shape[:2]:
            expected = list(x.shape[:2])
            raise ValueError(f"ctx.pos has shape {list(ctx.pos.shape)}, expected {expected}: one position per token")
        if not (ctx.full or ctx.is_clean):
            x, ctx = _zero_padding(x, ctx)
        return check_output(self, super().__call__(x, state, ctx), Out, state)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        """Return the decoding state before the first token of rows of up to `length` tokens; () for no state.

        The state consists of plain tensors; no weight is read or changed. `dtype` and `device` default to the weights'.
        """
        return ()

    @abstractmethod
    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        """Return the output y [B T D] of rows x, and the next decoding state if a state is given."""


def _zero_padding(x: Float[Tensor, "B T D"], ctx: Context) -> tuple[Float[Tensor, "B T D"], Context]:
    """Write zeros at padding of x and the source: a NaN there would reach the gradients of weights."""
    source = ctx.source
    if source is not None and ctx.source_pos is not None:
        source = torch.where(ctx.source_pos[..., None] >= 0, source, 0.0)
    return torch.where(ctx.pos[..., None] >= 0, x, 0.0), ctx.replace(source=source, is_clean=True)


def _context_after(x: Tensor, state: State) -> Context:
    """Return the context of tokens that follow the tokens in a state."""
    from kinformer.core.state import leaves  # imported here because that file needs this one

    if isinstance(state, Context):
        raise TypeError("the second argument is the state; pass the context as layer(x, None, ctx)")
    fields = dict(leaves(state))
    if fields and "now" not in fields:
        raise ValueError("this state does not hold the number of tokens read; give ctx=Context(pos, run=True) too")
    if fields and len(fields["now"]) != len(x):
        raise ValueError(
            f"the state has {len(fields['now'])} rows, but x has {len(x)}; start a state for {len(x)} rows"
        )
    at = torch.arange(x.shape[1], device=x.device)
    pos = fields["now"][:, None] + at if fields else at.expand(len(x), -1)
    return Context(pos, run=True, full=True)


def count_positions(real: Bool[Tensor, "B T"], first: Int[Tensor, "B 1"] | int = 0) -> Int[Tensor, "B T"]:
    """Return the positions of a row's real tokens, consecutive from `first`; -1 at padding."""
    return torch.where(real, first + real.cumsum(1) - 1, -1)


def gaps(real: Bool[Tensor, "B T"]) -> Bool[Tensor, "B _"]:
    """Return a mask [B T-1] of tokens 1 .. T - 1, True at real tokens that follow padding inside a row.

    real: True at real tokens, [B T].
    """
    return real[:, 1:] & ~real[:, :-1] & (real.cumsum(1)[:, :-1] > 0)


def has_integer_dtype(pos: Tensor) -> bool:
    """Return True if `pos` has signed integers: -1 marks padding, and distances may be negative."""
    return pos.dtype in (torch.int8, torch.int16, torch.int32, torch.int64)


def make_state_spec(module: nn.Module, batch: int, length: int, dtype: Dtype, device: Device) -> StateSpec:
    """Return the size, dtype and device of a decoding state of `module`.

    batch, length: rows, and the largest number of tokens in a row.
    dtype, device: dtype and device of the state; None takes the dtype and device of the module's weights.
    """
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    return StateSpec(batch, length, dtype or like.dtype, torch.device(device) if device else like.device)
