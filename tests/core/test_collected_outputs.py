"""Collected gathers what sublayers report; flow says what a sequence of them wants and sends."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.collected_outputs import Collected, add_aux, add_stats, concatenate_outs, is_sent, wants_and_sends
from kinformer.core.layer import Context, Layer, Out, PerToken, Want

POS = torch.arange(3).expand(2, 3)
X = torch.zeros(2, 3, 4)


class Part(Layer):
    """Reports everything that a layer can; adds 1 to x and to its state."""

    d = 4

    def __init__(self, wants: tuple[Want, ...] = (), sends: tuple[str, ...] = ()):
        super().__init__()
        self.wants, self.sends = wants, frozenset(sends)
        self.seen: list[Context] = []

    def forward(self, x: Tensor, state: Any, ctx: Context) -> Out:
        self.seen.append(ctx)
        up = {name: PerToken(x[..., 0]) for name in self.sends}
        state = None if state is None else state + 1
        aux, taps = {"n": x[..., 0], "fixed": torch.tensor(5.0)}, {"inner": x * 2}
        return Out(x + 1, state, aux, up, {"count": x.sum()}, taps)


@pytest.mark.parametrize("rising", [True, False])
def test_reports_stand_under_their_place(rising: bool) -> None:
    ctx = Context(POS, taps=("0", "1.input", "1.inner"))
    collected = Collected(ctx, (torch.tensor(10), torch.tensor(20)), rising=rising)
    parts = [Part(sends=("s",)), Part(sends=("t",))]
    x = X
    for n, part in enumerate(parts):
        x = collected.call(n, part, x).y
    out = collected.make_out(x)
    assert out.y.max() == 2 and [int(leaf) for leaf in out.state] == [11, 21]
    assert set(out.aux) == {"0.n", "0.fixed", "1.n", "1.fixed"} and set(out.stats) == {"0.count", "1.count"}
    assert set(out.up) == ({"s", "t"} if rising else {"0.s", "1.t"})
    assert {name: int(tap.max()) for name, tap in out.taps.items() if "inner" not in name} == {"0": 1, "1.input": 1}
    assert parts[1].seen[0].taps == ("input", "inner") and parts[0].seen[0].taps == ()
    assert set(parts[1].seen[0].below) == ({"s"} if rising else set())
    assert ctx.below == {}


def test_without_a_state_none_is_made_and_a_skipped_one_stays() -> None:
    collected = Collected(Context(POS), None)
    collected.call(0, Part(), X)
    assert collected.make_out(X).state is None
    stateful = Collected(Context(POS), (torch.tensor(1), torch.tensor(2)))
    stateful.skip(torch.tensor(7))
    stateful.remember(1, Part(), X)
    assert [int(leaf) for leaf in stateful.make_out(X).state] == [7, 3]


def test_remember_asks_for_the_state_and_reports_nothing() -> None:
    part, collected = Part(sends=("s",)), Collected(Context(POS), (torch.tensor(1),), rising=True)
    assert collected.remember(0, part, X).y is X and part.seen[0].remember
    out = collected.make_out(X)
    assert (out.aux, out.up, out.stats, out.taps) == ({}, {}, {}, {}) and int(out.state[0]) == 2


def test_repeated_blocks_are_added_up_where_they_count() -> None:
    counts = torch.tensor([[True, True, False], [False, True, True]])
    collected = Collected(Context(POS), None)
    part, x = Part(), X + 1
    for n in range(2):
        collected.call(n, part, x, counts=counts if n else torch.ones_like(counts))
    assert collected.aux["n"].tolist() == [[2, 2, 1], [1, 2, 2]] and collected.aux["fixed"].item() == 5
    assert collected.stats["count"].item() == 48
    assert add_aux({}, {"n": X[..., 0] + 1}, counts)["n"].tolist() == [[1, 1, 0], [0, 1, 1]]
    sums = {"a": torch.tensor(1.0)}
    assert add_stats(sums, {"a": torch.tensor(2.0), "b": torch.tensor(3.0)}) == {"a": 3.0, "b": 3.0} and sums == {
        "a": 1.0
    }


def test_pieces_of_a_row_are_put_together() -> None:
    whole = Part()(torch.arange(24.0).view(2, 3, 4), torch.tensor(0), Context(POS))
    pieces = [
        Part()(torch.arange(24.0).view(2, 3, 4)[:, lo:hi], torch.tensor(n), Context(POS[:, lo:hi]))
        for n, (lo, hi) in enumerate(((0, 1), (1, 3)))
    ]
    joined = concatenate_outs(pieces)
    assert torch.equal(joined.y, whole.y) and torch.equal(joined.taps["inner"], whole.taps["inner"])
    assert torch.equal(joined.aux["n"], whole.aux["n"]) and joined.aux["fixed"].item() == 5
    assert torch.equal(joined.stats["count"], whole.stats["count"]) and int(joined.state) == 2
    assert concatenate_outs(pieces[:1]) is pieces[0]


WANT, MAY = Want("scores"), Want("scores", optional=True)


@pytest.mark.parametrize(
    ("layers", "rising", "wants", "sends"),
    [
        # in a stack a block beneath meets a want; the lowest may go without only where it says so
        ([((WANT,), ("scores",)), ((WANT,), ("scores",))], True, {WANT}, {"scores"}),
        ([((MAY,), ("scores",)), ((MAY,), ("scores",))], True, {MAY}, {"scores"}),
        ([((), ("scores",)), ((WANT,), ())], True, set(), {"scores"}),
        # above the lowest block, what nobody beneath sends is missed
        ([((), ()), ((MAY,), ())], True, {WANT}, set()),
        ([((MAY,), ()), ((MAY,), ())], True, {WANT}, set()),
        # in a block each sublayer has its place
        (
            [((WANT,), ("scores",)), ((MAY,), ("t",))],
            False,
            {Want("0.scores"), Want("1.scores", True)},
            {"0.scores", "1.t"},
        ),
        # and a stack of blocks meets wants by place
        ([((), ("0.scores",)), ((Want("0.scores"),), ())], True, set(), {"0.scores"}),
        ([((), ("0.scores",)), ((Want("1.scores"),), ())], True, {Want("1.scores")}, {"0.scores"}),
    ],
)
def test_flow(layers: list, rising: bool, wants: set[Want], sends: set[str]) -> None:
    flow_of = wants_and_sends([Part(*arguments) for arguments in layers], rising=rising)
    assert (set(flow_of[0]), flow_of[1]) == (wants, frozenset(sends))


def test_what_is_sent_without_a_place_meets_a_want_at_any() -> None:
    assert (
        is_sent("0.1.scores", ["scores"]) and is_sent("0.scores", ["0.scores"]) and not is_sent("scores", ["0.scores"])
    )
