"""The operator by which compiled graphs read in pieces, as it is and compiled, against the reference."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from kinformer import Attention, Context, attend
from kinformer.attend import custom_operator as operator
from kinformer.attend import fused_kernel as kernel
from kinformer.attend import pattern_serialization as spelling
from kinformer.attend.executors import reference
from kinformer.core.discover import examples
from kinformer.core.pattern import Heads, Index, Pattern
from kinformer.core.patterns.blocks import Blocks
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
from kinformer.core.request import Refusal, Request
from kinformer.laws import impl
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.since import Since
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.projections.qkv import QKV
from tests.unhooked import unhooked

TABLE = Blocks(((0,), (0, 1), (2,), (1, 3), (0, 4), (5,), (1,), (7,)), 8)


@dataclass(frozen=True)
class Own(Pattern):
    """A pattern of a user's file."""

    every: int
    past: bool = True

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return ((q + k) % self.every == 0) & ((k <= q) | (not self.past))


@dataclass(frozen=True)
class Share(Full):
    """With a field that no operator takes."""

    share: float = 0.5


def same(request: Request) -> bool:
    if isinstance(operator.cost(request), Refusal):
        return False
    impl._check_same(
        operator.read(request), reference.read(request), request, "the operator differs", f"{request.pattern}"
    )
    return True


def test_drawn_requests() -> None:
    """Whatever the law draws: padding, keys in any order, positions by head, heads in groups, rows of the batch."""
    assert sum(same(impl.draw_request(17, None, seed)) for seed in range(80)) > 25


@pytest.mark.parametrize("name", sorted({name for name, _ in examples("patterns")}))
def test_every_pattern(name: str) -> None:
    for _, example in [entry for entry in examples("patterns") if entry[0] == name]:
        for seed in range(4):
            same(impl.draw_request(11, example.make(), seed))


@pytest.mark.parametrize("name", sorted({name for name, _ in examples("patterns")}))
def test_a_spelling_is_read_back(name: str) -> None:
    for _, example in [pattern for pattern in examples("patterns") if pattern[0] == name]:
        for pattern in (example.make(), Causal() & ~example.make() | Heads(Band(3), example.make())):
            spelled = spelling.spell_pattern(pattern)
            assert spelled is not None
            back, at = spelling.pattern_of(spelled), torch.arange(12)
            assert back == pattern or pattern.tensors()
            assert {*back.tensors()} == {*pattern.tensors()}
            assert torch.equal(*(torch.as_tensor(p(0, 1, at[:, None], at)).expand(12, 12) for p in (back, pattern)))


def test_classes_that_no_name_leads_to() -> None:
    """Each is known by a name of this process alone: a graph that is kept on a disk must not find another one."""

    def make_class(least: int) -> type[Pattern]:
        @dataclass(frozen=True)
        class Local(Pattern):
            def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
                return torch.as_tensor(q - k >= least)

        return Local

    patterns = [make_class(n)() for n in range(3)]
    texts = [spelling.spell_pattern(spelled) for spelled in patterns]
    assert len({spelled.text for spelled in texts if spelled}) == 3
    assert [type(spelling.pattern_of(spelled)) for spelled in texts if spelled] == [
        type(spelled) for spelled in patterns
    ]
    assert spelling.spell_pattern(Causal() & Share()) is None


def test_classes_that_their_fields_do_not_make_are_refused() -> None:
    """A graph would read by another pattern, made of the fields alone."""

    class Window(Pattern):
        def __init__(self, size: int = 3):
            object.__setattr__(self, "size", size)

        def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
            return torch.as_tensor(q - k < self.size)

    @dataclass(frozen=True)
    class Doubled(Band):
        left: int = field(init=False, default=4)

    assert spelling.spell_pattern(Causal() & Window(9)) is None and spelling.spell_pattern(Doubled()) is None


def test_the_operator_is_one() -> None:
    """By PyTorch's own checks: schema, gradients, shapes that are faked and that change."""
    q, k, v = (torch.randn(2, h, 9, 4, requires_grad=True) for h in (4, 2, 2))
    pos, ids = torch.arange(9).expand(2, 1, -1).contiguous(), torch.arange(9).expand(2, -1) // 4
    for pattern, k_pos in ((Causal() & Band(3), None), (Causal() & Document(ids), pos.flip(2))):
        spelled = spelling.spell_pattern(pattern)
        assert spelled is not None
        args = q, k, v, pos, k_pos, None, *spelled, [False, True], 0, 0.5
        torch.library.opcheck(torch.ops.kinformer.pieces.default, args)


def test_what_it_refuses() -> None:
    request = impl.draw_request(11, Causal(), 1)
    for other in (request.replace(bias=ALiBi(4)), request.replace(dropout=0.1), request.replace(pattern=Share())):
        assert isinstance(operator.cost(other), Refusal)
    assert kernel.serves(request)


def test_compiled() -> None:
    results = unhooked(f"{__name__}:{compiled.__name__}")
    assert len(results) == 11 and [name for name, good in results.items() if not good] == []


# Compiled ------------------------------------------------------------------------------------------------------------


def compiled() -> dict[str, bool]:
    return {
        "lengths": all(lengths()),
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2,
        "own patterns": agree(Causal() & Own(3) | Own(5), 17),
        "tables": agree(Causal() & (TABLE | Random(2, 4)), 64),
        "padded": agree(Causal() & Band(5), 20, "padded"),
        "any order": agree(Causal() & Band(5), 20, "any order"),
        "auto": auto(),
        "decoding": all(decoding()),
        "autocast": autocast(),
        "vmap": vmap(),
        "forward derivatives": forward(),
    }


def lengths() -> Iterator[bool]:
    """One pattern, joined in the graph with the documents of the batch, at several lengths."""
    part = Causal() & Heads(Band(5), Strided(7))

    def read(q: Tensor, k: Tensor, v: Tensor, ids: Tensor, impl: str) -> tuple[Tensor, Tensor | None]:
        pattern = part & Document(ids) & Since(ids * 7)
        return tuple(attend(q, k, v, pattern=pattern, impl=impl))  # type: ignore[return-value]

    whole = torch.compile(read, fullgraph=True, backend="aot_eager")
    for length in (24, 31, 40, 27):
        ids = torch.arange(length).expand(2, -1) // 10
        yield equal([whole, read], length, ids)


def agree(pattern: Pattern, length: int, order: str = "") -> bool:
    torch._dynamo.reset()
    pos = torch.arange(length).repeat(2, 1, 1)
    if order == "padded":
        pos[1, 0, 15:] = -1
    if order == "any order":
        pos = pos[..., torch.randperm(length)]

    def read(q: Tensor, k: Tensor, v: Tensor, pos: Tensor, impl: str) -> tuple[Tensor, Tensor | None]:
        return tuple(attend(q, k, v, pattern=pattern, impl=impl, q_pos=pos, k_pos=pos))  # type: ignore[return-value]

    return equal([torch.compile(read, fullgraph=True, backend="aot_eager"), read], length, pos)


def equal(reads: list[Any], length: int, extra_input: Tensor) -> bool:
    """y, lse and gradients through both, of the operator in a graph and of the reference."""
    leaves = [torch.randn(2, h, length, 8, dtype=torch.float64, requires_grad=True) for h in (4, 2, 2)]
    results = []
    for read, executor in zip(reads, ("pieces", "reference"), strict=True):
        y, lse = read(*leaves, extra_input, executor)
        loss = y.sin().sum() + torch.where(lse == -torch.inf, 0.0, lse).cos().sum()
        results.append((y, lse, *torch.autograd.grad(loss, leaves)))
    return all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(*results, strict=True))


def auto() -> bool:
    """Long sparse rows are read by the operator without a word, short ones are not."""
    names: list[str] = []

    def record_graph(graph: torch.fx.GraphModule, _: Any) -> Any:
        names.append(str([node.target for node in graph.graph.nodes]))
        return graph

    for length in (8, 512):
        torch._dynamo.reset()
        q = torch.randn(1, 4, length, 16)
        torch.compile(lambda q: attend(q, q, q, pattern=Causal() & Band(16)).y, fullgraph=True, backend=record_graph)(q)
    return ["kinformer.pieces" in is_pieces for is_pieces in names] == [False, True]


@torch.no_grad()
def decoding() -> Iterator[bool]:
    """Steps and chunks behind a cache, whose keys lie in any order once a window has passed."""
    torch.manual_seed(0)
    layer, slow = (
        Attention(QKV(16, 2), Softmax(Causal() & Band(3), impl=choice)) for choice in ("pieces", "reference")
    )
    slow.load_state_dict(layer.state_dict())
    x, fast = torch.randn(2, 9, 16), torch.compile(layer, fullgraph=True, backend="aot_eager")
    for cuts in ([1] * 9, [4, 5]):
        torch._dynamo.reset()
        states, at = [layer.start(2, 9), slow.start(2, 9)], 0
        for n in cuts:
            pos = torch.arange(at, at + n).expand(2, n)
            outs = [choice(x[:, at : at + n], s, Context(pos)) for choice, s in zip((fast, slow), states, strict=True)]
            states, at = [out.state for out in outs], at + n
            yield torch.allclose(outs[0].y, outs[1].y, atol=1e-5)


def autocast() -> bool:
    torch._dynamo.reset()
    q = torch.randn(1, 2, 20, 8)

    def read(q: Tensor, impl: str) -> Tensor:
        return attend(q, q, q, pattern=Causal() & Band(5), impl=impl).y

    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, want = torch.compile(read, fullgraph=True, backend="aot_eager")(q, "pieces"), read(q, "reference")
    return y.dtype == want.dtype and bool((y - want).norm() < 3e-2 * want.norm())


def vmap() -> bool:
    """What the operator has no rule for is left to others."""
    torch._dynamo.reset()
    q = torch.randn(3, 1, 4, 512, 8)

    def read(x: Tensor) -> Tensor:
        return attend(x, x, x, pattern=Causal() & Band(5)).y

    actual = torch.compile(torch.func.vmap(read), fullgraph=True, backend="aot_eager")(q)
    return torch.allclose(actual, torch.stack([read(row) for row in q]), atol=1e-5)


def forward() -> bool:
    torch._dynamo.reset()
    q, tangent_in = torch.randn(2, 1, 4, 512, 8)

    def read(x: Tensor) -> Tensor:
        return attend(x, x, x, pattern=Causal() & Band(5)).y

    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated")  # by make_dual itself
        dual = forward_ad.make_dual(q, tangent_in)
        whole = torch.compile(read, fullgraph=True, backend="aot_eager")
        actual, want = (forward_ad.unpack_dual(function(dual)).tangent for function in (whole, read))
    return actual is not None and torch.allclose(actual, want, atol=1e-5)
