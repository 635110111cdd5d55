"""NeverExit: an exit rule in which no token leaves early."""

from kinformer.core.layer import Context, State
from kinformer.nn.exits.confidence import Head, States
from kinformer.nn.exits.exit_rule import ExitRule, Leaves


class NeverExit(ExitRule):
    """An exit rule in which no token leaves before the last layer.

    Output and time are as in a model without exits. Calibration, which looks for an exit threshold that keeps the
    quality, chooses this rule if it finds none. Choose it also to measure how much exits save.
    """

    def forward(self, states: States, ctx: Context, rule_state: State, head: Head | None = None) -> Leaves:
        return ctx.pos < ctx.pos
