"""The pieces executor, with tiles small enough that short rows have many, against the reference."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from kinformer import attend
from kinformer.attend import explain, plan_sizes, read
from kinformer.attend import plan_maker as plan
from kinformer.attend.executors import pieces, reference
from kinformer.attend.plan_request import plan_request
from kinformer.attend.position_runs import LinePair, PositionRun
from kinformer.attend.tile_plan import TilePlan
from kinformer.core.bias import Bias
from kinformer.core.discover import examples
from kinformer.core.heads import Keys, Queries
from kinformer.core.pattern import Heads, Pattern
from kinformer.core.patterns.blocks import Blocks
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.segment import Segment
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product
from kinformer.laws import impl
from kinformer.laws.support.input_batch import vary_rows
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.biases.t5 import T5
from kinformer.nn.biases.transformer_xl import TransformerXL
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.dilated import Dilated
from kinformer.nn.patterns.fixed import Fixed
from kinformer.nn.patterns.image_2d import Image2D
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tokens import Tokens

EXPRESSIONS = (
    Causal() & (Band(5) | Strided(4)),
    Causal() & Fixed(6, 2),
    Band(4) | Tokens((0, 17)) | Rows((0, 17)),
    Causal() & Block(4, 1) | Tokens(4) & Causal() | Random(2, 4),
    Block(4, 1, 1) | Blocks(((0, 5), (3, 6, 9), (), (1, 9, 0, 4)), 4),
    Causal() & Segment(7, 3),
    Heads(Causal() & Band(6), Causal() & Strided(3), Causal() & Random(1, 3)),
    Heads(Dilated(2, 5), Full()),
    ~Band(3) & Causal(),
    Image2D(12, (1, 2), (1, 2)),
)
SHAPES = {"self": (37, 37, 0), "more keys": (13, 37, 0), "padded": (37, 37, 6), "padded, more keys": (13, 37, 5)}


@pytest.fixture(params=(4,))
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiles of a few queries, and calls that cost nothing."""
    monkeypatch.setattr(plan, "BLOCKS", (request.param,))
    monkeypatch.setattr(plan_sizes, "CALL", 0)
    monkeypatch.setattr(plan_sizes, "EDGE", 0)
    monkeypatch.setattr(plan, "FOLDED", 2000)
    monkeypatch.setattr(plan, "SMALL", 0)
    plan.plan_of_runs.cache_clear()
    yield
    plan.plan_of_runs.cache_clear()


def make_request(
    pattern: Pattern, queries: int, keys: int, padding: int, *, groups: int = 2, width: int = 8
) -> Request:
    """Rows of consecutive positions, the second with some padding before it and its last token missing."""
    g = torch.Generator().manual_seed(0)
    k_pos = torch.arange(keys).repeat(2, 1)
    if padding:
        k_pos[1] = torch.cat((torch.full((padding,), -1), torch.arange(keys - padding)))
        k_pos[0, -1] = -1
    k_pos = k_pos[:, None]
    q_pos = k_pos if queries == keys else k_pos[..., keys - queries :]

    def numbers(*shape: int) -> Tensor:
        return torch.randn(2, *shape, width, generator=g, dtype=torch.float64, requires_grad=True)

    queries_, keys_ = Queries(numbers(4, queries), q_pos), Keys(numbers(groups, keys), numbers(groups, keys), k_pos)
    return Request(queries_, keys_, pattern, Product(), run=True, full=not padding)


def equal(request: Request, served: bool = True) -> None:
    cost = pieces.cost(request)
    assert not (served and isinstance(cost, Refusal)), cost
    if not isinstance(cost, Refusal):
        impl._check_same(pieces.read(request), reference.read(request), request, "pieces differs", f"{request.pattern}")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pattern", EXPRESSIONS, ids=str)
@pytest.mark.usefixtures("tiles")
def test_expressions(pattern: Pattern, shape: str) -> None:
    equal(make_request(pattern, *SHAPES[shape]))


@pytest.mark.parametrize("shape", ("self", "padded"))
@pytest.mark.parametrize("name", sorted({name for name, _ in examples("patterns")}))
@pytest.mark.usefixtures("tiles")
def test_every_pattern(name: str, shape: str) -> None:
    for _, example in [entry for entry in examples("patterns") if entry[0] == name]:
        pattern = example.make()
        queries, keys, padding = SHAPES[shape]
        if pattern.tensors():  # these end after some positions
            pattern, queries, keys, padding = vary_rows(pattern), 11, 11, padding // 3
        equal(make_request(pattern, queries, keys, padding))


@pytest.mark.parametrize("padding", ((0, 1, 2), (11, 12), (5, 13, 20)), ids=str)
@pytest.mark.usefixtures("tiles")
def test_padding_that_all_rows_have(padding: tuple[int, ...]) -> None:
    """Tiles alike have one mask only where none of them holds padding: a batch of one, and rows that are all alike."""
    pos = torch.arange(21)
    pos[torch.tensor(padding)] = -1
    for pattern in (Causal() & Band(5), Causal() & Strided(3), Block(4, 1)):
        request = make_request(pattern, 21, 21, 1)
        at = pos.expand(2, 1, -1)
        equal(request.replace(queries=request.queries._replace(pos=at), keys=request.keys._replace(pos=at)))


@pytest.mark.parametrize("groups", (1, 2, 4))
@pytest.mark.usefixtures("tiles")
def test_heads_in_groups(groups: int) -> None:
    for pattern in (Causal() & Band(5), Heads(Causal(), Causal() & Strided(4)), Heads(Band(3), Band(1), Band(2))):
        equal(make_request(pattern, 21, 21, 0, groups=groups))


@pytest.mark.parametrize("shape", ("self", "padded, more keys"))
@pytest.mark.parametrize("groups", (1, 2, 4))
@pytest.mark.parametrize(
    "pattern",
    (
        Heads(Causal(), Causal() & Strided(4)),
        Heads(Band(3), ~Full()),
        Heads(Band(3), ~Full(), Band(2)),
        Heads(Blocks(((0,), (1,)), 19), Blocks(((1,), (0,)), 19)),
        Heads(Band(3), Causal()) & Document(torch.arange(37).repeat(2, 1) // 11),
    ),
    ids=str,
)
@pytest.mark.usefixtures("tiles")
def test_heads_are_read_apart_in_plain_operations_too(pattern: Pattern, groups: int, shape: str) -> None:
    request = make_request(pattern, *SHAPES[shape], groups=groups).replace(
        dropout=1e-300
    )  # which the kernel does not do
    equal(request)
    plan_of = plan_request(request)
    assert not isinstance(plan_of, Refusal)
    heads = getattr(pattern, "patterns", (0, 0))
    assert {stage.turns for stage in plan_of.stages} == {1 if len(heads) == 3 and groups == 2 else len(heads)}


@pytest.mark.usefixtures("tiles")
def test_weights_are_dropped_on_heads_that_are_read_apart() -> None:
    """Values that are the unit vectors show the weights: those that are left are twice as large, half of them."""
    request = make_request(Heads(Band(3), Causal()), 37, 37, 0, width=37)
    request = request.replace(keys=request.keys._replace(v=torch.eye(37, dtype=torch.float64).expand(2, 2, 37, 37)))
    torch.manual_seed(0)
    whole, dropped = reference.read(request).y, pieces.read(request.replace(dropout=0.5)).y
    left = dropped != 0
    torch.testing.assert_close(dropped, torch.where(left, 2 * whole, 0.0))
    for head in range(4):
        assert 0.4 < left[:, head].sum() / (whole[:, head] > 0).sum() < 0.6


def test_blocks_of_a_size_of_their_own_are_read_without_masks() -> None:
    size = 81  # no multiple of any tile's
    request = make_request(
        Heads(Blocks(((0,), (1,), (2,)), size), Blocks(((2,), (0,), (1,)), size)), 3 * size, 3 * size, 0
    )
    plan.plan_of_runs.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_sizes, "CALL", 0)  # few tokens are read in fewer calls
        plan_of = plan_request(request)
        assert not isinstance(plan_of, Refusal)
        calls = [call for stage in plan_of.stages for call in stage.calls]
        assert all(call.where is None for call in calls)
        assert sum(call.pairs for call in calls) == 2 * 3 * size**2
        equal(request)
    plan.plan_of_runs.cache_clear()


@pytest.mark.usefixtures("tiles")
def test_drawn_requests() -> None:
    """Biases, extras, labels, dropped widths, batch rows: whatever the law draws for any executor."""
    served = 0
    for seed in range(60):
        request = impl.draw_request(19, None, seed)
        served += not isinstance(pieces.cost(request), Refusal)
        equal(request, served=False)
    assert served > 20


def test_a_bias_of_what_nobody_reads_has_a_gradient_of_zero(tiles: None) -> None:
    bias, q = T5(2), torch.randn(1, 2, 9, 4, requires_grad=True)
    k_pos = torch.arange(100, 109).expand(1, 1, -1)
    read = attend(q, q, q, pattern=Band(3), q_pos=torch.arange(9).expand(1, 1, -1), k_pos=k_pos, bias=bias)
    read.y.sum().backward()
    assert not q.grad.any() and not any(x.grad.any() for x in bias.parameters())


def test_positions_that_are_no_run_are_refused() -> None:
    request = make_request(Causal(), 9, 9, 0)
    shuffled = request.queries.pos[..., torch.randperm(9, generator=torch.Generator().manual_seed(1))]
    request = request.replace(queries=request.queries._replace(pos=shuffled), run=False)
    assert pieces.cost(request) == Refusal("this executor needs consecutive positions in each row, apart from padding")


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.usefixtures("tiles")
def test_precision(dtype: torch.dtype) -> None:
    exact = make_request(Causal() & (Band(5) | Strided(4)), 37, 37, 0)

    def cast(x: Tensor) -> Tensor:
        return x.detach().to(dtype).requires_grad_()

    rough = exact.replace(
        queries=exact.queries._replace(q=cast(exact.queries.q)),
        keys=exact.keys._replace(k=cast(exact.keys.k), v=cast(exact.keys.v)),
    )
    read, want = pieces.read(rough), reference.read(exact)
    assert read.y.dtype == dtype
    assert read.lse is not None
    assert read.lse.dtype == torch.float32
    leaves = [(request.queries.q, request.keys.k, request.keys.v) for request in (rough, exact)]
    gradients = torch.autograd.grad(read.y.square().sum(), leaves[0])
    expected = torch.autograd.grad(want.y.square().sum(), leaves[1])
    bound = 5e-6 if dtype == torch.float32 else 2e-2
    for ours, theirs in zip((read.y, *gradients), (want.y, *expected), strict=True):
        assert (ours - theirs).norm() < bound * theirs.norm()


class Largest(TorchDispatchMode):
    """The most numbers that any tensor had."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            # views that repeat themselves take no memory
            if isinstance(tensor, Tensor):
                self.numbers = max(
                    self.numbers, min(tensor.numel(), tensor.untyped_storage().nbytes() // tensor.element_size())
                )
        return result


@pytest.mark.parametrize(
    "pattern",
    (
        Causal() & Band(64),
        Causal() & (Band(32) | Strided(64)),
        Band(32) | Tokens(2) | Rows(2),
        Heads(Causal() & Band(8), Causal() & Band(70)),
        Causal() & Band(64) & Document(torch.arange(4096)[None] // 1000),
    ),
    ids=str,
)
def test_nothing_grows_with_the_square_of_the_length(pattern: Pattern) -> None:
    """Masks and planning included: the largest tensor is of the inputs' size, where L x L would be 64 times that."""
    plan.plan_of_runs.cache_clear()
    length, heads, width = 4096, 2, 32
    q, k, v = (torch.randn(1, heads, length, width, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        read = attend(q, k, v, pattern=pattern, impl="pieces")
        assert read.lse is not None
        (read.y.sum() + read.lse.sum()).backward()
    assert largest.numbers <= 4 * heads * length * width


def test_auto_takes_it_where_it_is_cheaper() -> None:
    def best(pattern: Pattern, length: int, lse: bool) -> str:
        request = make_request(pattern, length, length, 0, width=64).replace(lse=lse)
        return next(iter(explain(request)))

    assert best(Causal() & Band(64), 4096, False) == "pieces"
    assert best(Causal(), 1024, False) == "sdpa"  # one call, without what a plan costs
    assert best(Causal(), 1024, True) == "pieces"  # PyTorch's public function has no lse
    assert best(Causal(), 4, True) == "pieces"  # one call; the reference makes a dozen


def test_auto_counts_what_dropout_costs_on_a_cpu() -> None:
    def costs(pattern: Pattern, length: int) -> dict[str, Any]:
        return explain(make_request(pattern, length, length, 0, groups=4, width=32).replace(lse=False, dropout=0.1))

    window = costs(Causal() & Band(64), 1024)
    assert next(iter(window)) == "pieces" and window["pieces"] < window["sdpa"] / 2
    halves = Heads(Blocks(((0,), (1,)), 256), Blocks(((1,), (0,)), 256))
    assert next(iter(costs(halves, 512))) == "pieces"
    assert next(iter(costs(Causal(), 256))) == "sdpa"


def test_a_plan_is_not_made_for_what_is_read_in_less(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for, cost = [], pieces.cost
    monkeypatch.setattr(pieces, "cost", lambda request: asked_for.append(1) or cost(request))
    for queries, keys, times in ((1, 16, 0), (16, 16, 1), (512, 2048, 1)):
        asked_for.clear()
        request = make_request(Causal() & Band(9), queries, keys, keys - queries)
        impl._check_same(read(request), reference.read(request), request, "auto differs", "a window")
        assert len(asked_for) == times


def test_steps_of_decoding_are_planned_in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is not found again is no dearer than what it reads: nothing is asked of the pattern's parts."""
    sparse = Causal() & (Band(5) | Strided(7))
    plan.plan_of_runs.cache_clear()

    def parts(*of: Any) -> None:
        raise AssertionError("planned part by part")

    monkeypatch.setattr(plan, "parts", parts)
    equal(make_request(sparse, 1, 40, 0))
    equal(make_request(sparse, 40, 40, 3))
    monkeypatch.setattr(plan, "SMALL", 0)
    with pytest.raises(AssertionError, match="part by part"):
        pieces.cost(make_request(sparse, 40, 40, 3))


def test_rows_far_from_each_other() -> None:
    """What stands between rows costs nothing: 10^8 positions were once gathered, and read as blocks of the future."""
    request = make_request(Causal() & (Fixed(4, 1) | Random(1, 4, head=0)), 40, 40, 0)
    far = request.keys.pos + torch.tensor([0, 10**8])[:, None, None]
    request = request.replace(queries=request.queries._replace(pos=far), keys=request.keys._replace(pos=far), run=False)
    with pytest.MonkeyPatch.context() as patch, Largest() as largest:
        for name, value in (("BLOCKS", (4,)), ("CALL", 0), ("EDGE", 0), ("SMALL", 0)):
            patch.setattr(plan_sizes if name in ("CALL", "EDGE") else plan, name, value)
        equal(request)
    assert largest.numbers < 10**5
    causal = request.replace(pattern=Causal() & ~Band(2))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("BLOCKS", (4,)), ("CALL", 0), ("EDGE", 0), ("SMALL", 0)):
            patch.setattr(plan_sizes if name in ("CALL", "EDGE") else plan, name, value)
        assert pieces.cost(causal) < 0.7 * pieces.cost(causal.replace(pattern=Full()))


@pytest.mark.usefixtures("tiles")
def test_plans_made_anywhere_serve_anywhere() -> None:
    """Kept from evaluation under inference mode for training, and made on the CPU whatever the default device is."""
    for pattern in (Band(4) | Tokens((0, 17)) | Rows((0, 17)), Causal() & Band(5)):
        request = make_request(pattern, 37, 37, 0).replace(dropout=1e-300)  # the reference's own lines
        with torch.inference_mode():
            pieces.read(request)
        equal(request)
        plan.plan_of_runs.cache_clear()
        with torch.device("meta"):
            pieces.cost(request)
        equal(request)


@pytest.mark.parametrize("pattern", (Causal() & Random(2, 3, head=0), Block(6, 1), Causal() & ~Band(4)), ids=str)
def test_large_blocks_are_made_of_small_ones(pattern: Pattern) -> None:
    """As sharp as what the pattern says of the large ones itself, and true."""
    q, k = PositionRun(11, 37).line(torch.device("cpu")), PositionRun(0, 48).line(torch.device("cpu"))
    maker = plan.PlanMaker(LinePair(q, k), True, plan.PlanSizes(1, 1, 1, 0, 8), 0, 1)
    allowed = pattern(0, 0, q.at[0, :, None], k.at[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "BLOCKS", (4, 8, 16))
        blocks = plan._BlockCover(maker, pattern, q, k)
        for block in (4, 8, 16):
            some_read, every = blocks.coarsen(block)
            patch.setattr(plan, "BLOCKS", (block,))
            any_allowed, all_ = plan._BlockCover(maker, pattern, q, k).cover
            assert not bool((some_read & ~any_allowed).any()) and not bool((all_ & ~every).any())
            for row, column in itertools.product(*map(range, some_read.shape)):
                piece = allowed[row * block : (row + 1) * block, column * block : (column + 1) * block]
                assert bool(some_read[row, column]) >= bool(piece.any()) and bool(every[row, column]) <= bool(
                    piece.all()
                )


def test_a_pattern_is_asked_once_about_all_sizes_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random blocks of a token took 8 seconds to plan at 16,384: each size asked for itself, row by row."""
    sizes = []

    class Counted(Random):
        def cover(self, *ends: Any) -> tuple[Tensor, Tensor]:
            sizes.append(torch.broadcast_shapes(*(end.shape for end in ends)))
            return super().cover(*ends)

    monkeypatch.setattr(plan, "SMALL", 0)
    pieces.cost(make_request(Causal() & Counted(3, head=0), 2048, 2048, 0, groups=1, width=1))
    assert len(sizes) == 1 and sizes[0][-2:] == (32, 32)


def test_gathered_keys_are_read_without_masks_but_at_the_diagonal() -> None:
    """Summary columns of earlier blocks are all read: a mask each cost more than their products."""
    request = make_request(Causal() & Fixed(64, 8), 4096, 4096, 0, groups=4, width=8)
    plan_of = plan_request(request)
    assert isinstance(plan_of, TilePlan)
    columns = [stage for stage in plan_of.stages if stage.k.source is not None]
    whole, cut = (
        [sum(c.pairs for s in columns for c in s.calls if (c.where is None) is is_gathered)]
        for is_gathered in (True, False)
    )
    assert columns and cut[0] < 0.5 * whole[0]
    assert sum(len(stage.calls) for stage in columns) < 20


def test_blocks_are_asked_for_where_the_tensors_of_a_pattern_lie() -> None:
    class Elsewhere(Full):
        def tensors(self) -> dict[str, Tensor]:
            return {"ids": torch.empty(1, device="meta")}

        def reach(self) -> tuple[float, float]:
            return 5, 5

        def cover(self, *ends: Any) -> tuple[Tensor, Tensor]:
            assert {end.device.type for end in ends} == {"meta"}
            return torch.tensor(True, device="cpu"), torch.tensor(False, device="cpu")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "SMALL", 0)
        assert not isinstance(pieces.cost(make_request(Elsewhere(), 300, 300, 0)), Refusal)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by jvp itself
def test_transforms_and_traces_are_left_to_others() -> None:
    q, k, v = (torch.randn(3, 1, 2, 96, 4) for _ in range(3))  # long enough for it

    def read(*of: Tensor) -> Tensor:
        return attend(*of, pattern=Causal()).y

    want = torch.stack([read(*of) for of in zip(q, k, v, strict=True)])
    assert torch.allclose(torch.func.vmap(read)(q, k, v), want, atol=1e-6)
    slope = torch.func.grad(lambda x: read(x, k[0], v[0]).square().sum())(q[0])
    assert slope.isfinite().all()
    torch.func.jvp(lambda x: read(x, k[0], v[0]), (q[0],), (q[0],))
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(read(forward_ad.make_dual(q[0], q[0]), k[0], v[0])).tangent is not None
    with FakeTensorMode():
        assert read(*(torch.empty(1, 2, 96, 4) for _ in range(3))).shape == (1, 2, 96, 4)


@pytest.mark.usefixtures("tiles")
def test_rows_alike_share_their_masks() -> None:
    request = make_request(Causal() & Band(5) & ~Tokens((3,)), 37, 37, 0, width=1)
    assert request.queries.pos.stride(0)  # two rows, one plan
    pieces.read(request)
    plan_of = plan_request(request)
    assert isinstance(plan_of, TilePlan)
    calls = sum(len(stage.calls) for stage in plan_of.stages)
    assert len(plan_of._masks) <= calls


def test_second_derivatives_are_refused_in_words() -> None:
    request = make_request(Causal() & Band(5), 9, 9, 0)
    (first,) = torch.autograd.grad(pieces.read(request).y.square().sum(), request.queries.q, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("make", (lambda: None, lambda: ALiBi(2), lambda: T5(2), lambda: TransformerXL(2, 8)))
@pytest.mark.usefixtures("tiles")
def test_autocast_is_the_reference_s(make: Callable[[], Bias | None], dtype: torch.dtype) -> None:
    """y, lse and gradients have its types, and its numbers as far as they are exact; float64 is left alone."""
    torch.manual_seed(0)
    bias, pattern = make(), Causal() & (Band(9) | Strided(7))
    for given_dtype in (torch.float32, torch.bfloat16, *((torch.float64,) if bias is None else ())):
        leaves = [torch.randn(1, 2, 40, 8, dtype=given_dtype, requires_grad=True) for _ in range(3)]

        def read(impl: str, leaves: list[Tensor] = leaves) -> list[Tensor]:
            with torch.autocast("cpu", dtype=dtype):
                output = attend(*leaves, pattern=pattern, bias=bias, impl=impl)
            assert output.lse is not None
            learned = leaves + list(() if bias is None else bias.parameters())
            loss = output.y.double().square().sum() + output.lse.sin().sum()
            return [output.y, output.lse, *torch.autograd.grad(loss, learned, allow_unused=True)]

        for ours, theirs in zip(read("pieces"), read("reference"), strict=True):
            assert ours.dtype == theirs.dtype
            assert (ours - theirs).norm() < 3e-2 * theirs.norm()
