"""EarlyExit: a stack that each token leaves at the layer that a rule chooses."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_optional_part, check_part
from kinformer.core.choice import choice
from kinformer.core.collected_outputs import Collected, add_aux, wants_and_sends
from kinformer.core.example import Example
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.loss import penalties_of
from kinformer.core.sublayer_names import add_prefix
from kinformer.core.unrepeatable import Unrepeatable
from kinformer.nn.depth.active_rows import Rows, can_read_some_rows, find_active_rows, leaving_tokens, on_rows
from kinformer.nn.exits.confidence import Head, apply_in_float32
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.never_exit import NeverExit
from kinformer.nn.exits.per_exit_classifier import of_exit
from kinformer.nn.losses.aligned_exits import scale_gradient


class EarlyExitState(NamedTuple):
    """The decoding state of an `EarlyExit`.

    rule: state of the exit rule.
    layers: states of the layers.
    """

    rule: State
    layers: State


DRAWN = Unrepeatable("an EarlyExit with chance draws new exits in each call", "leave out chance")


class EarlyExit(Layer):
    """A stack in which each token passes only as many layers as an exit rule says.

    Choose it to save computation on easy tokens. It reports per token the number of the layer after which it left, from
    1 (aux "exit"). The hidden state with which a token leaves is copied to the layers above, or goes through
    `shortcuts`. Their keys come from these states, which later tokens read. So decoding in chunks gives the same result
    as one call.

    In train mode no token leaves, since no gradient of a hard exit reaches the rule. No token leaves in a call with
    `ctx.taps` (names of hidden states) either: "0", "1", .. are then the outputs of all layers for all tokens.
    `MultiExit` trains all exits and the rule on these outputs and on its head, `ctx.head`. With a `chance`, tokens
    leave in train mode too.

    In eager eval mode a layer is computed, and the rule asked, only for rows with an active token. In decoding, with
    one token per row, these are exactly the active tokens. The decoding state is updated for the other rows too. Layers
    up to the last one that reports a penalty are computed for all rows.

    layers: the layers, all of one width.
    heads: modules from width d to width d, applied to the hidden state with which a token leaves. Pass one for all
        exits (a norm, or nn.Identity()), or one per layer. A confidence that needs probabilities applies the model's
        head (`ctx.head`) to their output.
    rule: decides after each layer which tokens leave.
    shortcuts: modules from width d to width d, one per layer. A token that has left goes through them in place of the
        layers above, which is closer to the states that those layers were trained on. None copies its state.
    chance: exit rule of train mode; later tokens read the copied states as in eval mode. With `UniformExit(depth)` it
        is Elbayad's mixed training. None: no token leaves in train mode.
    gamma: scales gradients in training as in Elbayad's appendix A. Layer n of N multiplies the gradient from its exit
        by gamma (N - n), and divides the gradient that it passes down by the same factor. The last layer has the factor
        1, a choice of this library, since N - n is 0 there. The paper found no scaling better.

    Errors: ValueError if a list of heads or of shortcuts does not have one per layer, and if a rule is made for another
    width or number of layers. ValueError also if both gamma and chance are given.
    Source: Elbayad et al., 2019, arXiv:1910.10073; Schuster et al., 2022, arXiv:2207.07061.

    Differences: `gamma` follows algorithm 1 of the paper; its text would pass each gradient down unscaled.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        heads: nn.Module | Sequence[nn.Module],
        rule: ExitRule,
        *,
        shortcuts: Sequence[nn.Module] | None = None,
        chance: ExitRule | None = None,
        gamma: float | None = None,
    ):
        super().__init__()
        each = [heads] * len(layers) if isinstance(heads, nn.Module) else list(heads)
        if not layers or len(each) != len(layers):
            raise ValueError(
                f"EarlyExit needs one head, or one per layer: got {len(each)} heads for {len(layers)} layers"
            )
        if shortcuts is not None and len(shortcuts) != len(layers):
            raise ValueError(f"EarlyExit needs one shortcut per layer: got {len(shortcuts)} for {len(layers)} layers")
        widths = sorted({layer.d for layer in layers})
        if len(widths) > 1:
            raise ValueError(f"the layers of an EarlyExit must have the same d: got widths {widths}")
        self.d, self.layers, self.heads = widths[0], nn.ModuleList(layers), nn.ModuleList(each)
        self.shortcuts = None if shortcuts is None else nn.ModuleList(shortcuts)
        self.rule = check_part("rule", rule, ExitRule, "a rule, such as ConfidenceThreshold(Saturation(), 0.9)")
        self.chance = check_optional_part("chance", chance, ExitRule, "a rule, such as UniformExit(depth)")
        for each_rule in (rule, *([] if chance is None else [chance])):
            each_rule.check_sizes(self.d, len(layers))
        if gamma is not None and (chance is not None or not 0 < gamma < math.inf):
            raise ValueError(
                f"gamma={gamma} must be a finite number above 0, and cannot be combined with chance. Pass gamma or "
                "chance"
            )
        # for each exit, the factor of its own loss in the gradient of its layer
        above = range(len(layers) - 1, -1, -1)
        self.gammas = tuple(1.0 if gamma is None or not n else gamma * n for n in above)
        self.wants, _ = wants_and_sends(layers, rising=True)
        # a skipped layer reports nothing, so layers up to the last one with a penalty are always computed
        self.always = 1 + max((n for n, layer in enumerate(layers) if penalties_of(layer)), default=0)
        self.divisible = all(can_read_some_rows(layer) for layer in layers)

    @property
    def unrepeatable(self) -> Unrepeatable | None:
        """The reason why two equal calls in training differ: with a `chance` rule exits are random; else None."""
        return None if self.chance is None else DRAWN

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> EarlyExitState:
        layers = tuple(layer.start(batch, length, dtype=dtype, device=device) for layer in self.layers)
        like = next(self.parameters(), torch.empty(0))
        return EarlyExitState(self.rule.start(batch, device=torch.device(device) if device else like.device), layers)

    def forward(self, x: Float[Tensor, "B T D"], state: EarlyExitState | None, ctx: Context) -> Out:
        rule = self.rule.start(len(x), device=x.device) if state is None else state.rule
        rule_state = self.rule.begin_call(rule, ctx, x)
        collected = Collected(
            ctx.replace(remember=False) if ctx.remember else ctx, None if state is None else state.layers, rising=True
        )
        exit_rule, exit_state = (self.chance, ()) if self.training else (self.rule, rule_state)
        exit_rule = None if isinstance(exit_rule, NeverExit) else exit_rule
        if self.training and exit_rule is not None and not ctx.taps:
            # drawn outside the layers, so that recomputing a layer does not draw again
            exit_state = exit_rule.begin_call(exit_state, ctx, x)
        inside, last, whole = ctx.pos >= 0, len(self.layers) - 1, exit_rule is None or bool(ctx.taps)
        h, exits = x, torch.zeros_like(x[..., 0])
        left = x  # the state with which each token left, which is h itself without shortcuts
        states: list[Tensor] = []
        rows = None
        for n, layer in enumerate(self.layers):
            if n >= self.always and not whole:
                rows = find_active_rows(self, inside, rows)
            if (rows is not None and not len(rows)) or (ctx.remember and n == last):
                if state is not None:
                    collected.remember(n, layer, h)
                h = self._pass_by(n, h)
                continue
            if n and self.training:
                h = scale_gradient(h, 1 / self.gammas[n])
            out = collected.call(n, on_rows(layer, rows) if self.divisible else layer, h)
            collected.aux |= add_prefix(n, add_aux({}, out.aux, inside))  # tokens that left do not count
            h = torch.where(inside[..., None], out.y, self._pass_by(n, h))
            left = h if self.shortcuts is None else torch.where(inside[..., None], h, left)
            states.append(h)
            exits = exits + inside
            if n < last and not whole:
                inside = inside & ~self._choose_leaving(exit_rule, rows, states, exit_state, ctx)
        out = collected.make_out(self._head_inputs(left, exits, len(states)))
        new_state = None if state is None else EarlyExitState(rule_state, out.state)
        return out._replace(state=new_state, aux={**out.aux, "exit": exits}, up={})

    def _pass_by(self, n: int, h: Tensor) -> Tensor:
        """Return the states above a layer of the tokens that have left below it."""
        return h if self.shortcuts is None else self.shortcuts[n](h)

    def _head_inputs(self, h: Tensor, exits: Tensor, count: int) -> Tensor:
        """Apply the heads to the states of tokens that left at one of the first `count` exits; 0 for padding."""
        y = torch.zeros_like(h)
        if all(head is self.heads[0] for head in self.heads):
            return torch.where(exits[..., None] > 0, self.heads[0](h), y)
        for n in range(count):
            y = torch.where(exits[..., None] == n + 1, self.heads[n](h), y)
        return y

    def _choose_leaving(
        self, rule: ExitRule | None, rows: Rows | None, states: list[Tensor], rule_state: State, ctx: Context
    ) -> Tensor:
        assert rule is not None
        with torch.no_grad():
            return choice(
                lambda: leaving_tokens(rule, rows, states, ctx, rule_state, self.reads(len(states) - 1, ctx.head))
            )

    def reads(self, n: int, head: nn.Module | None) -> Head | None:
        """Return a function from a hidden state at exit n to logits, in float32 or better.

        It applies the exit's module of `heads`, then the model's head.

        n: index of the exit, from 0.
        head: the model's head; without it the result is None.
        """
        if head is None:
            return None
        norm, lent = self.heads[n], of_exit(head, n)
        return lambda h: apply_in_float32(lent, apply_in_float32(norm, h))


def _example(
    heads: Callable[[], nn.Module | Sequence[nn.Module]], rule: Callable[[], ExitRule], **training: Any
) -> EarlyExit:

    blocks = [kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16)) for _ in range(3)]
    return EarlyExit(blocks, heads(), rule(), **training)


def _multinomial() -> EarlyExit:
    return _example(lambda: kf.LayerNorm(16), lambda: kf.Multinomial(16, 3))


def _geometric() -> EarlyExit:
    return _example(lambda: [kf.LayerNorm(16) for _ in range(3)], lambda: kf.Geometric(16, 3, shared=False))


def _saturated() -> EarlyExit:
    return _example(lambda: kf.LayerNorm(16), lambda: kf.ConfidenceThreshold(kf.Saturation(), 0.9))


def _make_trained(**training: Any) -> EarlyExit:
    return _example(lambda: kf.LayerNorm(16), lambda: kf.ConfidenceThreshold(kf.Saturation(), 0.9), **training)


def _mixed() -> EarlyExit:
    return _make_trained(chance=kf.UniformExit(3))


def _with_shortcuts() -> EarlyExit:
    return _make_trained(shortcuts=[kf.LinearShortcut(16, rank=4) for _ in range(3)])


EXAMPLES = (
    _multinomial,
    _geometric,
    _saturated,
    Example(_mixed, breaks={"batch_mates": "mixed training draws the exit of each token, as dropout draws its mask"}),
    _with_shortcuts,
    Example(lambda: _make_trained(gamma=0.5), breaks={"derivative": "gamma scales the gradients on purpose"}),
)
