"""CompositeMechanism: base class of mechanisms that are made of other mechanisms."""

from collections.abc import Mapping, Sequence

from torch import nn

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.checks import check_part
from kinformer.core.collected_outputs import wants_and_sends
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, StateSpec
from kinformer.core.layer import Out, State
from kinformer.core.mechanism import Mechanism
from kinformer.core.sublayer_names import add_prefix


class CompositeMechanism(Mechanism):
    """Base class of mechanisms that are made of other mechanisms.

    It collects the extra projections of its parts and their outputs `aux`, `up`, `stats` and `taps`. The number of the
    part is the prefix of each name. The decoding state is a tuple with one state for each part. Each part gets all
    heads unless a subclass overrides `share`. A subclass defines `forward`.

    parts: one or more mechanisms.

    Errors: ValueError if no part is given.
    """

    def __init__(self, *parts: Mechanism):
        super().__init__()
        name = type(self).__name__
        if not parts:
            raise ValueError(f"{name} got no mechanism. Pass at least one")
        for part in parts:
            check_part(f"a part of {name}", part, Mechanism, "a mechanism, such as Softmax(Causal())")
        self.parts = nn.ModuleList(parts)
        self.wants, self.sends = wants_and_sends(self.parts, rising=False)

    def share(self, sizes: HeadSizes) -> HeadSizes:
        """Return the head sizes of one part; a subclass overrides it to divide the layer's heads."""
        return sizes

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return by_part([part.query_extras(self.share(sizes)) for part in self.parts])

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return by_part([part.key_extras(self.share(sizes)) for part in self.parts])

    def start(self, spec: StateSpec, sizes: HeadSizes) -> State:
        return tuple(part.start(spec, self.share(sizes)) for part in self.parts)

    def combine_outs(
        self, outs: Sequence[Out[AttentionOutput]], read: AttentionOutput, state: State | None
    ) -> Out[AttentionOutput]:
        """Return the combined attention output `read` with the states and other outputs of all parts."""
        new_state = None if state is None else tuple(out.state for out in outs)
        reports = (by_part([getattr(out, kind) for out in outs]) for kind in ("aux", "up", "stats", "taps"))
        return Out(read, new_state, *reports)


def by_part(reports: Sequence[Mapping]) -> dict:
    """Merge the entries of several parts into one dictionary, with the number of the part as prefix.

    reports: one mapping of names to entries for each part, such as the outputs in `Out.aux`.
    """
    return {name: value for n, entries in enumerate(reports) for name, value in add_prefix(n, entries).items()}
