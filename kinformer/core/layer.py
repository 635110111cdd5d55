"""Layer, the one verb of the library: `forward(x, state, ctx) -> Out`."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Union

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.heads import Selection, StateSpec, cut, cut_each
from kinformer.core.memo import Memo, empty_memo
from kinformer.core.patterns.document import Document

if TYPE_CHECKING:
    from kinformer.core.pattern import Pattern

State = Any  # a tree of NamedTuples, tuples, lists and dicts whose leaves are batch-first tensors; () is no state
Dtype = torch.dtype | None
Device = torch.device | str | None
Y = TypeVar("Y")


class PerToken(NamedTuple):
    """Something for each token that goes up the depth."""

    value: Tensor  # [B T ..]

    def piece(self, rows: Selection, columns: Selection) -> "PerToken":
        return PerToken(cut(self.value, rows, 1))


class PerPair(NamedTuple):
    """Scores or weights of pairs that go up the depth, and their positions; weights name the pattern they sum over."""

    scores: Float[Tensor, "B N T S"]
    q_pos: Int[Tensor, "B #H T"]
    k_pos: Int[Tensor, "B #H S"]
    pattern: Union["Pattern", None] = None

    def piece(self, rows: Selection, columns: Selection) -> "PerPair":
        q_pos, k_pos = cut(self.q_pos, rows, 2), cut(self.k_pos, columns, 2)
        return PerPair(cut(cut(self.scores, rows, 2), columns, 3), q_pos, k_pos, self.pattern)


class PairFactors(NamedTuple):
    """Queries and keys sent to higher layers in place of the weights softmax(q.k / sqrt(K)) of a pattern's pairs."""

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
    """The name of something that a part must find in `ctx.below`; an optional one may be missing in a lowest block."""

    name: str
    optional: bool = False


class Decoding(NamedTuple):
    """How far an output is decoded: a clock that counts written tokens, whatever prompt stands before them.

    step: for each position the index of the output token that is chosen after reading it. The last token of the prompt
        has step 0; tokens before it have steps below 0.
    max_new_tokens: the largest number of tokens that the output may have.
    """

    step: Int[Tensor, "#B T"]
    max_new_tokens: int


@dataclass(frozen=True, eq=False)
class Context:
    """What comes to a layer from outside and is the same for every layer of a call.

    `pos` holds absolute positions, unique within a row; -1 is padding, for everyone. `run` promises that each row of
    `pos` is -1s, then consecutive ascending numbers, then -1s: layers that read array order as time (linear
    attention, RNNs) raise without it. `full` promises that there is no -1, here and in `source_pos`. `only` narrows
    and `also` widens what this batch may read: a pattern p becomes `(p | also) & only`. `source` and `source_pos` are
    what cross-attention reads. `below` holds what the block beneath sent up, and what the model itself sends in first.
    `labels` are integers of each token (its segment) that keys keep. `decoding` counts the tokens that `generate`
    writes; it is None where a text is read.

    `memo` is what this forward has found out so far. It notices positions that are written to, but not in inference
    mode, where PyTorch counts no writes: begin another context there. `head` is the model's norm and head, lent to
    early exits. `taps` names inner states that are handed back in `Out.taps`: "3" is what sublayer 3 gave, "3.1.input"
    what its sublayer 1 got; a call with `taps` lets no token leave early. With `remember` a layer brings its state up
    to date and may give no y. `is_clean` promises finite numbers at padding of x and of `source`: the outermost layer
    writes zeros there and sets `is_clean` for the layers inside.

    Errors: ValueError for positions that are no whole numbers (a mask goes into `Context.of_sequence(x, mask)`).
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

    def __post_init__(self) -> None:
        for pos in (self.pos, self.source_pos):
            if pos is not None and not (isinstance(pos, Tensor) and has_integer_dtype(pos) and pos.dim() == 2):
                actual = f"{pos.dtype} of shape {list(pos.shape)}" if isinstance(pos, Tensor) else f"{pos!r}"
                raise ValueError(
                    f"positions are whole numbers [B T], and {actual} came; "
                    "Context.of_sequence(x, mask) numbers the tokens where a mask is True"
                )

    @classmethod
    def of_sequence(cls, x: Tensor, mask: Bool[Tensor, "B T"] | None = None) -> "Context":
        """The context of a sequence that is read whole: real tokens are numbered from 0; `mask` is True where real."""
        if mask is None:
            return cls(torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1), run=True, full=True)
        if mask.dtype != torch.bool or mask.shape != x.shape[:2]:
            actual = f"{mask.dtype} of shape {list(mask.shape)}"
            raise ValueError(f"a mask is True where a token is real, bool of shape {list(x.shape[:2])}; {actual} came")
        run = not torch.compiler.is_compiling() and not bool(gaps(mask).any())
        return cls(count_positions(mask), run=run)

    @property
    def by_head(self) -> Int[Tensor, "B 1 T"]:
        """The positions as queries and keys carry them."""
        return self.memo.by_head(self.pos)

    @property
    def source_by_head(self) -> Int[Tensor, "B 1 S"]:
        """The source's positions, likewise."""
        if self.source_pos is None:
            raise ValueError("a source came without positions; give Context(source_pos=...), -1 where it is padding")
        return self.memo.by_head(self.source_pos)

    @property
    def position_ids(self) -> Int[Tensor, "B T"]:
        """Positions as tables of absolute ones have them: in each document that `only` keeps apart from 0 on."""
        only = self.only
        if not isinstance(only, Document):
            return self.pos
        return self.memo.get(lambda: only.positions_in_document(self.pos), "places", self.pos)

    @property
    def steps(self) -> Int[Tensor, "#B T"]:
        """The index of the output token that is chosen after each position, 0 throughout a prompt.

        A text that is read is an output from its first token on: its steps are the `position_ids`, so -1 is padding.
        """
        return self.position_ids if self.decoding is None else self.decoding.step.clamp_min(0)

    @property
    def max_new_tokens(self) -> int | None:
        """The largest number of tokens of the output that is decoded; None where a text is read."""
        return None if self.decoding is None else self.decoding.max_new_tokens

    def replace(self, **changes: object) -> "Context":
        """The same context with other fields; other positions or limits begin a new memo.

        `full` promises nothing of other positions, and `decoding` counts other columns: give them again.
        """
        if not {"pos", "source_pos"}.isdisjoint(changes):
            changes.setdefault("full", False)
        if "pos" in changes:
            changes.setdefault("decoding", None)
        if not {"pos", "source_pos", "only", "also", "memo"}.isdisjoint(changes):
            changes.setdefault("memo", Memo())
        elif not torch.compiler.is_compiling() and changes.keys() <= vars(self).keys():
            new = object.__new__(Context)  # of the same positions, which need no check: a step of decoding is short
            vars(new).update(vars(self), **changes)
            return new
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def columns(self, lo: int, hi: int) -> "Context":
        """The context of columns lo .. hi - 1; layers that cut alike share its positions and its memo."""
        at = slice(lo, hi)
        pos, memo = self.memo.get(lambda: (self.pos[:, at], empty_memo()), "columns", self.pos, lo, hi)
        below = {name: value.piece(at, None) for name, value in self.below.items()}
        labels, decoding = cut_each(self.labels, at, 1), self.decoding
        if decoding is not None:
            decoding = decoding._replace(step=decoding.step[:, at])
        return self.replace(pos=pos, full=self.full, memo=memo, below=below, labels=labels, decoding=decoding)

    def for_sublayer(self, place: str | int) -> "Context":
        """What a sublayer at `place` sees: entries of `below` and `taps` under "place." with the prefix cut off.

        Undotted entries of `below` are seen as they are.
        """
        if not self.below and not self.taps:
            return self
        return self.replace(below=entries_under(place, self.below), taps=names_beneath(place, self.taps))


class Out(NamedTuple, Generic[Y]):
    """What every layer returns.

    The value, the next state (None when none came in), and mappings that are never written to.

    `aux`: per-token values [B T], which a model averages over real tokens, or penalties on parameters []; keys are
    prefixed by place ("3.0.ponder"). `up`: what the next block finds in `ctx.below`. `stats`: detached sums for
    `after_step`, none in eval. `taps`: the inner states that `ctx.taps` names.
    """

    y: Y
    state: State | None = None
    aux: Mapping[str, Tensor] = {}  # noqa: RUF012  (a NamedTuple default; law 15 holds everyone to never writing to it)
    up: Mapping[str, Below] = {}  # noqa: RUF012
    stats: Mapping[str, Tensor] = {}  # noqa: RUF012
    taps: Mapping[str, Tensor] = {}  # noqa: RUF012


class Layer(nn.Module, ABC):
    """Anything that maps a sequence to a sequence of the same width: attention, feed-forward, block, stack.

    `d` is the width of x and y. A chunked call carries the state of the previous chunk; cut anywhere, the outputs are
    the same. `layer(x).y` reads a whole sequence. `wants` and `sends` name what it must find in `ctx.below` and what
    it sends up. `has_source_state` says that its state is of `ctx.source` alone: whatever its x is, it is the same.
    """

    d: int
    has_source_state: bool = False
    wants: tuple[Want, ...] = ()
    sends: frozenset[str] = frozenset()

    def __call__(self, x: Float[Tensor, "B T D"], state: State | None = None, ctx: Context | None = None) -> Out:
        if ctx is None:
            ctx = Context.of_sequence(_check_rows(x)) if state is None else _context_after(_check_rows(x), state)
        elif not torch.compiler.is_compiling() and ctx.pos.shape != x.shape[:2]:
            raise ValueError(
                f"positions have shape {list(ctx.pos.shape)} and x {list(_check_rows(x).shape)}; give one of each "
                "token, [B T] beside x [B T D]"
            )
        if not (ctx.full or ctx.is_clean):
            x, ctx = _zero_padding(x, ctx)
        return super().__call__(x, state, ctx)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> State:
        """The state before the first token, for rows of up to `length` tokens; () for no state.

        Plain tensors; touches no weight. `dtype` and `device` are those of the layer's weights unless given.
        """
        return ()

    @abstractmethod
    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out: ...


def _zero_padding(x: Float[Tensor, "B T D"], ctx: Context) -> tuple[Float[Tensor, "B T D"], Context]:
    """Write zeros at padding of x and the source, because a NaN at padding would reach the gradients of weights."""
    source = ctx.source
    if source is not None and ctx.source_pos is not None:
        source = torch.where(ctx.source_pos[..., None] >= 0, source, 0.0)
    return torch.where(ctx.pos[..., None] >= 0, x, 0.0), ctx.replace(source=source, is_clean=True)


def _check_rows(x: Tensor) -> Tensor:
    if x.dim() != 3:
        raise ValueError(f"x has shape {list(x.shape)}; a layer takes rows of tokens [B T D], one row as x[None]")
    return x


def _context_after(x: Tensor, state: State) -> Context:
    """The context of tokens behind those that a state has read."""
    from kinformer.core.state import leaves

    fields = dict(leaves(state))
    if fields and "now" not in fields:
        raise ValueError("this state does not tell how far it has read; give Context(pos, run=True) beside it")
    at = torch.arange(x.shape[1], device=x.device)
    pos = fields["now"][:, None] + at if fields else at.expand(len(x), -1)
    return Context(pos, run=True, full=True)


def count_positions(real: Bool[Tensor, "B T"], first: Int[Tensor, "B 1"] | int = 0) -> Int[Tensor, "B T"]:
    """Positions of a row's real tokens, consecutive from `first`; -1 at padding."""
    return torch.where(real, first + real.cumsum(1) - 1, -1)


def gaps(real: Bool[Tensor, "B T"]) -> Bool[Tensor, "B _"]:
    """Which real tokens but the first stand behind padding that itself stands behind one."""
    return real[:, 1:] & ~real[:, :-1] & (real.cumsum(1)[:, :-1] > 0)


def has_integer_dtype(pos: Tensor) -> bool:
    """Are these whole numbers, as positions are? A mask is not, nor what knows no -1 and no distance below 0."""
    return pos.dtype in (torch.int8, torch.int16, torch.int32, torch.int64)


def check_in_order(ctx: Context, name: str, instead: str = "") -> None:
    """ValueError where tokens may not stand in the order of their positions: for what reads array order as time."""
    if not ctx.run:
        advice = f"number tokens consecutively and pass Context(pos, run=True){instead}"
        raise ValueError(f"{name} reads array order as time; {advice}")


def make_state_spec(module: nn.Module, batch: int, length: int, dtype: Dtype, device: Device) -> StateSpec:
    """What a state of `module` is made for: in the precision and place of its weights, unless told otherwise."""
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    return StateSpec(batch, length, dtype or like.dtype, torch.device(device) if device else like.device)


def add_prefix(place: str | int, entries: Mapping[str, Any]) -> dict[str, Any]:
    """`entries` with every key moved under `place`: {"ponder": x} at 3 becomes {"3.ponder": x}."""
    return {f"{place}.{key}": value for key, value in entries.items()}


def names_beneath(place: str | int, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names under "place.", the prefix cut off."""
    start = f"{place}."
    return tuple(name.removeprefix(start) for name in names if name.startswith(start))


def entries_under(place: str | int, entries: Mapping[str, Any]) -> dict[str, Any]:
    """What a sublayer at `place` sees: undotted entries as they are, entries under "place." with the prefix cut."""
    start = f"{place}."
    plain = {key: value for key, value in entries.items() if "." not in key}
    return plain | {key.removeprefix(start): value for key, value in entries.items() if key.startswith(start)}
