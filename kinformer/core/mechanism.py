"""Mechanism: the part of attention in which queries read keys."""

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
    """Error of `start` if a part reads whole sequences only, so that it has no state for decoding.

    The message says what to do.
    """


class Mechanism(nn.Module, ABC):
    """A map from queries and keys by head to one read per query; it never sees the layer's input.

    A mechanism that needs values from the input (a gate, a span, further projections) declares them in `query_extras`
    and `key_extras`; Attention owns the matrices. A call that gets a state returns the next state; a call without a
    state creates none.

    wants: names that it must find in `ctx.below`.
    sends: names that it sends up.
    needs_queries: True if its state depends on queries too. With `ctx.remember` only the state is computed, and queries
        are passed only if `needs_queries` is True.
    """

    wants: tuple[Want, ...] = ()
    sends: frozenset[str] = frozenset()
    needs_queries: bool = False

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """Return the projections of the layer's input that are needed for each query and head, by name."""
        return {}

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """Return the projections of the source that it needs for each key and key head, by name.

        They are cached beside the keys.
        """
        return {}

    def tags(self, keys: Keys) -> Mapping[str, Int[Tensor, "B G S r"]]:
        """Return integers of each key (its bucket in each round), which are cached beside it."""
        return {}

    def project_keys(self, projection: Projection, x: Float[Tensor, "B T D"], ctx: Context) -> Keys | None:
        """Return the keys of self-attention if they cost less than one key per token; otherwise None.

        The keys are passed to `forward` only.
        """
        return None

    def wants_lazy_extras(self, sizes: HeadSizes, ctx: Context) -> bool:
        """Return True if the extra projections of self-attention should be computed lazily.

        That pays if `forward` needs few of them. Called only if there is no state.
        """
        return False

    def __call__(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Any:
        if not (ctx.full or ctx.is_clean):
            if keys is not None:
                # a position may have no key in this read but still be a real token, whose gate must stay
                same = keys.own and keys.pos.shape[2] == ctx.pos.shape[1]
                keys = keys.with_zeroed_padding(ctx.pos >= 0 if same else None)
            queries, ctx = queries.with_zeroed_padding(), ctx.replace(is_clean=True)
        return super().__call__(queries, keys, state, ctx)

    @abstractmethod
    def start(self, spec: StateSpec, sizes: HeadSizes) -> State:
        """Return the state before the first token; raise `NoState` with advice if there is none."""

    @abstractmethod
    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> "Out[AttentionOutput]":
        """Return the reads of the queries. If `keys` is None, read the source's keys in the state."""

    def head_values(self) -> Mapping[str, HeadValues]:
        """Return the learned numbers [1 H 1] of the mechanism's heads, such as a gate, by name.

        A bias reports its own numbers.
        """
        return {}

    def memory_cost(self) -> "MemoryCost | None":
        """Return the cost of the mechanism's own memory: the states that a query reads outside its segment.

        None if the mechanism keeps no memory itself.
        """
        return None

    def received_attention(
        self, queries: Queries, keys: Keys, read: "AttentionOutput", ctx: Context
    ) -> Float[Tensor, "B S"]:
        """Return the attention that each key received in `read`, averaged over heads.

        A memory that keeps the most used states needs it.

        Errors: TypeError if the mechanism cannot tell.
        """
        name = type(self).__name__
        raise TypeError(f"{name} does not report how much attention each key received; use Softmax with this memory")
