"""GatedGlobalSoftmax: attention with global tokens that other tokens read through a gate."""

from typing import Any

import torch
from torch import Tensor, nn

import kinformer as kf
from kinformer.attend import read
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.bias import Bias
from kinformer.core.checks import check_at_least
from kinformer.core.example import Example
from kinformer.core.layer import Out
from kinformer.core.pattern import Not, Pattern
from kinformer.core.request import Request
from kinformer.nn.mechanisms.global_softmax import GlobalSoftmax, LocalSoftmax
from kinformer.nn.patterns.tokens import Tokens


class GatedGlobalSoftmax(GlobalSoftmax):
    """`GlobalSoftmax` whose local queries read the global tokens through a gate for each head.

    y = local + tanh(gate) (local_and_global - local)

    Here `local` is attention to the keys of `pattern` except the first n, and `local_and_global` is attention to all
    keys of `pattern`. The gates start at 0, so the first n tokens change no other token until training opens the gates.
    With tanh(gate) near 1 it is `GlobalSoftmax`. Choose it to add global tokens to a trained model whose outputs must
    stay equal at first, as the conversion `etc` does. Choose `GlobalSoftmax` to train from new weights.

    n: number of global tokens, at positions 0 .. n - 1.
    heads: number of heads of the layer.
    pattern: keys that a local query reads, such as `Band(8) | Tokens(n)`.
    rows: queries that are global in every row, such as `Rows(n)`.
    bias, copied, scale, dropout, impl: as in `GlobalSoftmax`.

    Errors: ValueError for a layer with another number of heads; otherwise the errors of `GlobalSoftmax`.

    Source: gates at 0 for new parts of a trained model as in Flamingo (Alayrac et al., 2022, arXiv:2204.14198).

    Differences: Flamingo has gates behind new layers. Here a gate weighs new keys within one attention.
    """

    def __init__(
        self,
        n: int,
        heads: int,
        pattern: Pattern,
        rows: Pattern,
        bias: Bias | None = None,
        *,
        copied: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
        impl: str = "auto",
    ):
        super().__init__(pattern, rows, bias, copied=copied, scale=scale, dropout=dropout, impl=impl)
        settings: dict[str, Any] = {"scale": scale, "dropout": dropout, "impl": impl}
        check_at_least("n", n, 1)
        self.near = _Gated(n, check_at_least("heads", heads, 1), pattern, rows, bias, **settings)


class _Gated(LocalSoftmax):
    """Read of the local queries, in which a gate weighs the effect of the first n keys."""

    def __init__(self, n: int, heads: int, pattern: Pattern, rows: Pattern, bias: Bias | None, **settings: Any):
        super().__init__(pattern, rows, bias, **settings)
        self.first, self.gate = Tokens(n), nn.Parameter(torch.zeros(heads))

    def read(self, request: Request) -> Out[AttentionOutput]:
        heads = request.queries.q.shape[1]
        if heads != len(self.gate):
            raise ValueError(
                f"GatedGlobalSoftmax was made for {len(self.gate)} heads, but got {heads}. Create it with heads={heads}"
            )
        local = read(request.replace(pattern=request.pattern & Not(self.first)), self.impl)
        added = read(request.replace(pattern=request.pattern & self.first), self.impl)
        both, gate = merge(local, added), torch.tanh(self.gate)[:, None, None].to(local.y.dtype)
        y: Tensor = local.y + gate * (both.y - local.y)
        return Out(AttentionOutput(y, both.lse))


def _encoder() -> GatedGlobalSoftmax:
    return GatedGlobalSoftmax(2, 2, kf.Band(2) | Tokens(2), kf.Rows(2))


def _labelled() -> GatedGlobalSoftmax:
    mechanism = GatedGlobalSoftmax(2, 2, kf.Band(2) | Tokens(2), kf.Rows(2), kf.ETCLabels(2, 8, 2, 3), copied=False)
    gate: Any = mechanism.near.gate
    nn.init.constant_(gate, 0.5)
    return mechanism


_APART = {"merge": "the output is no softmax over local and global keys, so two halves of the keys do not merge"}
EXAMPLES = (Example(_encoder, breaks=_APART), Example(_labelled, breaks=_APART))
