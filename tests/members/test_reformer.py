"""Reformer: what training keeps, which blocks read what, and the published form."""

import math
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from kinformer.checkpoint.checkpoint import load, save
from kinformer.core.after_step import after_step
from kinformer.members.reformer import reformer
from kinformer.models.lm import LM
from kinformer.nn.mechanisms.lsh import LSH, Hashed, HashRotations
from kinformer.nn.mechanisms.lsh_published import PublishedLSH
from tests.nn.depth.test_reversible import saved_numbers


def tiny(depth: int = 2, chunk: int | None = None) -> LM:
    return reformer(d=16, depth=depth, heads=2, buckets=4, local=4, chunk=chunk, length=64, vocab=11)


@pytest.mark.parametrize("halves", ["own", "same"])
def test_training_keeps_the_same_at_any_depth(halves: Literal["own", "same"]) -> None:
    def of(depth: int) -> int:
        model = reformer(d=16, depth=depth, heads=2, buckets=4, local=4, length=64, vocab=11, halves=halves)
        return saved_numbers(model, lambda: model(torch.ones(2, 20, dtype=torch.long)))

    assert 0 < of(2) == of(10)


def test_every_block_hashes_where_none_is_local_as_in_the_paper() -> None:
    for local, hashing in ((4, [False, True] * 2), (None, [True] * 4)):
        model = reformer(d=16, depth=4, heads=2, buckets=4, local=local, length=64, vocab=11)
        assert [isinstance(block.layers[0].mechanism, LSH) for block in model.body.layers] == hashing


def test_dropout_is_replayed(float64: None) -> None:
    """Gradients with dropout are those of the loss that was computed: a step along them changes it as they say."""
    model = reformer(d=8, depth=2, heads=2, buckets=4, local=4, length=64, vocab=11, dropout=0.3).train()
    tokens, weight = torch.randint(0, 11, (2, 9)), model.body.layers[0].layers[1].up.weight

    def loss() -> Tensor:
        torch.manual_seed(7)
        return model(tokens).total

    loss().backward()
    step = 1e-6 * torch.randn_like(weight)
    with torch.no_grad():
        weight.add_(step)
        after = loss()
        weight.sub_(2 * step)
        before = loss()
    assert torch.allclose((after - before) / 2, (weight.grad * step).sum(), rtol=1e-5)


def test_later_tokens_move_the_cuts_of_the_published_form_alone(float64: None) -> None:
    def changes(model: LM) -> bool:
        """Does what was said before the last token change with it?"""
        rows = torch.randint(0, 11, (1, 15)).expand(11, 15).clone()
        rows[:, -1] = torch.arange(11)
        with torch.no_grad():
            before = model.logits(rows).y[:, :-1]
        return bool((before - before[:1]).abs().max() > 1e-9)

    assert not changes(tiny())
    assert changes(tiny(chunk=3))


def test_an_odd_number_of_buckets_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="buckets=5.*even"):
        reformer(d=16, depth=2, heads=2, buckets=5)


@pytest.mark.parametrize("chunk", [None, 3])
def test_going_back_finds_the_forwards_buckets(float64: None, chunk: int | None) -> None:
    """What is computed again lies near a border now and then; here every vector would fall into another bucket."""

    def gradients(turn: bool) -> list[Tensor]:
        torch.manual_seed(3)
        model = tiny(4, chunk)
        loss = model(torch.arange(30).remainder(11).view(2, 15)).total
        for layer in model.modules():
            if turn and isinstance(layer, HashRotations):
                layer.r.normal_()
        loss.backward()
        return [weight.grad for weight in model.parameters() if weight.grad is not None]

    for mine, expected in zip(gradients(turn=True), gradients(turn=False), strict=True):
        assert torch.allclose(mine, expected, atol=1e-12)


def test_the_scale_is_the_odd_blocks_and_whole_models_hash_more_often(float64: None) -> None:
    tokens = torch.arange(40).remainder(11).view(2, 20)

    def logits(scale: float, rounds: int = 2, lsh_rounds: int | None = None) -> Tensor:
        torch.manual_seed(3)
        model = reformer(d=16, depth=2, heads=2, buckets=4, rounds=rounds, local=4, length=64, vocab=11, scale=scale)
        for part in model.modules():
            if lsh_rounds is not None and isinstance(part, LSH):
                part.rounds = lsh_rounds
        return model.logits(tokens).y

    assert not torch.allclose(logits(1.0), logits(0.1))
    assert torch.equal(logits(1.0, lsh_rounds=6), logits(1.0, rounds=6))
    assert not torch.equal(logits(1.0, lsh_rounds=6), logits(1.0))


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_a_trained_model_is_saved_and_loaded_with_other_rounds_at_evaluation(
    float64: None, tmp_path: Path, rounds: int, chunk: int | None
) -> None:
    """The paper's own experiment, by a keyword, by setting it later, and by loading weights into another model."""

    def make_model(**keywords: int) -> LM:
        return reformer(d=16, depth=2, heads=2, buckets=4, local=4, chunk=chunk, length=64, vocab=11, **keywords)

    model, tokens = make_model(rounds=2, redraw=1), torch.arange(40).remainder(11).view(2, 20)
    for _ in range(2):
        model(tokens).total.backward()
        after_step(model, 0.5, {})
    rounds_model, plain = make_model(rounds=2, eval_rounds=rounds, redraw=1), make_model(rounds=rounds)
    for other in (rounds_model, plain):
        other.load_state_dict(model.state_dict())
    assert torch.equal(rounds_model.train().logits(tokens).y, model.logits(tokens).y)
    save(rounds_model, tmp_path / "told")
    expected = load(tmp_path / "told").logits(tokens).y
    model.eval()
    assert torch.equal(model.logits(tokens).y, expected) is (rounds == 2)
    for part in model.modules():
        if isinstance(part, Hashed):
            part.eval_rounds = rounds
    assert torch.equal(model.logits(tokens).y, expected) and torch.equal(plain.logits(tokens).y, expected)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert torch.equal(loaded.train().logits(tokens).y, model.train().logits(tokens).y)


def test_halves_of_one_embedding_and_feed_forward_in_pieces(float64: None) -> None:
    def of(**keywords: object) -> LM:
        torch.manual_seed(3)
        return reformer(d=16, depth=2, heads=2, buckets=4, local=4, length=64, vocab=11, **keywords)  # type: ignore[arg-type]

    tokens = torch.arange(40).remainder(11).view(2, 20)
    same_halves, plain = of(halves="same"), of()
    assert (same_halves.embedding.weight.shape[1], plain.embedding.weight.shape[1]) == (16, 32)
    assert (
        same_halves.body.layer.d == plain.body.d == 32
        and same_halves.logits(tokens).y.shape == plain.logits(tokens).y.shape
    )
    torch.testing.assert_close(of(ff_chunk=3).logits(tokens).y, plain.logits(tokens).y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [LSH, PublishedLSH])
def test_the_scale_is_the_papers_unless_given(kind: type[Hashed]) -> None:
    def scales(scale: float | None) -> list[float | None]:
        chunk = None if kind is LSH else 3
        model = reformer(d=16, depth=4, heads=2, buckets=4, local=4, chunk=chunk, length=64, vocab=11, scale=scale)
        return [part.scale for part in model.modules() if isinstance(part, kind)]

    assert scales(None) == [None, None] and scales(1.0) == [1.0, 1.0]


@pytest.mark.parametrize("halves", ["own", "same"])
def test_it_starts_where_nothing_is_known(halves: Literal["own", "same"]) -> None:
    loss = reformer(d=32, depth=2, length=64, local=8, halves=halves)(torch.randint(0, 256, (4, 33)))
    assert abs(float(loss.total.detach()) / math.log(256) - 1) < 0.03


def test_the_published_list_is_read_as_others_have_it_too(float64: None) -> None:
    tokens = torch.arange(40).remainder(11).view(2, 20)

    def of(**keywords: bool) -> tuple[PublishedLSH, Tensor]:
        torch.manual_seed(3)
        model = reformer(d=16, depth=2, heads=2, buckets=4, local=4, chunk=3, length=64, vocab=11, **keywords)
        (part,) = (part for part in model.modules() if isinstance(part, PublishedLSH))
        return part, model.logits(tokens).y

    (paper, expected), (wider, wider_output), (counted, twice) = of(), of(restricted=False), of(divided=False)
    assert (paper.restricted, paper.divided) == (True, True)
    assert (wider.restricted, wider.divided) == (False, True) and not torch.allclose(wider_output, expected)
    assert (counted.restricted, counted.divided) == (True, False) and not torch.allclose(twice, expected)
    with pytest.raises(ValueError, match="divided=false has no effect with chunk=none"):
        reformer(divided=False)
