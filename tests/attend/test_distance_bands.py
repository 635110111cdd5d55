"""Biases by distances, and the pieces executor's bands of them, against `bind` and the reference."""

from typing import Any

import pytest
import torch

from kinformer import attend
from kinformer.attend import explicit_tiles as explicit
from kinformer.attend import fused_plan as flash
from kinformer.attend import plain_call as plain
from kinformer.attend import plan_maker as plan
from kinformer.attend.executors import pieces, reference
from kinformer.attend.fused_plan import PlannedRead
from kinformer.core.bias import Bias
from kinformer.core.discover import examples
from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.core.pattern import Heads, Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.segment import Segment
from kinformer.core.request import Request
from kinformer.core.score_matrix import scores
from kinformer.core.scores.product import Product
from kinformer.laws import impl
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.biases.masking import StepMasking
from kinformer.nn.biases.relative import Relative
from kinformer.nn.biases.t5 import T5
from kinformer.nn.biases.transformer_xl import TransformerXL
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tokens import Tokens
from tests.attend.test_pieces import SHAPES, Largest, make_request, tiles  # noqa: F401  (a fixture)

BANDS = (Causal() & Segment(7, 3), Causal() & (Band(5) | Strided(4)), Band(4, 2), Causal(), Full(), Block(4, 1, 1))
OTHERS = (Band(4) | Tokens((0, 17)) | Rows((0, 17)), Causal() & (Band(3) | Random(2, 4)))
TOLD = {
    "ALiBi": lambda: ALiBi(4),
    "StepMasking": lambda: StepMasking((1, 4, 0, 30)),
    "T5": lambda: T5(4, 8, 12),
    "Relative": lambda: Relative(8, 3),
    "Relative, by head": lambda: Relative(8, 3, heads=4),
    "Relative, keys": lambda: Relative(8, 3, values=False),
    "TransformerXL": lambda: TransformerXL(4, 8),
    "TransformerXL, clamped": lambda: TransformerXL(4, 8, 6, clamp=4),
}


def biased(pattern: Pattern, bias: Bias, shape: str = "self", **keywords: Any) -> Request:
    torch.manual_seed(0)
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    request = make_request(pattern, *SHAPES[shape], **keywords)
    return request.replace(bias=bias.double(), scale=0.4)


def equal(request: Request) -> None:
    impl._check_same(pieces.read(request), reference.read(request), request, "pieces differs", f"{request.pattern}")


@pytest.fixture
def only_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request may be read by `bind`."""

    def refused(*_: object) -> None:
        raise AssertionError("read by bind")

    monkeypatch.setattr(explicit, "read", refused)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", TOLD)
@pytest.mark.usefixtures("tiles", "only_bands")
def test_bands(bias: str, shape: str) -> None:
    for pattern in BANDS[:2]:
        equal(biased(pattern, TOLD[bias](), shape))


@pytest.mark.prove
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pattern", BANDS[2:], ids=str)
@pytest.mark.parametrize("bias", TOLD)
@pytest.mark.usefixtures("tiles", "only_bands")
def test_bands_of_more_patterns(bias: str, pattern: Pattern, shape: str) -> None:
    equal(biased(pattern, TOLD[bias](), shape))


@pytest.mark.parametrize("shape", ("self", "padded"))
@pytest.mark.parametrize("pattern", OTHERS, ids=str)
@pytest.mark.parametrize("bias", ("ALiBi", "StepMasking", "T5"))
@pytest.mark.usefixtures("tiles", "only_bands")
def test_a_number_for_each_distance_needs_no_band(bias: str, pattern: Pattern, shape: str) -> None:
    equal(biased(pattern, TOLD[bias](), shape))


@pytest.mark.parametrize("pattern", OTHERS, ids=str)
@pytest.mark.usefixtures("tiles")
def test_vectors_for_distances_want_bands(pattern: Pattern) -> None:
    for bias in ("Relative", "TransformerXL"):
        equal(biased(pattern, TOLD[bias]()))


@pytest.mark.parametrize("bias", ("T5", "Relative", "TransformerXL"))
@pytest.mark.usefixtures("only_bands")
def test_rows_are_read_some_at_a_time_where_scores_are_held(bias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "SCORES", 1)
    biased_request, slices, added = biased(Causal(), TOLD[bias]()), [], PlannedRead._make_mask
    monkeypatch.setattr(PlannedRead, "_make_mask", lambda *arguments: slices.append(arguments[3]) or added(*arguments))
    equal(biased_request)
    assert slice(1, 2) in slices and len(biased_request.queries.q) > 1


@pytest.mark.parametrize("groups", (1, 2, 4))
@pytest.mark.usefixtures("tiles", "only_bands")
def test_heads_in_groups(groups: int) -> None:
    for bias in ("ALiBi", "Relative", "Relative, by head", "TransformerXL"):
        for pattern in (Causal() & Band(5), Heads(Causal(), Causal() & Strided(4))):
            equal(biased(pattern, TOLD[bias](), groups=groups))


@pytest.mark.usefixtures("tiles", "only_bands")
def test_rows_that_stand_elsewhere() -> None:
    """Rows alike in how far queries stand after keys are bands; a cache of other lengths is read another way."""
    request = biased(Causal() & Band(5), TOLD["TransformerXL"](), "more keys")
    k_pos, q_pos = request.keys.pos.clone(), request.queries.pos.clone()
    k_pos[1], q_pos[1] = k_pos[1] + 6, q_pos[1] + 6
    elsewhere = request.replace(queries=request.queries._replace(pos=q_pos), keys=request.keys._replace(pos=k_pos))
    equal(elsewhere)
    with pytest.raises(AssertionError, match="read by bind"):
        pieces.read(elsewhere.replace(queries=request.queries))


@pytest.mark.parametrize("name", [name for name, _ in examples("biases")])
def test_by_distance_is_bind(name: str) -> None:
    """Scores and values of every bias of the folder that tells them by distance, at positions in any order."""
    for _, example in [entry for entry in examples("biases") if entry[0] == name]:
        by_distance_is_bind(example.make().double())


def by_distance_is_bind(bias: Bias) -> None:
    sizes = bias.query_extras(HeadSizes(2, 2, 2, 8, 8))
    q, k, *extras = (torch.randn(2, 2, n, 8, dtype=torch.float64) for n in (5, 7, *(5 for _ in sizes)))
    q_pos, k_pos = torch.tensor([3, 0, 9, 5, 1]).expand(2, 1, -1), torch.tensor([2, 0, 1, 8, 4, 9, 3]).expand(2, 1, -1)
    extras_of = {n: side[..., : sizes[n].width] for n, side in zip(sizes, extras, strict=True)}
    queries = Queries(q, q_pos, extras_of, {"segment": torch.zeros(2, 5, dtype=torch.long)})
    request = Request(queries, Keys(k, k, k_pos), Full(), Product(), bias, 0.3).prepare_bias()
    by_distances = bias.by_distance(request, torch.arange(9, -10, -1))
    if by_distances is None:
        return
    row = 9 - (q_pos[..., None] - k_pos[..., None, :])[0, 0]  # [T S]
    table = by_distances.table[:, row]  # [#H T S *R]
    added = table if by_distances.asks is None else (by_distances.asks[..., None, :] * table).sum(-1)
    torch.testing.assert_close(0.3 * by_distances.q @ k.mT + added, scores(request), rtol=0, atol=1e-12)
    values = bias.values(request.queries.pos, request.keys.pos)
    assert (values is None) == (by_distances.values is None)
    if values is not None and by_distances.values is not None:
        torch.testing.assert_close(by_distances.values[:, row].expand(2, -1, -1, -1, -1), values[0][values[1]])


@pytest.mark.usefixtures("tiles")
def test_what_learns_nothing_goes_through_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(plain, "backward", lambda *args: called.append(args))
    for bias in (TOLD["ALiBi"](), TOLD["StepMasking"](), TOLD["T5"]().requires_grad_(False)):
        read = pieces.read(biased(Causal() & Band(5), bias))
        read.y.sum().backward()
    assert not called


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("bias", ("ALiBi", "Relative", "TransformerXL"))
@pytest.mark.usefixtures("tiles", "only_bands")
def test_precision(bias: str, dtype: torch.dtype) -> None:
    exact = biased(Causal() & Segment(7, 3), TOLD[bias]())
    want = reference.read(exact).y
    leaves = exact.queries.q, exact.keys.k, exact.keys.v
    expected = torch.autograd.grad(want.square().sum(), leaves)
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in leaves)
    rough = exact.replace(
        queries=exact.queries._replace(q=q),
        keys=exact.keys._replace(k=k, v=v),
        bias=exact.bias.to(dtype),  # type: ignore
    )
    read = pieces.read(rough)
    gradients = torch.autograd.grad(read.y.square().sum(), (q, k, v))
    assert read.y.dtype == dtype
    bound = 5e-6 if dtype == torch.float32 else 3e-2
    for ours, theirs in zip((read.y, *gradients), (want, *expected), strict=True):
        assert (ours - theirs).norm() < bound * theirs.norm()


@pytest.mark.parametrize("bias", ("ALiBi", "T5", "Relative", "TransformerXL"))
def test_nothing_grows_with_the_square_of_the_length(bias: str) -> None:
    plan.plan_of_runs.cache_clear()
    length, heads, width = 4096, 4, 8
    q, k, v = (torch.randn(1, heads, length, width, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        read = attend(q, k, v, pattern=Causal() & Band(32), bias=TOLD[bias](), impl="pieces")
        (read.y.sum() + read.lse.sum()).backward()
    assert largest.numbers <= heads * length * 200


def test_a_table_of_all_distances_is_no_matrix() -> None:
    """Causal rows under ALiBi: some queries at a time."""
    plan.plan_of_runs.cache_clear()
    q = torch.randn(1, 4, 4096, 8)
    with Largest() as largest:
        attend(q, q, q, pattern=Causal(), bias=ALiBi(4), impl="pieces")
    assert largest.numbers <= 4 * 512 * 4096
