"""Context: positions and all that is of tokens, numbered, cut, moved and handed down together."""

import dataclasses

import pytest
import torch

from kinformer.core.layer import Context, Decoding, PerPair, PerToken
from kinformer.core.memo import Memo
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.shifted import shift_context
from tests.unhooked import refusals, unhooked

POS = torch.tensor([[-1, -1, 0, 1, 2, 3], [0, 1, 2, 3, 4, -1]])


def whole() -> Context:
    by_head = POS[:, None]
    below = {"level": PerToken(torch.randn(2, 6, 3)), "scores": PerPair(torch.randn(2, 4, 6, 6), by_head, by_head)}
    return Context(
        POS,
        run=True,
        only=Causal(),
        also=Band(1),
        source=torch.randn(2, 5, 3),
        source_pos=torch.arange(5).expand(2, 5),
        below=below,
        labels={"segment": torch.randint(0, 3, (2, 6))},
        head=torch.nn.Identity(),
        taps=("3", "3.1.input"),
        remember=True,
        decoding=Decoding(torch.arange(-3, 3)[None], 9),
    )


def test_of_numbers_the_real_tokens() -> None:
    x = torch.zeros(2, 5, 3)
    plain = Context.of_sequence(x)
    assert plain.pos.tolist() == [[0, 1, 2, 3, 4]] * 2 and plain.run and plain.full
    mask = torch.tensor([[False, True, True, True, False], [True] * 5])
    padded = Context.of_sequence(x, mask)
    assert padded.pos.tolist() == [[-1, 0, 1, 2, -1], [0, 1, 2, 3, 4]] and padded.run and not padded.full


@pytest.mark.parametrize(
    ("row", "run"),
    [([True, False, True], False), ([False, False, False], True), ([False, False, True], True), ([True] * 3, True)],
)
def test_of_promises_a_run_only_without_gaps(row: list[bool], run: bool) -> None:
    ctx = Context.of_sequence(torch.zeros(2, 3, 1), torch.tensor([row, [True, True, True]]))
    assert ctx.run is run
    assert ctx.pos[0][torch.tensor(row)].tolist() == list(range(sum(row)))


def refusal_messages() -> list[str]:
    x = torch.zeros(2, 3, 1)
    masks = [torch.ones(2, 3), torch.ones(2, 4, dtype=torch.bool)]
    positions = [torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 3), torch.ones(3).long()]
    return refusals(
        [*(lambda m=m: Context.of_sequence(x, m) for m in masks), *(lambda pos=pos: Context(pos) for pos in positions)]
    )


def test_a_mask_or_positions_of_another_kind_or_shape_are_refused_with_advice() -> None:
    texts = unhooked(f"{__name__}:{refusal_messages.__name__}")
    rule = "ValueError: mask must be bool of shape [2, 3], True at each real token, got "
    assert texts[0].startswith(f"{rule}torch.float32")
    assert texts[1] == f"{rule}torch.bool of shape [2, 4]; PairMask(mask) takes a mask of pairs"
    for text, received in zip(texts[2:], ("torch.bool", "torch.float32", "torch.int64 of shape [3]"), strict=True):
        assert text.startswith(f"ValueError: positions must be integers [B, T], got {received}")
        assert text.endswith("make them with Context.of_sequence(x, mask)")


def test_columns_cut_all_that_is_of_tokens_and_nothing_else() -> None:
    ctx = whole()
    columns_2_to_5 = ctx.columns(2, 5)
    assert torch.equal(columns_2_to_5.pos, POS[:, 2:5])
    assert torch.equal(columns_2_to_5.labels["segment"], ctx.labels["segment"][:, 2:5])
    assert torch.equal(columns_2_to_5.below["level"].value, ctx.below["level"].value[:, 2:5])
    scores = columns_2_to_5.below["scores"]
    assert torch.equal(scores.scores, ctx.below["scores"].scores[:, :, 2:5]) and scores.k_pos.shape == (2, 1, 6)
    assert torch.equal(scores.q_pos, POS[:, None, 2:5])
    assert (
        columns_2_to_5.decoding is not None
        and columns_2_to_5.decoding.max_new_tokens == columns_2_to_5.max_new_tokens == 9
    )
    assert columns_2_to_5.decoding.step.tolist() == [[-1, 0, 1]] and columns_2_to_5.steps.tolist() == [[0, 0, 1]]
    cut = {"pos", "labels", "below", "memo", "decoding"}
    for field in dataclasses.fields(Context):
        if field.name not in cut:
            assert getattr(columns_2_to_5, field.name) is getattr(ctx, field.name), field.name


def test_steps_are_those_of_an_output_or_places_in_a_document() -> None:
    ctx = whole()
    assert ctx.steps.tolist() == [[0, 0, 0, 0, 1, 2]], "a prompt is at step 0"
    read = ctx.replace(decoding=None, only=Document(torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 2]])))
    assert read.max_new_tokens is None and read.steps.tolist() == [[-1, -1, 0, 1, 0, 1], [0, 0, 1, 2, 0, -1]]
    assert ctx.replace(pos=POS + 0).decoding is None, "other positions are of other columns"


def test_layers_that_cut_alike_share_what_is_found_out_about_a_piece() -> None:
    ctx = whole()
    first, other = ctx.columns(2, 5), ctx.replace(below={}).columns(2, 5)
    assert first.memo is other.memo and first.pos is other.pos and first.by_head is other.by_head
    assert first.memo is not ctx.memo and ctx.columns(1, 5).memo is not first.memo


def test_shifted_moves_positions_and_limits_but_no_padding() -> None:
    ids = torch.tensor([[0, 0, 1, 1, 1]] * 2)
    ctx = dataclasses.replace(whole(), only=Document(ids), also=None)
    moved_ctx = shift_context(ctx, 3)
    assert moved_ctx.pos.tolist() == [[-1, -1, 3, 4, 5, 6], [3, 4, 5, 6, 7, -1]]
    assert moved_ctx.also is None and moved_ctx.only is not None
    for i in range(4):
        for j in range(4):
            assert bool(moved_ctx.only(0, 0, i + 3, j + 3)) == bool(Document(ids)(0, 0, i, j))
            assert not bool(moved_ctx.only(0, 0, i, j)) or (i >= 3 and j >= 3)
    for field in dataclasses.fields(Context):
        if field.name not in {"pos", "only", "also", "memo"}:
            assert getattr(moved_ctx, field.name) is getattr(ctx, field.name), field.name


def test_other_positions_or_limits_begin_a_new_memo_and_other_fields_do_not() -> None:
    ctx = whole()
    for changes in ({"pos": POS + 0}, {"only": None}, {"also": Causal()}):
        assert ctx.replace(**changes).memo is not ctx.memo
    memo = Memo()
    assert ctx.replace(pos=POS + 0, memo=memo).memo is memo
    for changes in ({"below": {}}, {"remember": False}, {"run": False}, {"labels": {}}):
        replaced = ctx.replace(**changes)
        assert replaced.memo is ctx.memo and all(getattr(replaced, name) == value for name, value in changes.items())


def test_under_cuts_prefixes_of_below_and_taps() -> None:
    value = PerToken(torch.zeros(2, 6))
    ctx = Context(POS, below={"task": value, "3.scores": value, "30.x": value}, taps=("3", "3.1.input", "31.0"))
    inner = ctx.for_sublayer(3)
    assert set(inner.below) == {"task", "scores"} and inner.taps == ("1.input",)
    assert inner.memo is ctx.memo and ctx.for_sublayer(4).taps == ()
    plain = Context(POS)
    assert plain.for_sublayer(3) is plain


def test_positions_by_head_are_one_object_for_all_layers() -> None:
    ctx = whole()
    assert ctx.by_head is ctx.replace(below={}).by_head and torch.equal(ctx.by_head[:, 0], POS)
    assert ctx.source_by_head is ctx.source_by_head and ctx.source_by_head.shape == (2, 1, 5)
    with pytest.raises(ValueError, match=r"give Context.of_sequence\(x, source=source"):
        _ = Context(POS, source=torch.zeros(2, 5, 3)).source_by_head
