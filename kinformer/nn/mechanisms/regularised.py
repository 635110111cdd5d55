"""Regularised: a mechanism with penalties on its heads during training."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.checks import check_part
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context, Out, State
from kinformer.core.loss import Penalty
from kinformer.core.mechanism import Mechanism
from kinformer.core.regulariser import Regulariser


class Regularised(Mechanism):
    """Mechanism that also reports a penalty for each regulariser during training.

    Choose it to keep heads apart (`OutputDisagreement` and similar) or close to patterns (`GuidedAttention`) without
    changing the output. The model sets the weight of each penalty in its loss with `penalties={key: weight}`. In eval
    mode only the mechanism runs.

    mechanism: mechanism with a softmax over all keys of its pattern, such as `Softmax(Causal())`.
    regularisers: regularisers to report; each key (name of a penalty) may occur once.

    Errors: ValueError for a mechanism of another kind or without the lse (log-sum-exp of the scores) that a regulariser
    needs. Also ValueError without regularisers, or with two of the same key. ValueError for cross-attention with a
    regulariser that needs self-attention. NoState from `start` if the mechanism has no decoding state.
    """

    def __init__(self, mechanism: KeyValueMechanism, *regularisers: Regulariser):
        super().__init__()
        self.mechanism = check_part("mechanism", mechanism, KeyValueMechanism, "a mechanism, such as Softmax(Causal())")
        if not mechanism.merges:
            raise ValueError(f"{type(mechanism).__name__} has no weights of single pairs to regularise. Use Softmax")
        for regulariser in regularisers:
            check_part("regularisers", regulariser, Regulariser, "a regulariser, such as OutputDisagreement()")
            if regulariser.needs_lse and not mechanism.lse:
                raise ValueError(
                    f"{type(regulariser).__name__} needs the mechanism's lse. Create the mechanism without lse=False"
                )
        keys = [regulariser.key for regulariser in regularisers]
        if not keys or len(set(keys)) < len(keys):
            raise ValueError(f"Regularised needs at least one regulariser and no duplicates: got {keys}")
        self.regularisers = nn.ModuleList(regularisers)
        self.wants, self.sends = mechanism.wants, mechanism.sends

    def penalties(self) -> dict[str, Penalty]:
        """Return the penalty (loss term) of each regulariser by key.

        The penalties train the projections and layers that make queries, keys and values.
        """
        return {
            regulariser.key: Penalty(tuple(regulariser.parameters()), reaches_x=True)
            for regulariser in self._regularisers
        }

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        self_only = [type(regulariser).__name__ for regulariser in self._regularisers if not regulariser.allows_cross]
        if sizes.cross and self_only:
            raise ValueError(
                f"{self_only[0]} cannot be used in cross-attention: it needs queries and keys of one sequence. Use "
                "another regulariser"
            )
        return self.mechanism.query_extras(sizes)

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return self.mechanism.key_extras(sizes)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> State:
        return self.mechanism.start(spec, sizes)

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out[AttentionOutput]:
        if not self.training or ctx.remember:
            return self.mechanism(queries, keys, state, ctx)
        request, new_state = self.mechanism.prepare_request(queries, keys, state, ctx)
        out = self.mechanism.read_with_aux(request)
        own_keys = keys if keys is not None and keys.own else None
        aux = {regulariser.key: regulariser(request, out.y, own_keys) for regulariser in self._regularisers}
        return out._replace(state=new_state, aux={**out.aux, **aux})

    def received_attention(
        self, queries: Queries, keys: Keys, read: AttentionOutput, ctx: Context
    ) -> Float[Tensor, "B S"]:
        return self.mechanism.received_attention(queries, keys, read, ctx)

    @property
    def _regularisers(self) -> list[Regulariser]:
        return list(self.regularisers)


def _disagreeing() -> Regularised:
    disagreements = kf.SubspaceDisagreement(), kf.PositionDisagreement(), kf.OutputDisagreement()
    return Regularised(kf.Softmax(kf.Causal()), *disagreements)


def _both_ways() -> Regularised:
    return Regularised(kf.Softmax(kf.Full()), kf.PositionDisagreement(), kf.OutputDisagreement())


EXAMPLES = (_disagreeing, _both_ways)
