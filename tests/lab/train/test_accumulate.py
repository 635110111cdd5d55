"""A batch read in pieces is learned from as if it were read at once; bf16; what is told of a step."""

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.core.model import Model
from kinformer.lab.data.batches import Batches
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.micro_batches import combine_losses, cut, cut_state, join_states, row_count, warn_across_rows
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
from kinformer.members.calm import calm
from kinformer.members.compressive_transformer import compressive_transformer
from kinformer.members.etc import etc
from kinformer.members.gpt import gpt
from kinformer.members.nystromformer import nystromformer
from kinformer.members.routing_transformer import routing_transformer
from kinformer.members.transformer import transformer
from kinformer.members.transformer_xl import transformer_xl
from kinformer.members.universal_transformer import universal_transformer
from kinformer.nn.losses.contrastive import Contrastive
from tests.lab.train import tiny

SIZE = {"d": 16, "depth": 1, "heads": 2}


def trained(model: Model, begin: dict[str, Tensor], data: Any, **settings: Any) -> tuple[dict[str, Tensor], list[dict]]:
    model.load_state_dict(begin)
    lines: list[dict] = []
    chosen = Settings(batch=5, length=8, lr=1e-2, valid_bytes=60, **settings)
    train(model, data, StepBudget(4), chosen, on_metrics=lines.append)
    return {name: value.clone() for name, value in model.state_dict().items()}, lines


def pairs(model: Any) -> Batches:
    """Rows of uneven lengths, so that a mean of means is another mean."""
    batches = [model.sample(5, 8, seed) for seed in range(3)]
    for _, target in batches:
        for row in range(5):
            target[row, 2 + row :] = -1
    return Batches(batches)


MODELS = {
    "windows": (lambda: gpt(**SIZE, length=8), None),
    "lanes": (lambda: transformer_xl(**SIZE, segment=4, memory=6), None),
    "penalties": (lambda: compressive_transformer(**SIZE, segment=4, memory=4, compressed=2, rate=2), None),
    "penalties per token": (lambda: universal_transformer(**SIZE, ponder=0.5), None),
    "stats": (lambda: routing_transformer(**SIZE), None),
    "balanced probe": (lambda: calm(**SIZE | {"depth": 3}, length=8, confidence="probe", balance=True), None),
    "targets of uneven length": (lambda: transformer(**SIZE, hidden=16, vocab=9, dropout=0.0), pairs),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pieces", [2, pytest.param(5, marks=pytest.mark.prove)])
def test_pieces_teach_what_the_whole_batch_does(name: str, pieces: int, float64: None) -> None:
    make, data = MODELS[name]
    model = make()
    begin = {name: value.clone() for name, value in model.state_dict().items()}
    training_data = tiny.text(600) if data is None else data(model)
    whole, lines = trained(model, begin, training_data)
    accumulated, same = trained(model, begin, training_data, accumulate=pieces)
    for key, value in whole.items():
        torch.testing.assert_close(accumulated[key], value, rtol=0, atol=1e-9)
    largest_change = max(
        float((whole[key] - begin[key]).abs().max()) for key in whole if whole[key].is_floating_point()
    )
    assert largest_change > 1e-3
    for line, other in zip(lines, same, strict=True):
        for key in line.keys() - {"seconds", "minutes", "parts"}:
            assert line[key] == pytest.approx(other[key], abs=1e-9)
        assert line.get("parts", {}) == pytest.approx(other.get("parts", {}), abs=1e-9)


def test_a_batch_is_cut_by_rows_into_pieces_as_even_as_can_be() -> None:
    rows = torch.arange(10).view(5, 2)
    assert [len(piece) for piece in cut(rows, 3)] == [1, 2, 2] and torch.equal(torch.cat(cut(rows, 3)), rows)
    assert [len(piece) for piece in cut(rows, 9)] == [1] * 5
    batch = {"tokens": TokenBatch(rows), "more": (rows, [rows], "kept")}
    pieces = cut(batch, 2)
    assert row_count(batch) == 5 and pieces[0]["more"][2] == "kept"
    assert torch.equal(pieces[1]["tokens"].tokens, rows[2:]) and pieces[1]["tokens"].scored is None
    with pytest.raises(ValueError, match="cannot split a batch of type str: it has no rows. Leave out accumulate"):
        cut("rows", 2)


def test_a_state_is_cut_and_joined_and_what_is_shared_stays_shared() -> None:
    model = transformer_xl(d=16, depth=2, heads=2, segment=4, memory=6).train()
    state = model(model.sample(5, 9, 0), model.start(5, 20)).state
    pieces = cut_state(state, 5, 2)
    rejoined = join_states(pieces)
    identities = [[id(leaf) for leaf in _leaves(part)] for part in (state, rejoined)]
    assert [len(set(ids)) for ids in identities] == [len(set(identities[0]))] * 2 and len(set(identities[0])) < len(
        identities[0]
    )
    assert all(torch.equal(a, b) for a, b in zip(_leaves(state), _leaves(rejoined), strict=True))


def _leaves(state: Any) -> list[Tensor]:
    from kinformer.core.state import leaves

    return [leaf for _, leaf in leaves(state)]


def test_bf16_multiplies_in_bfloat16_and_keeps_weights_and_measures_in_float32() -> None:
    model = gpt(**SIZE, length=8)
    begin = {name: value.clone() for name, value in model.state_dict().items()}
    observed: list[tuple[bool, torch.dtype]] = []
    feed = model.body.layers[0].layers[1]  # copies of it, on which a training finds out what it does, have the hook too
    feed.register_forward_hook(
        lambda layer, inputs, out: observed.append((layer.training, out.y.dtype)) if layer is feed else None
    )
    whole, whole_lines = trained(model, begin, tiny.text(600))
    assert {dtype for _, dtype in observed} == {torch.float32}
    observed.clear()
    rough, other = trained(model, begin, tiny.text(600), precision="bf16")
    assert set(observed) == {(True, torch.bfloat16), (False, torch.float32)}
    assert {value.dtype for value in rough.values()} == {torch.float32}
    losses, other_losses = ([line["loss"] for line in lines if "step" in line] for lines in (whole_lines, other))
    assert losses != other_losses and losses == pytest.approx(other_losses, rel=0.02)


SUMMARIES = {"d": 16, "depth": 1, "heads": 2, "radius": 3, "tokens": 4, "clip": 2, "unit": "line", "vocab": 11}
DIVIDED = [
    (partial(etc, **SUMMARIES, contrast=0.3), "accumulate=2 changes what this etc learns: the contrastive loss"),
    (partial(nystromformer, **SIZE, landmarks=2, norms="batch"), "nystromformer learns: the pseudo-inverse starts"),
    (partial(nystromformer, **SIZE, landmarks=2, form="published"), "learns: the pseudo-inverse starts"),
    (partial(etc, **SUMMARIES), ""),
    (partial(nystromformer, **SIZE, landmarks=2), ""),
    (partial(gpt, **SIZE, length=8), ""),
]


@pytest.mark.parametrize(("make", "says"), DIVIDED)
def test_a_training_in_pieces_warns_where_rows_are_compared(make: Callable[[], Model], says: str) -> None:
    """Read at once, the same model is trained without a warning."""
    model = make()
    batches = Batches([model.sample(4, 8, 0)], tokenizer="bytes")
    for accumulate in (1, 2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(model, batches, StepBudget(1), Settings(batch=4, length=8, accumulate=accumulate))
        texts = [str(warning.message) for warning in caught]
        if says and accumulate == 2:
            assert len(texts) == 1 and says in texts[0] and "\n" not in texts[0]
        else:
            assert not texts


def test_several_processes_warn_as_pieces_do() -> None:
    with pytest.warns(UserWarning, match="^accumulate=2 and processes=3 changes what this etc learns"):
        warn_across_rows(etc(**SUMMARIES, contrast=0.3), 2, 3)


def contrast(a: Tensor, b: Tensor, hidden: Tensor, exists: Tensor) -> tuple[float, int]:
    """The sum of the loss over hidden parts, written from its equation, and the number of these parts."""
    parts = exists.nonzero().tolist()
    targets = (hidden & exists).nonzero().tolist()
    total = 0.0
    for row, part in targets:
        scores = [float(a[row, part] @ b[other_row, other]) for other_row, other in parts]
        total += math.log(sum(map(math.exp, scores))) - float(a[row, part] @ b[row, part])
    return total, len(targets)


def test_a_piece_contrasts_the_parts_of_its_own_rows(monkeypatch: pytest.MonkeyPatch, float64: None) -> None:
    """The loss that a step reports is that of each piece among its own parts, weighed by the targets of the piece."""
    model = etc(**SUMMARIES, contrast=0.3)
    batch = model.sample(6, 24, 0)
    batch[:, ::5] = 10  # line feeds, so that every row has parts
    calls: list[tuple[Tensor, ...]] = []
    honest = Contrastive.forward

    def watched(self: Contrastive, *tensors: Tensor) -> Tensor:
        calls.append(tuple(tensor.detach() for tensor in tensors))
        return honest(self, *tensors)

    model.train()
    monkeypatch.setattr(Contrastive, "forward", watched)
    reported = {}
    for pieces in (1, 2):
        calls.clear()
        losses = [model(piece, None, 0.5) for piece in cut(batch, pieces)]
        parts, _ = combine_losses(losses)
        sums = [contrast(*call) for call in calls]
        counts = [int(loss.count) for loss in losses]
        expected = sum(n * total / number for n, (total, number) in zip(counts, sums, strict=True)) / sum(counts)
        assert len(calls) == pieces and parts["contrast"] == pytest.approx(expected, abs=1e-9)
        reported[pieces] = parts["contrast"]
    assert reported[1] - reported[2] > 0.1  # fewer parts are easier to tell apart
