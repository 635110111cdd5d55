"""NeverExit: an exit rule in which no token leaves early."""

from kinformer.core.layer import Context, State
from kinformer.nn.exits.confidence import Head, States
from kinformer.nn.exits.exit_rule import ExitRule, Leaves


class NeverExit(ExitRule):
    """An exit rule in which no token leaves before the last layer.

    The output and the cost equal a model without exits. Calibration falls back to this rule if no threshold is proven.
    Choose it also to measure how much exits save.
    """

    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves:
        return ctx.pos < ctx.pos
