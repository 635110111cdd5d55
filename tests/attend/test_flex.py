"""The flex executor on a CPU: forwards against the reference, block lists against masks, and what it refuses.

PyTorch's eager forward reads no block lists, so these are judged apart, and by a kernel that was compiled with them.
"""

import os
import warnings
from unittest.mock import patch

import pytest
import torch

from kinformer.attend import explain, read
from kinformer.attend.executors import flex, reference
from kinformer.core.discover import examples
from kinformer.core.heads import Keys, Queries
from kinformer.core.pattern import Pattern, pair_mask
from kinformer.core.pattern_parser import parse
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product
from kinformer.laws import impl
from kinformer.laws.support.input_batch import vary_rows
from kinformer.nn.biases.relative import Relative
from kinformer.nn.biases.t5 import T5
from tests.unhooked import unhooked

EXPRESSIONS = (
    "Causal() & (Band(5) | Strided(8))",
    "Causal() & Fixed(6, 2)",
    "Heads(Causal() & Band(6), Causal() & Strided(5), Random(1, 3))",
    "~Band(3) & Causal()",
    "Band(30, -3) & Columns(6, 2) | Band(1)",
)
PROVE = os.environ.get("KINFORMER_PROVE") == "1"  # all shapes and biases, each a graph of its own, in the long run
APART = -1e9  # what makes parts cheaper
SHAPES = ("self", "padded", "shuffled", "more keys", "by head", "batch rows")


def make_request(
    pattern: Pattern, shape: str, *, length: int = 37, groups: int = 2, dtype: torch.dtype = torch.float64
) -> Request:
    """Two rows and four heads, no gradients."""
    g = torch.Generator().manual_seed(0)
    heads = 4 if shape == "by head" else 1
    k_pos = torch.arange(length).expand(2, heads, -1).clone()
    if shape != "self":
        k_pos[1, :, : length // 4] = -1
    if shape == "by head":
        k_pos[:, 1] = k_pos[:, 1].flip(-1)
    q_pos = k_pos
    if shape == "shuffled":
        q_pos, k_pos = (k_pos[..., torch.randperm(length, generator=g)] for _ in range(2))
    if shape == "more keys":
        q_pos = k_pos[..., length // 3 :]

    def numbers(heads: int, tokens: int) -> torch.Tensor:
        return torch.randn(2, heads, tokens, 8, generator=g, dtype=torch.float64).to(dtype)

    queries = Queries(numbers(4, q_pos.shape[2]), q_pos)
    keys = Keys(numbers(groups, length), numbers(groups, length), k_pos)
    rows = torch.tensor([1, 0]) if shape == "batch rows" else None
    return Request(queries, keys, pattern, Product(), scale=0.5, rows=rows)


def differs(request: Request, bound: float = 1e-10) -> str:
    """What a read differs in; "" for nothing."""
    cost = flex.cost(request)
    if isinstance(cost, Refusal):
        return cost.reason
    actual, want = flex.read(request), reference.read(request)
    assert actual.lse is not None or not request.lse
    pairs = {"y": (actual.y, want.y)} | ({} if actual.lse is None else {"lse": (actual.lse, want.lse)})
    wrong = [name for name, (a, b) in pairs.items() if a.dtype != b.dtype or not torch.allclose(a, b, bound, bound)]
    return f"{wrong} under {request.pattern}" if wrong else ""


def forwards() -> list[str]:
    """Read without the hook of annotations, which the compiler cannot trace."""
    warnings.simplefilter("ignore")  # PyTorch warns of its eager form
    wrong = []
    with patch.object(flex, "BLOCK", 4), torch.no_grad():
        wrong += [differs(make_request(parse(EXPRESSIONS[2]), shape)) for shape in (SHAPES if PROVE else SHAPES[1:3])]
        with patch.object(flex, "MERGED", APART):
            for text in EXPRESSIONS[:2]:
                request = make_request(parse(text), "shuffled")
                wrong += [differs(request), "" if len(flex._plan(request)[0]) == 2 else f"{text} in one part"]
        wrong += [differs(make_request(parse(EXPRESSIONS[0]), "padded", groups=groups)) for groups in (1, 4)]
        wrong += [differs(make_request(parse(EXPRESSIONS[0]), "padded", dtype=torch.float32), 2e-6)]
        for name in ("T5", "ALiBi", "TransformerXL", "DistanceAware", "Relative")[: None if PROVE else 1]:
            wrong.append(differs(biased(name, 0)))
    return wrong


def biased(name: str, seed: int) -> Request:
    """The first drawn request from a seed on that has such a bias, where nothing is added to values."""
    while True:
        request = impl.draw_request(19, None, seed)
        if type(request.bias).__name__ == name and not isinstance(flex.cost(request), Refusal):
            return request
        seed += 1


def kernel() -> str:
    """PyTorch compiles a forward without lse for the CPU, too; it reads the block lists as CUDA's does."""
    warnings.simplefilter("ignore")
    request = make_request(parse("Causal() & Band(60) | Tokens(3)"), "padded", length=300, dtype=torch.float32).replace(
        lse=False
    )
    compiled = flex.compiled(flex.flex_attention)
    with torch.no_grad(), patch.object(flex, "flex_attention", compiled):
        return differs(request, 1e-5)


def test_forwards_equal_the_reference() -> None:
    assert not [line for line in unhooked("tests.attend.test_flex:forwards") if line]


@pytest.mark.prove
def test_a_compiled_kernel_equals_the_reference() -> None:
    assert unhooked("tests.attend.test_flex:kernel") == ""


def lists(request: Request) -> None:
    """What a kernel reads by the lists: of listed blocks what mask_mod allows, of full ones all; once in all calls."""
    batch, heads, n, _ = request.queries.q.shape
    m = request.keys.k.shape[2]
    b, h, i, j = (torch.arange(size) for size in (batch, heads, n, m))
    queries, keys = request.queries, request.keys
    want = (
        pair_mask(request.pattern, queries.pos, keys.pos, range(heads), request.rows).expand(batch, heads, n, m).long()
    )
    counts = torch.zeros_like(want)
    for call in flex._plan(request)[0]:
        mask = call.mask

        def dense(count: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
            listed = torch.arange(number.shape[-1]) < count[..., None]
            blocks = torch.zeros_like(listed).scatter(-1, number.long(), listed)
            return blocks.repeat_interleave(flex.BLOCK, 2).repeat_interleave(flex.BLOCK, 3)[:, :, :n, :m]

        allowed = mask.mask_mod(b[:, None, None, None], h[:, None, None], i[:, None], j)
        assert mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None
        partial, full = dense(mask.kv_num_blocks, mask.kv_indices), dense(mask.full_kv_num_blocks, mask.full_kv_indices)
        counted = (allowed & partial | full).expand(batch, heads, -1, -1).long()
        places = ((i[None] if call.q is None else call.q), (j[None] if call.k is None else call.k))
        at_q, at_k = (at[:, None].expand(batch, 1, -1) for at in places)
        counted = torch.zeros_like(counted).scatter(3, at_k[:, :, None].expand_as(counted), counted)
        counts += torch.zeros_like(counted).scatter(2, at_q[..., None].expand_as(counted), counted)
    assert torch.equal(counts, want), f"{request.pattern}"


@pytest.mark.parametrize("merged", (-APART, APART), ids=("whole", "apart"))
@pytest.mark.parametrize("shape", SHAPES)
def test_lists_of_blocks(shape: str, merged: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "BLOCK", 4)
    monkeypatch.setattr(flex, "MERGED", merged)
    for text in EXPRESSIONS:
        lists(make_request(parse(text), shape))
    every = shape in ("padded", "shuffled", "batch rows") if PROVE else shape == "shuffled"
    for _, example in examples("patterns") if every else ():
        pattern = example.make()
        lists(
            make_request(
                vary_rows(pattern) if pattern.tensors() else pattern, shape, length=11 if pattern.tensors() else 23
            )
        )


def test_blocks_of_what_is_sparse_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "BLOCK", 4)
    for text, most in (
        ("Causal() & Band(7)", 0.07),
        ("Causal() & (Band(8) | Strided(16))", 0.2),
        ("Fixed(16, 2)", 0.3),
    ):
        request = make_request(parse(text), "self", length=512)
        plan, many = flex._plan(request)
        assert many < most * request.pairs, text
        assert len(plan) == (1 if "Band(7)" in text else 2), text


def test_longer_rows_have_larger_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "BLOCK", 2)
    monkeypatch.setattr(flex, "GRID", 64)
    (call,), _ = flex._plan(make_request(parse("Causal() & Band(5)"), "self", length=37))
    assert call.mask.BLOCK_SIZE == (8, 8)


def test_it_is_never_the_cheapest_on_a_cpu() -> None:
    costs = explain(make_request(parse("Causal()"), "self"))
    assert not isinstance(costs["flex"], Refusal) and list(costs)[0] != "flex"
    assert costs["flex"] > 3 * costs["reference"]  # type: ignore[operator]


def test_what_it_cannot_do_it_refuses() -> None:
    plain = make_request(parse("Causal()"), "self")

    def refused(request: Request) -> str:
        cost = flex.cost(request)
        assert isinstance(cost, Refusal)
        return cost.reason

    learning = plain.replace(queries=plain.queries._replace(q=plain.queries.q.clone().requires_grad_()))
    assert "backward" in refused(learning)
    with torch.no_grad():
        assert not isinstance(flex.cost(learning), Refusal)
    assert "dropout" in refused(plain.replace(dropout=0.1))
    assert "key and value heads" in refused(plain.replace(keys=plain.keys._replace(v=plain.keys.v[:, :1])))
    assert "bias" in refused(plain.replace(bias=T5(4)))
    with torch.no_grad():
        assert "values" in refused(plain.replace(bias=Relative(8, 2).double()))
    with pytest.raises(ValueError, match="impl='flex' cannot compute this call"):
        read(learning, "flex")
