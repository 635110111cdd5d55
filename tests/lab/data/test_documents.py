"""Documents that share a row read only themselves: equal to each alone, in rows, in lanes, in measurements."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.core.patterns.document import Document
from kinformer.core.token_positions import context_of_tokens
from kinformer.lab.data.lanes import DocumentLanes
from kinformer.lab.data.random_windows import RandomWindows
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.fit import fit
from kinformer.lab.train.packs_documents import packs_documents
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.linear_transformer import linear_transformer
from kinformer.members.llama import llama
from kinformer.members.transformer_xl import transformer_xl
from kinformer.members.universal_transformer import universal_transformer
from kinformer.models.lm import LM
from tests.lab.train import tiny

SIZES = (5, 1, 12, 6)
IDS = torch.tensor([sum(([n] * size for n, size in enumerate(SIZES)), [])])
SMALL = {"d": 16, "depth": 2, "heads": 2}
PACKING = {
    "learned": lambda: gpt(**SMALL, length=32),
    "sinusoidal": lambda: gpt(**SMALL, position="sinusoidal"),
    "per layer": lambda: gpt(**SMALL, length=32, per_layer=True),
    "relative": lambda: gpt(**SMALL, position="relative"),
    "alibi": lambda: gpt(**SMALL, position="alibi"),
    "window": lambda: gpt(**SMALL, position="rotary", pattern="Causal() & Band(3)"),
    "rotary": lambda: llama(**SMALL),
    "both ways": lambda: bert(**SMALL, length=32),
    "timing": lambda: universal_transformer(**SMALL),
}


@pytest.mark.parametrize("name", PACKING)
def test_packed_documents_are_read_as_each_alone(name: str) -> None:
    model = PACKING[name]().eval()
    tokens = model.sample(1, sum(SIZES), 3)
    with torch.no_grad():
        packed = model.logits(tokens, ctx=context_of_tokens(tokens).replace(only=Document(IDS))).y
        alone = torch.cat([model.logits(document).y for document in tokens.split(SIZES, 1)], 1)
        joined = model.logits(tokens).y
    assert torch.allclose(packed, alone, atol=1e-4 * float(alone.abs().max()))
    assert not torch.allclose(joined, alone, atol=1e-2 * float(alone.abs().max()))
    assert packs_documents(model, sum(SIZES))


def test_what_cannot_keep_documents_apart_in_a_row_is_found_out() -> None:
    assert not packs_documents(linear_transformer(**SMALL, length=32), 24)  # sums of keys cannot be narrowed
    assert not packs_documents(
        gpt(**SMALL, position="rotary", pattern="Causal() & (Band(2) | Tokens(2))"), 24
    )  # the row's first
    assert not packs_documents(tiny.bigram(), 24)
    for period in (3, 8, 25):  # blocks count from the row's begin: the documents that are tried begin at 24 and at 25
        assert not packs_documents(gpt(**SMALL, position="rotary", pattern=f"Causal() & Fixed({period}, 1)"), 64), (
            period
        )


@pytest.mark.parametrize("make", [PACKING["learned"], PACKING["both ways"]])
def test_a_batch_of_documents_is_learned_from_as_rows_of_their_own(make) -> None:  # type: ignore[no-untyped-def]
    model = make()
    tokens = model.sample(1, sum(SIZES), 3)
    rows = [document for document in tokens.split(SIZES, 1)]
    if isinstance(model, LM):
        model.eval()
        together = model(TokenBatch(tokens, None, IDS))
        apart = [model(row) for row in rows if row.shape[1] > 1]
        count = sum(int(loss.count) for loss in apart)
        assert int(together.count) == count == sum(SIZES) - len(SIZES)
        assert torch.allclose(together.total, sum(loss.total * loss.count for loss in apart) / count, atol=1e-5)
        judged = model.judge(TokenBatch(tokens, None, IDS)).totals["bits per byte"]
        assert float(judged[0]) == pytest.approx(float(together.total.detach()) * count / math.log(2), rel=1e-5)
        with pytest.raises(ValueError, match="documents that share a row cannot continue from a state"):
            model(TokenBatch(tokens, None, IDS), model.start(1, 24))
    else:
        scored = torch.rand(tokens.shape) < 0.4
        together = model.eval()(TokenBatch(tokens, scored, IDS))
        apart = [model(TokenBatch(*pair)) for pair in zip(rows, scored.split(SIZES, 1), strict=True)]
        count = sum(int(loss.count) for loss in apart)
        assert torch.allclose(together.total, sum(loss.total * loss.count for loss in apart) / count, atol=1e-5)


# Streams -------------------------------------------------------------------------------------------------------------

BEGINS = torch.tensor([0, 7, 8, 30, 41])
PART = SplitTokens(torch.arange(100, dtype=torch.uint8), BEGINS)


def number(token: int) -> int:
    return int((token >= BEGINS).sum()) - 1


def test_windows_say_which_document_each_token_is_of() -> None:
    stream, kinds = RandomWindows(PART, batch=4, length=20), set[type]()
    for step in range(30):
        batch = stream.at(step)
        kinds.add(type(batch))
        rows = TokenBatch.from_tokens(batch)
        assert (rows.tokens.diff(dim=1) == 1).all()
        if rows.documents is not None:
            groups = [[number(int(token)) for token in row] for row in rows.tokens]
            assert [[a == b for a, b in zip(row, row[1:], strict=False)] for row in groups] == (
                rows.documents.diff(dim=1) == 0
            ).tolist()
    assert kinds == {TokenBatch, Tensor} or kinds == {TokenBatch}


def test_windows_of_rows_apart_hold_one_document_each() -> None:
    stream, covered = RandomWindows(PART, batch=8, length=20, packed=False), set[int]()
    for step in range(40):
        batch = stream.at(step)
        assert isinstance(batch, Tensor) and batch.shape[1] <= 21
        for row in batch.tolist():
            real = [token for token in row if token >= 0]
            assert row == real + [-1] * (len(row) - len(real)) and len({number(token) for token in real}) == 1
            size = int(PART.sizes[number(real[0])])
            assert len(real) == min(size, 21) and real == list(range(real[0], real[0] + len(real)))
            covered |= set(real)
    assert covered == set(range(100))


@pytest.mark.parametrize(("batch", "length"), [(1, 4), (2, 5), (3, 100), (2, 1)])
def test_lanes_of_documents_show_each_transition_once(batch: int, length: int) -> None:
    lanes, transitions = DocumentLanes(PART, batch, length), list[tuple[int, int]]()
    for step in range(lanes.chunks):
        rows, new = lanes.at(step), lanes.is_document_start(step)
        for row, begins in zip(rows.tolist(), new.tolist(), strict=True):
            real = [token for token in row if token >= 0]
            assert len(real) > 1 and row[: len(real)] == real and begins == (real[0] in BEGINS.tolist())
            transitions += zip(real, real[1:], strict=False)
    every = [(a, a + 1) for a in range(99) if number(a) == number(a + 1)]
    assert len(transitions) == len(set(transitions)) and set(transitions) <= set(every)
    assert len(every) - len(transitions) <= (batch - 1) * length
    with pytest.raises(ValueError, match="but each of 99 lanes needs one"):
        DocumentLanes(PART, 99, 100)


def test_a_lane_forgets_where_a_document_begins() -> None:
    """Losses of lanes are those of each document alone, its state carried."""
    model, lanes, state = tiny.lane(), DocumentLanes(PART, 1, 5), None
    total, count = 0.0, 0
    for step in range(lanes.chunks):
        state = lanes.state_before(model, step, state)
        loss = model(lanes.at(step), state)
        state, scored_count = loss.state, int((lanes.at(step)[:, 1:] >= 0).sum())
        total, count = total + float(loss.total.detach()) * scored_count, count + scored_count
    ends = [*BEGINS.tolist()[1:], 100]
    alone = [PART.tokens[a:b].long()[None] for a, b in zip(BEGINS.tolist(), ends, strict=True) if b - a > 1]
    assert total / count == pytest.approx(
        sum(float(model(x).total.detach()) * (x.shape[1] - 1) for x in alone) / count, rel=1e-4
    )


@pytest.mark.parametrize("make", [tiny.bigram, tiny.lane, lambda: gpt(**SMALL, length=32)])
def test_measuring_reads_each_document_by_itself(make) -> None:  # type: ignore[no-untyped-def]
    model = make()
    ends = [*BEGINS.tolist()[1:], 100]
    alone = [evaluate(model, PART.tokens[a:b], 16) for a, b in zip(BEGINS.tolist(), ends, strict=True) if b - a > 1]
    score = evaluate(model, PART, 16)
    assert score.count == sum(part_score.count for part_score in alone) == 95
    assert score.value == pytest.approx(sum(part_score.value * part_score.count for part_score in alone) / 95, rel=1e-4)


def test_members_of_all_kinds_train_on_documents(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"text": "note {n} of {n * n} and no more"}}\n' for n in range(300)))
    small = {"d": 16, "depth": 1, "heads": 2}
    for model in (gpt(**small), linear_transformer(**small), transformer_xl(**small), bert(**small)):
        assert fit(model, f"text={file}", steps=2, batch=3, length=32).best.valid < 12


def test_a_run_does_not_go_on_with_other_documents(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file, small = tmp_path / "lines", {"steps": 2, "batch": 2, "length": 16, "out": tmp_path / "run"}
    file.write_text("".join(f"note {n} of {n * n} and no more\n" for n in range(300)))
    fit(gpt(**SMALL), f"text={file},documents=lines", **small)
    with pytest.raises(ValueError, match="got documents=blank, expected documents=lines in --data"):
        fit(gpt(**SMALL), f"text={file},documents=blank", resume=True, **small | {"steps": 3})
    fit(gpt(**SMALL), f"text={file},documents=lines", resume=True, **small | {"steps": 3})
