"""Depth-adaptive decoding by hand: a token at a time, keys and values in lists, of a skipped layer those of the exit.

What a model says whole, in chunks, of padded rows, and of rows that are selected and go on apart, is held against it.
"""

from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from kinformer.core.state import fork, select
from kinformer.members.depth_adaptive import depth_adaptive
from kinformer.models.support.exit_losses import ManyExits

D, DEPTH, VOCAB = 8, 4, 7
TINY = {"d": D, "depth": DEPTH, "heads": 2, "length": 16, "vocab": VOCAB}
ROWS = torch.tensor([[3, 1, 4, 1, 5, 2], [-1, -1, 2, 6, 5, 3], [5, 5, 0, 2, -1, -1]])
SOURCE = torch.tensor([[3, 1, 4, 0], [2, 6, -1, -1], [-1, 1, 1, 5]])
CASES: dict[str, dict[str, Any]] = {
    "multinomial": {},
    "geometric": {"threshold": (0.4, 0.5, 0.3), "shared": False, "outputs": "each"},
    "probability": {"threshold": (0.9, 0.6, 0.8), "outputs": "each", "position": "sinusoidal"},
    "sequence": {"form": "encoder_decoder", "norm": "post"},
    "geometric, pairs": {"form": "encoder_decoder", "threshold": 0.6},
}


def build(case: str) -> ManyExits:
    """Of models as they are drawn the first whose tokens leave at three layers at least, or its rows at two."""
    for seed in range(50):
        torch.manual_seed(seed)
        built = depth_adaptive.rebuild(**TINY, classifier=case.split(",")[0], **CASES[case])  # type: ignore[attr-defined]
        model = built.eval().requires_grad_(False)
        for p in model.parameters():
            nn.init.normal_(p, std=0.6)
        exits = model.logits(ROWS, **arguments(model)).aux["exit"]
        if len(exits[ROWS >= 0].unique()) >= (2 if case == "sequence" else 3):
            return model
    raise AssertionError("all of its tokens leave alike")


def arguments(model: ManyExits) -> dict[str, Any]:
    return {"source": SOURCE} if model.reads == "pairs" else {}


class ByHand:
    """One row: the keys and values of each layer so far, and those of the source."""

    def __init__(self, model: ManyExits, source: Tensor | None):
        self.model, self.layers = model, model.exits.layers
        self.own: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]
        self.source = None if source is None else model.encode(source[None])[0].y[0]

    def step(self, token: int, t: int) -> tuple[Float[Tensor, " V"], int]:
        """The scores after a token, and at which exit it left, from 0."""
        x = self.model.embedding.weight[token] * self.model.scale
        h, states = x + self.model.position(torch.tensor([[t]]))[0, 0], []
        for n in range(DEPTH):
            h = self.block(n, h)
            states.append(h)
            if n == DEPTH - 1 or self.leaves(states):
                break
        for above in range(n + 1, DEPTH):
            self.keep(above, h)
        return self.head(n)(self.model.exits.heads[n](h)), n

    def keep(self, n: int, h: Tensor) -> None:
        """Its key and value at a layer, by projection alone."""
        block = self.layers[n]
        x = h if self.post else block.norms[0](h)
        self.own[n].append(tuple(F.linear(x, *block.layers[0].projection.matrix(name)) for name in "kv"))

    @property
    def post(self) -> bool:
        return type(self.layers[0]).__name__ == "PostNorm"

    def block(self, n: int, h: Tensor) -> Tensor:
        self.keep(n, h)
        block = self.layers[n]
        for part, norm in zip(block.layers, block.norms, strict=True):
            x = h if self.post else norm(h)
            if part is block.layers[-1]:
                y = part(x[None, None]).y[0, 0]
            elif part is block.layers[0]:
                y = self.read(part, x, self.own[n])
            else:
                k, v = (F.linear(self.source, *part.projection.matrix(name)) for name in "kv")
                y = self.read(part, x, list(zip(k, v, strict=True)))
            h = norm(h + y) if self.post else h + y
        return h

    def read(self, layer: Any, x: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        q, outputs = F.linear(x, *layer.projection.matrix("q")), []
        for head in range(2):
            at = slice(head * D // 2, (head + 1) * D // 2)
            weight = torch.softmax(torch.stack([q[at] @ k[at] for k, _ in cache]) / (D // 2) ** 0.5, 0)
            outputs.append(sum(w * v[at] for w, (_, v) in zip(weight, cache, strict=True)))
        return F.linear(torch.cat(outputs), layer.aggregation.linear.weight, layer.aggregation.linear.bias)

    def head(self, n: int) -> nn.Module:
        return self.model.head.each[n] if hasattr(self.model.head, "each") else self.model.head

    def leaves(self, states: list[Tensor]) -> bool:
        rule, n = self.model.exits.rule, len(states) - 1
        if type(rule).__name__ in ("Multinomial", "BySequence"):
            mean = states[0] if self.source is None else self.source.mean(0)
            return int((rule.choice.weight @ mean + rule.choice.bias).softmax(-1).argmax()) == n
        threshold = rule.threshold if isinstance(rule.threshold, float) else rule.threshold[n]
        if type(rule).__name__ == "Geometric":
            unit = rule.stop[0 if rule.shared else n]
            return bool(torch.sigmoid(unit.weight[0] @ states[n] + unit.bias[0]) > threshold)
        return bool(self.head(n)(self.model.exits.heads[n](states[n])).softmax(-1).max() >= threshold)


def by_hand(model: ManyExits, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and exits (from 1) of all rows; 0 where there is padding."""
    y, exits = [], torch.zeros(rows.shape)
    for b, row in enumerate(rows):
        pairs = model.reads == "pairs"
        by_loop, t = ByHand(model, SOURCE[b % 3][SOURCE[b % 3] >= 0] if pairs else None), 0
        for column, token in enumerate(row.tolist()):
            if token >= 0:
                scores, n = by_loop.step(token, t)
                y.append(scores)
                exits[b, column], t = n + 1, t + 1
    return torch.stack(y), exits


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_what_is_said_whole_in_chunks_and_by_forked_rows_is_what_a_loop_says(case: str, float64: None) -> None:
    model, real = build(case), ROWS >= 0
    want, exits = by_hand(model, ROWS)
    inputs = arguments(model)
    whole = model.logits(ROWS, **inputs)
    torch.testing.assert_close(whole.y[real], want, rtol=0, atol=1e-10)
    assert torch.equal(whole.aux["exit"], exits)
    for cuts in ((1,) * 6, (3, 1, 2)):
        state, at, ys = model.start(3, 6), 0, []
        for width in cuts:
            out = model.logits(ROWS[:, at : at + width], state, **(inputs if not at else {}))
            state, at, ys = out.state, at + width, [*ys, out.y]
        torch.testing.assert_close(torch.cat(ys, 1)[real], want, rtol=0, atol=1e-10)

    # beams of two of the rows, which part after four columns; the state is also forked, and goes on by itself
    begun = model.logits(ROWS[:, :4], model.start(3, 6), **inputs).state
    chosen, ends = torch.tensor([1, 0, 0]), torch.tensor([[1, 2], [4, 5], [0, 0]])
    fork_state, state = fork(begun), select(begun, chosen)
    outputs = []
    for t in range(2):
        out = model.logits(ends[:, t : t + 1], state)
        state, outputs = out.state, [*outputs, out.y[:, 0]]
    for b, row in enumerate(torch.cat([ROWS[chosen, :4], ends], 1)):
        rows = torch.full((3, 6), -1)
        rows[chosen[b]] = row
        torch.testing.assert_close(torch.stack(outputs, 1)[b], by_hand(model, rows)[0][-2:], rtol=0, atol=1e-10)
    rest = model.logits(ROWS[:, 4:], fork_state).y
    torch.testing.assert_close(rest[real[:, 4:]], whole.y[:, 4:][real[:, 4:]], rtol=0, atol=1e-10)


def flops(model: ManyExits, leave: int, rows: int) -> int:
    """Those of a step of decoding whose tokens all leave after so many layers."""
    model.exits.rule.threshold = tuple(float(n + 1 < leave) for n in range(DEPTH - 1))
    state = model.start(rows, 4)
    inputs = {"source": torch.arange(3 * rows).view(rows, 3) % VOCAB} if model.reads == "pairs" else {}
    state = model.logits(torch.ones(rows, 1, dtype=torch.long), state, **inputs).state
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        out = model.logits(torch.ones(rows, 1, dtype=torch.long), state)
    assert out.aux["exit"].unique().tolist() == [leave]
    return counter.get_total_flops()


@pytest.mark.parametrize("form", ["decoder", "encoder_decoder"])
def test_of_a_skipped_layer_a_step_computes_keys_and_values_and_nothing_else(form: str) -> None:
    """By PyTorch's count of multiplications: neither its own attention nor that to the source is asked."""
    model, rows = depth_adaptive(**TINY, classifier="geometric", form=form).eval(), 5
    multiplications = [flops(model, leave, rows) for leave in range(1, DEPTH + 1)]
    projected, unit = 2 * rows * D * 2 * D, 2 * rows * D  # the unit is the rule's, asked after each layer but the last
    across = 2 * D * D if form == "encoder_decoder" else 0  # its queries and what it makes of heads
    block = projected + 2 * rows * (2 * D * D + across + 8 * D * D)  # fused attention itself is not counted
    extra = [0, unit, 2 * unit, 2 * unit]
    assert [number - multiplications[0] for number in multiplications] == [
        n * (block - projected) + extra[n] for n in range(DEPTH)
    ]
