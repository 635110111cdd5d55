"""The decoders of other libraries in the arena's loop: their logits, their losses, and the table of the results."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.fair_loop import (
    DECODER,
    GPT2,
    OURS,
    VARIANTS,
    PeerLM,
    Score,
    arena_scores,
    best_rate,
    copy_into_decoder,
    copy_into_gpt2,
    decoder,
    gpt2,
    measure,
    near_one,
    our_gpt,
    planned,
    refuse_scores,
    show,
    standings,
)
from kinformer.lab.arena.arena_task import RATES, ArenaTask
from kinformer.lab.arena.run_arena import read_data
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.train import train
from tests.parity.peers import agree, shaken

ROWS = 24
TASK = ArenaTask("novel", "text=NOVEL", 1, 3, ROWS)


def tokens_of(rows: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (rows, ROWS), generator=torch.Generator().manual_seed(1))


def scores_of(name: str, tests: tuple[float, ...], rate: float = RATES[1]) -> list[Score]:
    """Scores by which `rate` is the best, with these bits per byte on test data for seeds 1, 2 and 3."""
    tuned = [Score(name, each, 0, 2.0 + (each != rate), 9.0) for each in RATES]
    return tuned + [Score(name, rate, seed, 2.0, test) for seed, test in enumerate(tests, 1)]


def test_a_wrapped_gpt2_has_the_logits_and_the_loss_of_transformers() -> None:
    model = gpt2(ROWS, 0).eval()
    peer: Any = shaken(model.peer)
    tokens = tokens_of()
    theirs = peer(input_ids=tokens, labels=tokens)
    agree(model.logits(tokens).y, theirs.logits)
    assert model(tokens).total.item() == pytest.approx(theirs.loss.item(), rel=1e-6)


def test_a_wrapped_gpt2_reads_a_row_in_chunks_as_in_one_piece() -> None:
    model = gpt2(ROWS, 0).eval()
    shaken(model.peer)
    tokens, state, chunks = tokens_of(), model.start(3, ROWS), []
    for chunk in tokens.split(10, 1):
        out = model.logits(chunk, state)
        state = out.state
        chunks.append(out.y)
    agree(torch.cat(chunks, 1), model.logits(tokens).y)
    with pytest.raises(ValueError, match="padding"):
        model.logits(torch.tensor([[-1, 5]]))


def test_the_loop_trains_a_wrapped_gpt2_by_the_loss_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("It was the best of times, it was the worst of times. " * 40)
    data, model, lines = read_data(TASK, tmp_path / "novel.txt"), gpt2(ROWS, 0), list[dict[str, Any]]()
    batch: Any = data.stream(model, TASK.batch, TASK.length, 5, 64).at(0)
    peer: Any = gpt2(ROWS + 1, 0).peer  # one more position, since transformers reads the last token too
    with torch.no_grad():
        peer.load_state_dict({**model.peer.state_dict(), "transformer.wpe.weight": peer.transformer.wpe.weight})
        peer.transformer.wpe.weight[:ROWS] = model.peer.get_parameter("transformer.wpe.weight")
    expected = peer(input_ids=batch.long(), labels=batch.long()).loss.item() / math.log(2)
    train(model, data, StepBudget(TASK.steps), TASK.settings(1e-3, 5), on_metrics=lines.append)
    assert lines[0]["loss"] == pytest.approx(expected, rel=1e-6)


def test_a_gpt2_with_the_weights_of_gpt_is_the_same_function() -> None:
    ours: Any = shaken(our_gpt(ROWS, 0)).eval()
    tokens = tokens_of()
    agree(copy_into_gpt2(ours, gpt2(ROWS, 1)).eval().logits(tokens).y, ours.logits(tokens).y)
    counts = [sum(weight.numel() for weight in model.parameters()) for model in (ours, gpt2(ROWS, 1))]
    assert counts[0] == counts[1]


def test_a_decoder_of_x_transformers_with_the_weights_of_an_untrained_gpt_is_the_same_function() -> None:
    pytest.importorskip("x_transformers")
    ours = our_gpt(ROWS, 0).eval()
    theirs: PeerLM = copy_into_decoder(ours, decoder(ROWS, 1, tie_scale=1.0)).eval()
    agree(theirs.logits(tokens_of()).y, ours.logits(tokens_of()).y)


def test_a_rate_is_chosen_by_validation_data_and_a_variant_has_the_rate_of_gpt() -> None:
    scores = scores_of(OURS, (), RATES[2]) + scores_of(GPT2, (), RATES[0])
    variant = next(iter(VARIANTS))
    assert best_rate(scores, GPT2) == RATES[0]
    assert best_rate([Score(GPT2, rate, 0, None, None) for rate in RATES], GPT2) == RATES[0]
    assert list(planned(scores, GPT2)) == [*((rate, 0) for rate in RATES), *((RATES[0], seed) for seed in (1, 2, 3))]
    assert list(planned(scores, variant)) == [(RATES[2], seed) for seed in (1, 2, 3)]


def test_a_variant_is_refused_until_gpt_has_been_trained_at_all_rates() -> None:
    variant = next(iter(VARIANTS))
    for scores in ([], scores_of(GPT2, (), RATES[2]), scores_of(OURS, (), RATES[2])[:2]):
        with pytest.raises(SystemExit, match=f"which is not known yet: measure {OURS} first"):
            list(planned(scores, variant))


def test_gpt_is_trained_before_its_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "novel.txt").write_text("It was the best of times, it was the worst of times. " * 40)
    data, trained = read_data(TASK, tmp_path / "novel.txt"), list[str]()

    def run(contender: str, rate: float, seed: int, *_: Any) -> Score:
        trained.append(contender)
        return Score(contender, rate, seed, rate, rate)

    monkeypatch.setattr("bench.fair_loop.run", run)
    variant = next(iter(VARIANTS))
    measure([variant, OURS], data, TASK, tmp_path / "scores.json")
    assert list(dict.fromkeys(trained)) == [OURS, variant]
    with pytest.raises(SystemExit, match=r"scores\.json has scores already: leave out --arena"):
        refuse_scores(tmp_path / "scores.json", data, TASK)
    refuse_scores(tmp_path / "new.json", data, TASK)
    with pytest.raises(SystemExit, match="has no results of the task 'novel'"):
        arena_scores(tmp_path / "empty", data, TASK)


def test_a_ratio_is_equal_or_different_only_if_its_whole_interval_is() -> None:
    assert near_one([1.011, 1.010, 1.009]) == "yes"
    assert near_one([1.040, 1.041, 1.042]) == near_one([0.95, 0.951, 0.952]) == "no"
    assert near_one([1.000, 1.010, 1.029]) == near_one([1.010, 1.030, 1.050]) == "open"
    assert near_one([1.0]) == "open"


def test_the_table_calls_contenders_equal_within_two_percent_of_gpt(capsys: pytest.CaptureFixture[str]) -> None:
    scores = scores_of(OURS, (2.0, 2.0, 2.0)) + scores_of(GPT2, (2.03, 2.034, 2.03), RATES[2])
    scores += [score for score in scores_of(DECODER, (2.1, 2.1, 2.1)) if score.seed != 3]  # not complete
    assert [(row.contender, row.rate) for row in standings(scores, ROWS)] == [(OURS, RATES[1]), (GPT2, RATES[2])]
    show(scores, ROWS)
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {GPT2}")]
    assert [row[-2].strip() for row in rows] == ["yes"] and "1.016 [" in rows[0][-3]
    show(scores_of(OURS, (2.0, 2.0, 2.0)) + scores_of(GPT2, (2.05, 2.055, 2.05)), ROWS)
    assert "| no |" in capsys.readouterr().out
    show(scores_of(OURS, (2.0, 2.0, 2.0)) + scores_of(GPT2, (2.03, 2.06, 2.03)), ROWS)
    assert "| open |" in capsys.readouterr().out
