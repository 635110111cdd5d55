"""Mechanism: how queries read keys."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, HeadValues, Keys, Queries, StateSpec
from kinformer.core.layer import Context, Out, State, Want
from kinformer.core.projection import Projection

if TYPE_CHECKING:
    from kinformer.core.attention_output import AttentionOutput
    from kinformer.core.memory import MemoryCost


class NoState(TypeError):
    """Raised by `start` of what reads a whole sequence at once and so has no state to decode with.

    Its text says what to do.
    """


class Mechanism(nn.Module, ABC):
    """Queries and keys per head in, one read per query out. It sees heads, never the layer's input.

    A mechanism that needs the input itself (a gate, a span, further projections) declares it in `query_extras` and
    `key_extras`; Attention owns the matrices. A state comes in and goes out; without one, none is made. `wants` and
    `sends` name what it must find in `ctx.below` and what it sends up. With `ctx.remember` only its state is wanted:
    nobody asks then, unless its state is made of queries too (`needs_queries`).
    """

    wants: tuple[Want, ...] = ()
    sends: frozenset[str] = frozenset()
    needs_queries: bool = False

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """What this mechanism wants from the layer's input for each query and head, by name."""
        return {}

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """What it wants from the source for each key and key head, by name: cached beside the keys."""
        return {}

    def tags(self, keys: Keys) -> Mapping[str, Int[Tensor, "B G S r"]]:
        """Whole numbers of each key (its bucket in each round) that are cached beside it."""
        return {}

    def project_keys(self, projection: Projection, x: Float[Tensor, "B T D"], ctx: Context) -> Keys | None:
        """Keys of a sequence that reads itself, where they cost less than those of each token; None where they do not.

        They go to `forward` and nowhere else.
        """
        return None

    def wants_lazy_extras(self, sizes: HeadSizes, ctx: Context) -> bool:
        """Should the extra projections of self-attention be computed lazily, because `forward` needs few of them?

        Called only if there is no state.
        """
        return False

    def __call__(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Any:
        if not (ctx.full or ctx.is_clean):
            if keys is not None:
                # a key that is kept from this read alone may still be of a token, which has a gate
                same = keys.own and keys.pos.shape[2] == ctx.pos.shape[1]
                keys = keys.with_zeroed_padding(ctx.pos >= 0 if same else None)
            queries, ctx = queries.with_zeroed_padding(), ctx.replace(is_clean=True)
        return super().__call__(queries, keys, state, ctx)

    @abstractmethod
    def start(self, spec: StateSpec, sizes: HeadSizes) -> State:
        """The state before the first token; raises `NoState` with advice where there is none."""

    @abstractmethod
    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> "Out[AttentionOutput]":
        """What the queries read. Keys None: read what the state keeps of a source."""

    def head_values(self) -> Mapping[str, HeadValues]:
        """Numbers [1 H 1] that its heads have learned, by name, such as a gate; a bias tells of its own."""
        return {}

    def memory_cost(self) -> "MemoryCost | None":
        """What each query reads beside its own segment, where the mechanism keeps a memory itself."""
        return None

    def received_attention(
        self, queries: Queries, keys: Keys, read: "AttentionOutput", ctx: Context
    ) -> Float[Tensor, "B S"]:
        """How much attention each key got in `read`, averaged over heads: what a most-used memory asks for."""
        name = type(self).__name__
        raise TypeError(f"{name} does not tell how much attention a key got; use Softmax under this memory")
