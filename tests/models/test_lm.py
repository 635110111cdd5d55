"""LM: what it promises as a Model: its state's precision, one look a forward, what it refuses, sums that add up."""

import math
import re
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context, Layer, Out, State, Want
from kinformer.core.loss import Penalty
from kinformer.core.memo import Memo
from kinformer.core.pattern import Index, Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.state import leaves
from kinformer.decoding.generate import generate
from kinformer.lab.train.evaluate import evaluate
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.transformer import transformer
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV


def small(**keywords: object) -> LM:
    return gpt(**{"d": 16, "depth": 3, "heads": 2, "length": 64, "vocab": 11, **keywords})  # type: ignore[arg-type]


@pytest.mark.parametrize("assign", [True, False])
def test_a_tied_head_stays_tied_if_weights_are_loaded_into_new_tensors(assign: bool) -> None:
    other, tokens = small(), torch.tensor([[1, 2, 3]])
    with torch.device("meta"):
        model = small()
    model = model if assign else model.to_empty(device="cpu")
    model.load_state_dict(other.state_dict(), assign=assign)
    for each in (model, other):
        torch.optim.SGD(each.parameters(), 1.0).zero_grad()
        each(tokens).total.backward()
        torch.optim.SGD(each.parameters(), 1.0).step()
    torch.testing.assert_close(model(tokens).total, other(tokens).total, rtol=0, atol=0)
    untied = small(vocab=7)
    untied.head.weight = torch.nn.Parameter(torch.zeros_like(untied.head.weight))
    untied.load_state_dict(untied.state_dict())
    assert untied.head.weight is not untied.embedding.weight


def test_integers_of_32_bits_are_the_same_batch() -> None:
    model, tokens = small(), torch.tensor([[1, 2, 3, 4], [5, 6, -1, -1]])
    expected = model(tokens).total
    assert model(tokens.int()).total == expected


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers each look of a memo asked for."""
    looked_at: list[int] = []
    look = Memo.look
    monkeypatch.setattr(Memo, "look", lambda memo, *numbers: looked_at.append(len(numbers)) or look(memo, *numbers))
    return looked_at


# Precision -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_state_is_as_precise_as_the_model_that_made_it(dtype: torch.dtype) -> None:
    model = small().to(dtype)
    dtypes = [leaf.dtype for name, leaf in leaves(model.start(2, 9)) if name in ("k", "v")]
    assert dtypes == [dtype] * 6
    state_in = model.start(2, 9, dtype=torch.float32)
    assert [leaf.dtype for name, leaf in leaves(state_in) if name in ("k", "v")] == [torch.float32] * 6


def test_a_bf16_model_evaluates_and_generates() -> None:
    model = gpt(d=16, depth=2, heads=2, length=64).bfloat16().eval()
    text = torch.randint(0, 256, (200,), dtype=torch.uint8)
    exact = evaluate(gpt_like(model, torch.float32), text, 16).value
    assert evaluate(model, text, 16).value == pytest.approx(exact, rel=0.02)
    assert generate(model, torch.tensor([[1, 2]]), 4, temperature=0).shape == (1, 6)


def gpt_like(model: LM, dtype: torch.dtype) -> LM:
    twin = gpt(d=16, depth=2, heads=2, length=64)
    twin.load_state_dict(model.state_dict())
    return twin.to(dtype).eval()


# One look, shared masks ----------------------------------------------------------------------------------------------


def test_without_padding_rows_are_known_to_be_whole_and_share_one_row_of_positions(looks: list[int]) -> None:
    contexts: list[Context] = []
    model = small()
    model.body.register_forward_pre_hook(lambda _, arguments: contexts.append(arguments[2]))
    model.logits(torch.randint(0, 11, (4, 9)))
    padded = torch.randint(0, 11, (4, 9))
    padded[1, :2] = -1
    model.logits(padded)
    assert (contexts[0].run, contexts[0].full, contexts[0].pos.stride(0)) == (True, True, 0)
    assert (contexts[1].run, contexts[1].full) == (True, False)
    assert looks == [2, 2]


def test_a_model_looks_once_however_many_layers_it_has(looks: list[int]) -> None:
    model = small(depth=4)
    state = model.start(2, 32)
    for size in (9, 1, 5, 1, 1):
        looks.clear()
        state = model.logits(torch.randint(0, 11, (2, size)), state).state
        assert len(looks) <= 1


def test_the_layers_of_a_fresh_state_share_their_positions() -> None:
    model = small()
    state = model.start(2, 9)
    for _ in range(2):
        assert len({id(layer[0].pos) for layer in state.body}) == 1
        state = model.logits(torch.randint(0, 11, (2, 1)), state).state


@pytest.mark.parametrize("size", [5, 2])
def test_padding_between_tokens_is_refused_with_a_state_too(size: int) -> None:
    model = small()
    row = torch.tensor([[1, -1, 2, 3, 4]])
    with pytest.raises(ValueError, match="marks padding between two tokens of a row"):
        model.logits(row)
    with pytest.raises(ValueError, match="marks padding between two tokens of a row"):
        model.logits(row, model.start(1, 8))
    plain = LM(11, 16, MLP(16))  # a body that looks at nothing
    with pytest.raises(ValueError, match="marks padding between two tokens of a row"):
        plain.logits(row, plain.start(1, 8))


def test_the_last_alone_is_the_last_of_all() -> None:
    model = small().eval()
    tokens = torch.randint(0, 11, (2, 9))
    whole = model.logits(tokens).y
    torch.testing.assert_close(model.logits(tokens, last=True).y, whole[:, -1:])
    pair = transformer(d=16, depth=1, heads=2, hidden=16, vocab=11).eval()
    whole = pair.logits(tokens, source=tokens).y
    torch.testing.assert_close(pair.logits(tokens, source=tokens, last=True).y, whole[:, -1:])


# Refusals ------------------------------------------------------------------------------------------------------------


class Reporting(MLP):
    """A layer that reports a number per token, NaN at padding."""

    def penalties(self) -> dict[str, Penalty]:
        return {"span": Penalty((self.up.weight,))}

    def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
        value = (self.up.weight.sum() + x.sum(-1)).masked_fill(ctx.pos < 0, torch.nan)
        return Out(super().forward(x, state, ctx).y, state, {"span": value})


def test_a_penalty_that_no_part_reports_is_refused() -> None:
    with pytest.raises(ValueError, match="no part of this model reports 'spn'; it reports span"):
        LM(11, 16, Stack([Reporting(16)]), penalties={"spn": 100.0})
    assert LM(11, 16, Stack([Reporting(16)]), penalties={"span": 2.0}).penalties == {"span": 2.0}


def test_nan_at_padding_reaches_neither_the_loss_nor_a_gradient() -> None:
    model = LM(11, 16, Stack([Reporting(16)]), penalties={"span": 2.0})
    rows = torch.randint(0, 11, (2, 6))
    rows[0, :3] = -1
    loss = model(rows)
    loss.total.backward()
    assert bool(loss.total.isfinite())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


class Wanting(MLP):
    wants = (Want("vector"),)


class Sending(MLP):
    sends = frozenset({"vector"})


def test_what_a_part_wants_and_nobody_sends_is_refused() -> None:
    with pytest.raises(ValueError, match="a part of Stack needs 'vector' from an earlier block"):
        LM(11, 16, Stack([Wanting(16)]))
    with pytest.raises(ValueError, match="needs 'vector' from an earlier block"):
        LM(11, 16, Stack([Wanting(16), Sending(16)]))
    LM(11, 16, Stack([Sending(16), Wanting(16)]))


@pytest.mark.parametrize("wrong", [{"dropout": 1.5}, {"vocab": 0}, {"d": 0}])
def test_numbers_without_a_meaning_are_refused(wrong: dict[str, float]) -> None:
    keywords = {"vocab": 11, "d": 16, **wrong}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LM(keywords.pop("vocab"), keywords.pop("d"), MLP(16), **keywords)  # type: ignore[arg-type]


def test_a_head_is_lent_to_the_body() -> None:
    heads: list[object] = []

    class Exit(Layer):
        d = 16

        def forward(self, x: Tensor, state: State | None, ctx: Context) -> Out:
            heads.append(ctx.head)
            return Out(x, state)

    model = LM(11, 16, Exit())
    model.logits(torch.tensor([[1, 2]]))
    assert heads == [model.head]


# Judging -------------------------------------------------------------------------------------------------------------


def batches(model: object) -> tuple[object, list[object]]:
    """A batch of four rows, and its rows one by one."""
    whole = model.sample(4, 40, 0)  # type: ignore[attr-defined]
    if isinstance(whole, tuple):
        return whole, [tuple(part[n : n + 1] for part in whole) for n in range(4)]
    return whole, [whole[n : n + 1] for n in range(4)]


@pytest.mark.parametrize("make", [gpt, bert, transformer])
def test_what_is_judged_adds_up_over_rows_with_no_chance_in_it(float64: None, make: object) -> None:
    torch.manual_seed(0)
    model = make(d=16, depth=1, heads=2).eval()  # type: ignore[operator]
    whole, rows = batches(model)
    name = model.metric.name
    first, second = model.judge(whole).totals, model.judge(whole).totals
    assert next(iter(first)) == name and first[name][0] == second[name][0] and first[name][1] > 0
    alone = [model.judge(row).totals[name] for row in rows]
    torch.testing.assert_close(sum(total for total, _ in alone), first[name][0])
    assert int(sum(count for _, count in alone)) == int(first[name][1])
    loss = model(whole)
    assert int(loss.count) == int(first[name][1])
    torch.testing.assert_close(loss.parts["nll"].detach() / math.log(2), first[name][0] / first[name][1])


def test_what_is_judged_carries_the_state(float64: None) -> None:
    model = small().eval()
    rows = model.sample(2, 13, 0)
    whole, count = model.judge(rows).totals["bits per byte"]
    first_part = model.judge(rows[:, :6], model.start(2, 13))
    second_part = model.judge(rows[:, 5:], first_part.state)
    torch.testing.assert_close(first_part.totals["bits per byte"][0] + second_part.totals["bits per byte"][0], whole)


@pytest.mark.parametrize("make", [gpt, bert, transformer])
def test_samples_of_a_seed_are_the_same_and_longer_ones_begin_alike(make: object) -> None:
    model = make(d=16, depth=1, heads=2)  # type: ignore[operator]
    short, same, long, other = (model.sample(3, *arguments) for arguments in ((5, 0), (5, 0), (90, 0), (5, 1)))
    for a, b, c, e in zip(*((x if isinstance(x, tuple) else (x,)) for x in (short, same, long, other)), strict=True):
        assert torch.equal(a, b) and torch.equal(a, c[:, :5]) and not torch.equal(a, e)


def test_a_causal_row_without_padding_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """gpt asks for no lse, so that PyTorch's own causal attention serves."""
    causal: list[bool] = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def noted(*arguments: Tensor, is_causal: bool = False, **keywords: object) -> Tensor:
        causal.append(is_causal)
        return fused(*arguments, is_causal=is_causal, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    small().logits(torch.randint(0, 11, (2, 9)))
    assert causal == [True] * 3


def test_a_body_of_ones_own_pattern() -> None:
    blocks = [PreNorm(Attention(QKV(16, 2), Softmax(Causal())), MLP(16))]
    assert not LM(11, 16, Stack(blocks)).lanes and LM(11, 16, Stack(blocks), lanes=True).lanes


# Patterns that read ahead --------------------------------------------------------------------------------------------


def with_pattern(pattern: Pattern) -> LM:
    return LM(11, 16, PreNorm(Attention(QKV(16, 2), Softmax(pattern)), MLP(16)))


@pytest.mark.parametrize("pattern", [Full(), Band(8), ~Causal()])
def test_the_first_loss_refuses_a_pattern_that_reads_ahead(pattern: Pattern) -> None:
    model = with_pattern(pattern)
    with pytest.raises(ValueError, match=re.escape(f"this LM reads ahead: got the pattern {pattern}")) as caught:
        model(torch.arange(10)[None])
    assert f"Write Causal() & {pattern}" in str(caught.value) and "\n" not in str(caught.value)
    assert with_pattern(Causal() & pattern)(torch.arange(10)[None]).total.isfinite()
    model.logits(torch.arange(10)[None])  # `generate` with recompute=True reads every key


def test_a_member_that_reads_ahead_names_itself() -> None:
    with pytest.raises(ValueError, match="this gpt reads ahead"):
        small(pattern="Full()")(torch.arange(10)[None])


@dataclass(frozen=True)
class Even(Pattern):
    """Earlier keys at even distances, without a sharp bound of its reach."""

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> torch.Tensor:
        return torch.as_tensor((k <= q) & ((q - k) % 2 == 0))


def test_a_pattern_without_a_bound_that_never_reads_ahead_trains_and_draws_no_random_number() -> None:
    torch.manual_seed(0)
    model, after = with_pattern(Even()), torch.get_rng_state()
    assert Even().reach()[1] > 0 and model(torch.arange(10)[None]).total.isfinite() and model.training
    assert torch.equal(torch.get_rng_state(), after)
