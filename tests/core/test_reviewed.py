"""What a strict reading of the core found, each as a test."""

import copy
import dataclasses
import pickle
import threading
from collections.abc import Iterator

import pytest
import torch
from jaxtyping import config
from torch.nn import functional as F

from kinformer.attend import attend, read
from kinformer.attend.executors import masked
from kinformer.core.attention_output import weights
from kinformer.core.choice import Choices, choice
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.pattern import Heads
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.segment import Segment
from kinformer.core.request import Refusal, Request
from kinformer.core.scores.product import Product
from kinformer.core.state import fork
from kinformer.nn.attention import Attention
from kinformer.nn.maps.elu import ELU
from kinformer.nn.mechanisms.delta_update import DeltaUpdate
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.linear import AdditiveUpdate, GatedUpdate, LinearAttention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.state_update import StateUpdate
from kinformer.nn.memories.hidden import Hidden
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.tied_kv import TiedKV

READS = Causal() & Segment(4, 4)


def test_heads_are_rebuilt_as_any_dataclass() -> None:
    heads = Heads(Causal(), Causal() & Band(1))
    assert dataclasses.replace(heads) == heads


def test_a_memory_under_scores_of_whole_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="a memory cuts rows"):
        Attention(QKV(8, 2), Explicit(READS, up=True), memory=Hidden(4, 4))


def test_a_layer_with_a_memory_is_built_without_memory() -> None:
    with torch.device("meta"):
        layer = Attention(QKV(8, 2), Softmax(READS), memory=Hidden(4, 4))
    assert next(layer.parameters()).is_meta


def test_each_thread_reads_its_own_choices() -> None:
    results, turn = {}, threading.Barrier(2)

    def read(name: str, value: int) -> None:
        choices = Choices()
        with choices.record():
            choice(lambda: torch.tensor(value))
        with choices.replay():
            turn.wait()  # both tapes are open now
            results[name] = int(choice(lambda: torch.tensor(-1)))
            turn.wait()

    threads = [threading.Thread(target=read, args=arguments) for arguments in (("a", 1), ("b", 2))]
    for arguments in threads:
        arguments.start()
    for arguments in threads:
        arguments.join()
    assert results == {"a": 1, "b": 2}


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As users run it: annotations are not checked before what is said is."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def test_weights_sum_to_one_in_bfloat16_whoever_made_the_lse() -> None:
    pos, q = torch.arange(300)[None, None], (torch.randn(1, 2, 300, 16) * 6).bfloat16()
    request = Request(Queries(q, pos), Keys(q, q, pos), Causal(), Product(), scale=0.25, run=True, full=True)
    for autocast in (False, True):
        as_read = (
            request.replace(queries=Queries(q.float(), pos), keys=Keys(q.float(), q.float(), pos))
            if autocast
            else request
        )
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            lse = read(as_read, "masked").lse
            assert lse is not None
            sums = weights(as_read, lse, torch.arange(300)[None]).sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-3)


def test_another_forward_of_a_product_is_another_score() -> None:
    class Cosine(Product):
        def forward(self, request: Request) -> torch.Tensor:
            return F.normalize(request.queries.q, dim=-1) @ F.normalize(request.keys.k, dim=-1).mT

    pos, q = torch.randperm(100)[None, None], torch.randn(1, 2, 100, 8)
    request = Request(Queries(q, pos), Keys(q, q, pos), Causal(), Cosine())
    assert isinstance(masked.cost(request), Refusal)
    assert torch.equal(read(request).y, read(request, "reference").y)


@pytest.mark.usefixtures("unchecked")
def test_another_source_is_not_promised_to_be_full() -> None:
    layer, x, source = (
        Attention(QKV(8, 2), Softmax(Full(), lse=False), cross=True),
        torch.randn(1, 3, 8),
        torch.randn(1, 5, 8),
    )
    pos = torch.tensor([[0, 1, 2, -1, -1]])
    ctx = Context.of_sequence(x)
    expected = layer(x, None, Context(ctx.pos, run=True, source=source, source_pos=pos)).y
    assert torch.allclose(layer(x, None, ctx.replace(source=source, source_pos=pos)).y, expected, atol=1e-6)
    assert ctx.full and not ctx.replace(source_pos=pos).full and ctx.replace(labels={}).full
    with pytest.raises(ValueError, match="positions must be integers"):
        ctx.replace(source_pos=pos >= 0)


@pytest.mark.parametrize("impl", ["reference", "masked"])
def test_nan_is_a_score_and_no_missing_key(impl: str) -> None:
    q, k = torch.randn(2, 1, 2, 6, 4)
    q[:, :, 3] = torch.nan
    actual = attend(q, k, k, pattern=Causal(), impl=impl)
    assert actual.lse is not None and actual.y[:, :, 3].isnan().all() and actual.lse[:, :, 3].isnan().all()
    assert actual.y[:, :, :3].isfinite().all()


@pytest.mark.parametrize("update", [AdditiveUpdate, GatedUpdate, DeltaUpdate])
def test_queries_learn_step_by_step_where_keys_are_frozen(update: type[StateUpdate]) -> None:
    layer = Attention(TiedKV(16, 2), LinearAttention(ELU(), update=update())).double()
    layer.requires_grad_(False)
    layer.projection.q.weight.requires_grad_(True)
    x = torch.randn(1, 6, 16, dtype=torch.float64)

    def gradient(*cuts: int) -> torch.Tensor:
        state, ys = layer.start(1, 6), []
        for at in torch.arange(6).tensor_split(cuts):
            out = layer(x[:, at], state, Context(at[None], run=True, full=True))
            state = out.state
            ys.append(out.y)
        return torch.autograd.grad(torch.cat(ys, 1).square().sum(), layer.projection.q.weight)[0]

    torch.testing.assert_close(gradient(1, 2, 3, 4, 5), gradient(), rtol=0, atol=1e-12)


def test_a_copy_of_a_context_remembers_nothing() -> None:
    ctx = Context(torch.arange(6)[None])
    assert ctx.by_head is ctx.by_head
    for copied in (copy.deepcopy(ctx), pickle.loads(pickle.dumps(ctx))):
        assert not copied.memo._found and torch.equal(copied.pos, ctx.pos)


def test_a_state_of_a_source_is_its_own() -> None:
    layer, x, source = Attention(QKV(16, 2), Softmax(Full()), cross=True), torch.randn(1, 4, 16), torch.randn(1, 5, 16)
    pos = torch.arange(5)[None].clone()
    state = layer(x[:, :2], layer.start(1, 4), Context(torch.arange(2)[None], source=source, source_pos=pos)).state
    later = Context(torch.arange(2, 4)[None])
    before = layer(x[:, 2:], fork(state), later).y
    pos.fill_(-1)
    assert torch.equal(layer(x[:, 2:], state, later).y, before)


def test_queries_without_positions_stand_where_the_last_keys_do() -> None:
    q, k = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 4, 4)
    near = attend(q, k, k, pattern=Causal())
    far = attend(q, k, k, pattern=Causal(), k_pos=torch.arange(10, 14)[None, None])
    torch.testing.assert_close(far.y, near.y)
    assert near.y.abs().min() > 0


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_is_said_in_a_line() -> None:
    layer, x = Attention(QKV(8, 2), Softmax(Causal())), torch.randn(2, 4, 8)
    with pytest.raises(ValueError, match=r"x has shape \[4, 8\], expected a floating tensor \[B, T, D\]"):
        layer(x[0])
    with pytest.raises(ValueError, match=r"ctx.pos has shape \[1, 4\], expected \[2, 4\]"):
        layer(x, None, Context(torch.arange(4)[None]))
    with pytest.raises(ValueError, match="positions must be integers"):
        Context(torch.arange(4, dtype=torch.uint8)[None])
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match="give all three the same dtype"):
        attend(q, q.double(), q.double())


def test_a_product_beyond_float16_is_scaled_before_it_is_made() -> None:
    q = torch.full((1, 1, 2, 64), 40.0, dtype=torch.float16)
    assert attend(q, q, q).y.isfinite().all()
