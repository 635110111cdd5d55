"""How values travel up the depth: by place, with prefixes, never by writing into what came."""

import torch
from torch import nn

from kinformer.core.layer import Context, Layer, Out, PerToken, Want
from kinformer.core.sublayer_names import add_prefix, entries_under
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack


def test_under_keeps_undotted_entries_and_cuts_its_own_prefix() -> None:
    names = ["task", "0.scores", "1.scores", "1.2.deep", "10.far"]
    entries = {name: torch.tensor(n) for n, name in enumerate(names)}
    entries_of_layer = entries_under(1, entries)
    assert {name: int(value) for name, value in entries_of_layer.items()} == {"task": 0, "scores": 2, "2.deep": 3}
    assert list(add_prefix(3, {"0.ponder": torch.tensor(1)})) == ["3.0.ponder"]


class Counts(Layer):
    """Sends up one more than it finds below, and reports what it saw."""

    d = 4
    wants = (Want("count", optional=True),)
    sends = frozenset({"count"})

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, int]] = []

    def forward(self, x: torch.Tensor, state: object, ctx: Context) -> Out:
        self.seen.append({name: int(sent.value.max()) for name, sent in ctx.below.items()})
        count = ctx.below["count"].value + 1 if "count" in ctx.below else torch.ones(x.shape[:2])
        return Out(x, state, {"n": count.float()}, {"count": PerToken(count)})


def test_a_sublayer_finds_what_the_same_sublayer_beneath_sent_and_what_the_model_sent() -> None:
    blocks = [PreNorm(Counts(), Counts(), norm=lambda d: nn.Identity()) for _ in range(3)]
    below = {"task": PerToken(torch.full((1, 2), 7))}
    out = Stack(blocks)(torch.zeros(1, 2, 4), None, Context(torch.arange(2)[None], below=below))
    assert [block.layers[1].seen for block in blocks] == [[{"task": 7} | ({"count": n} if n else {})] for n in range(3)]
    assert {name: int(sent.value.max()) for name, sent in out.up.items()} == {"0.count": 3, "1.count": 3}
    assert {name: int(value.max()) for name, value in out.aux.items()} == {
        f"{n}.{i}.n": n + 1 for n in range(3) for i in range(2)
    }
    assert list(below) == ["task"]


def test_a_layer_is_callable_with_x_alone() -> None:
    contexts: list[Context] = []

    class Sees(Layer):
        d = 4

        def forward(self, x: torch.Tensor, state: object, ctx: Context) -> Out:
            contexts.append(ctx)
            return Out(x, state)

    x = torch.zeros(2, 3, 4)
    assert Sees()(x).y is x and Sees()(x).state is None and Sees()(x, ()).state == ()
    assert contexts[0].pos.tolist() == [[0, 1, 2]] * 2 and contexts[0].run and contexts[0].full
    for ctx in (Context(torch.arange(3).expand(2, 3), full=True), Context(torch.arange(3).expand(2, 3), is_clean=True)):
        assert Sees()(x, None, ctx).y is x and contexts[-1] is ctx
    y = Sees()(torch.full_like(x, torch.nan), None, Context(torch.tensor([[-1, 0, 1], [0, 1, -1]]))).y
    assert y[:, 1].isnan().all() and y[0, 0].tolist() == y[1, 2].tolist() == [0.0] * 4 and contexts[-1].is_clean
