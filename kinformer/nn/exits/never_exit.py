"""NeverExit: no token leaves."""

from kinformer.core.layer import Context, State
from kinformer.nn.exits.confidence import Head, States
from kinformer.nn.exits.exit_rule import ExitRule, Leaves


class NeverExit(ExitRule):
    """No token leaves before the last layer: the full model, at what it costs without exits.

    Choose it for what calibration falls back to where no threshold is proven, and to measure what exits save.
    """

    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves:
        return ctx.pos < ctx.pos
