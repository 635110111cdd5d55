"""Mechanism: the part of an attention layer that computes the output of the queries from the keys."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, HeadValues, Keys, Queries, StateSpec
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.layer import Context, Out, State, Want
from kinformer.core.projection import Projection

if TYPE_CHECKING:
    from kinformer.core.attention_output import AttentionOutput
    from kinformer.core.memory import MemoryCost


class NoState(TypeError):
    """The error of `start` if a part needs whole sequences, so that it has no state for decoding.

    The message says what to do.
    """


class Mechanism(nn.Module, KeywordHints, ABC):
    """Base class of mechanisms: maps from queries and keys by head to one attention output per query.

    A subclass writes `start` and `forward`. It never sees the layer's input. If it needs numbers from the input (a
    gate, a span), it declares further projections in `query_extras` and `key_extras`. The `Attention` layer owns their
    matrices. A call with a decoding state returns the next one; a call without a state creates none.

    wants: names of values from earlier blocks that it must find in `ctx.below`.
    sends: names of values that it passes to later blocks in `Out.up`.
    needs_queries: True if its decoding state depends on queries too. A call with `ctx.remember` only updates the state;
        the layer then computes queries only if this is True.
    """

    wants: tuple[Want, ...] = ()
    sends: frozenset[str] = frozenset()
    needs_queries: bool = False

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """Return the further projections of the layer's input needed for each query and head, by name."""
        return {}

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        """Return the further projections that the mechanism needs for each key and key head, by name.

        The layer projects the sequence of the keys. The results are cached beside the keys.
        """
        return {}

    def tags(self, keys: Keys) -> Mapping[str, Int[Tensor, "B G S r"]]:
        """Return integers of each key, such as its hash bucket in each round, which are cached beside it."""
        return {}

    def project_keys(self, projection: Projection, x: Float[Tensor, "B T D"], ctx: Context) -> Keys | None:
        """Return the keys of self-attention if there is a cheaper way than one key per token, else None.

        The layer passes the returned keys to `forward`. After None, it projects one key per token.
        """
        return None

    def wants_lazy_extras(self, sizes: HeadSizes, ctx: Context) -> bool:
        """Return True if the further projections of self-attention should be computed only on use.

        That is faster if `forward` needs them for few tokens. Called only if there is no decoding state.
        """
        return False

    def __call__(
        self, queries: Queries, keys: Keys | None = None, state: State | None = None, ctx: Context | None = None
    ) -> Any:
        if ctx is None:
            raise TypeError(
                f"{type(self).__name__} got {type(queries).__name__}, expected queries, keys, state and ctx of a "
                "layer. Call Attention(QKV(d, heads), mechanism)(x).y, or attend(q, k, v, pattern=...) for tensors"
            )
        if not (ctx.full or ctx.is_clean):
            if keys is not None:
                # a position may have no key in this read but still be a real token, whose gate must stay
                same = keys.own and keys.pos.shape[2] == ctx.pos.shape[1]
                keys = keys.with_zeroed_padding(ctx.pos >= 0 if same else None)
            queries, ctx = queries.with_zeroed_padding(), ctx.replace(is_clean=True)
        return super().__call__(queries, keys, state, ctx)

    @abstractmethod
    def start(self, spec: StateSpec, sizes: HeadSizes) -> State:
        """Return the decoding state before the first token; raise `NoState` with advice if there is none."""

    @abstractmethod
    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> "Out[AttentionOutput]":
        """Return the attention output of the queries.

        If `keys` is None, the queries attend to the keys of the source that the state holds (cross-attention).
        """

    def head_values(self) -> Mapping[str, HeadValues]:
        """Return the learned numbers [1 H 1] of the mechanism's heads, such as a gate, by name.

        A bias reports its own numbers.
        """
        return {}

    def memory_cost(self) -> "MemoryCost | None":
        """Return the number of stored states that each query reads from the mechanism's own memory.

        These lie outside the query's segment. None if the mechanism itself keeps no memory.
        """
        return None

    def received_attention(
        self, queries: Queries, keys: Keys, read: "AttentionOutput", ctx: Context
    ) -> Float[Tensor, "B S"]:
        """Return the attention that each key received from all queries, averaged over heads.

        A memory that keeps the states with the most attention needs it.

        read: the attention output of these queries and keys.

        Errors: TypeError if the mechanism cannot tell.
        """
        name = type(self).__name__
        raise TypeError(f"{name} does not report how much attention each key received; use Softmax with this memory")
